"""The real machine as the simulator runs it: it notes the states that go to the disk and those that come from it."""

from collections.abc import Iterable
from functools import partial
from typing import Self

from resourcelease.consensus.api import Machines
from resourcelease.machine.machine import Machine

__all__ = ["CLUSTER_ID", "Watched", "machines_of"]

CLUSTER_ID = "simulated"


class Watched(Machine):
    """``Machine``, with notes for the checkers. What is planted in it is planted in subclasses of this one."""

    # The node that it runs on.
    node = ""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(cluster_id)
        # Where its history began for this process.
        self.began_at = 0
        # (position, digest) of each state that was handed to the disk, or came from rows.
        self.notes: list[tuple[int, bytes]] = []

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """The rows that changed; the stored rows stand for the present state from then on."""
        self.note()
        return super().take_changes()

    def note(self) -> None:
        """Notes the present state."""
        self.notes.append((self.applied_index, self.digest()))

    @classmethod
    def on(cls, node: str) -> Self:
        """An empty one."""
        machine = cls(CLUSTER_ID)
        machine.node = node
        return machine

    @classmethod
    def loaded_on(cls, node: str, rows: Iterable[tuple[bytes, bytes]]) -> Self:
        """One from rows."""
        machine = cls.load_rows(rows)
        assert isinstance(machine, cls)
        machine.node = node
        machine.began_at = machine.sequence_number
        machine.note()
        return machine


def machines_of(kind: type[Watched], node: str) -> Machines:
    """What a host needs to make the machines of a node."""
    return Machines(partial(kind.on, node), partial(kind.loaded_on, node))
