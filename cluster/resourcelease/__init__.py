"""A Raft-replicated cluster that hands out work under leases.

What workers and producers need is here; everything else is in ``resourcelease.client``:

```py
from resourcelease import Client
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resourcelease.client import Client, FailItem, Lease, LeaseLost, ResourceLeaseError, Tls, Worker, worker

__all__ = [
    "Client",
    "FailItem",
    "Lease",
    "LeaseLost",
    "ResourceLeaseError",
    "Tls",
    "Worker",
    "__version__",
    "worker",
]

__version__: str


def __getattr__(name: str) -> Any:
    """Loads what is asked for when it is asked for: a node needs no client, and the command line starts fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("resourcelease")
    if name in __all__:
        return getattr(import_module("resourcelease.client"), name)
    raise AttributeError(f"module 'resourcelease' has no attribute {name!r}")
