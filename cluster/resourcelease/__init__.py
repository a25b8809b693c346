"""A Raft-replicated cluster that hands out work under leases."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("resourcelease")
