"""The replicated state machine: what an entry of operations does, and nothing else."""

from resourcelease.machine.machine import Applied, Machine, fold

__all__ = ["Applied", "Machine", "fold"]
