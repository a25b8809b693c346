"""The real machine as the simulator runs it: it notes the states that go to the disk and those that come from it."""

from collections.abc import Iterable
from functools import partial
from typing import Self

from resourcelease.consensus.api import Machines
from resourcelease.machine.machine import Machine

__all__ = ["CLUSTER_ID", "Watched", "machines_of"]

CLUSTER_ID = "simulated"


# Of so many times that changed rows are taken, once all rows are looked at.
_ALL_ROWS_EVERY = 4


class Watched(Machine):
    """``Machine``, with notes for the checkers. What is planted in it is planted in subclasses of this one.

    It keeps the rows that are stored for it. As only changes are stored, a sum over all rows costs no more than those.
    """

    # The node that it runs on.
    node = ""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(cluster_id)
        # Where its history began for this process.
        self.began_at = 0
        # (position, sum over its rows) of each state that was handed to the disk, came from rows, or was looked at.
        self.notes: list[tuple[int, int]] = []
        self._stored: dict[bytes, bytes] = {}
        self._sum = 0
        self._taken = 0

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """The rows that changed; the stored rows stand for the present state from then on."""
        puts, deletes = super().take_changes()
        self._store(puts, deletes)
        self.notes.append((self.applied_index, self._sum))
        self._taken += 1
        if self._taken % _ALL_ROWS_EVERY == 0:
            self.note()
        return puts, deletes

    def _store(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        stored, total = self._stored, self._sum
        for row in puts:
            key, value = row
            before = stored.get(key)
            if before is not None:
                total ^= hash((key, before))
            total ^= hash(row)
            stored[key] = value
        for key in deletes:
            before = stored.pop(key, None)
            if before is not None:
                total ^= hash((key, before))
        self._sum = total

    def note(self) -> None:
        """Notes the present state, whole."""
        total = 0
        for row in self.dump_rows():
            total ^= hash(row)
        self.notes.append((self.applied_index, total))

    @classmethod
    def on(cls, node: str) -> Self:
        """An empty one."""
        machine = cls(CLUSTER_ID)
        machine.node = node
        return machine

    @classmethod
    def loaded_on(cls, node: str, rows: Iterable[tuple[bytes, bytes]]) -> Self:
        """One from rows."""
        stored = list(rows)
        machine = cls.load_rows(stored)
        assert isinstance(machine, cls)
        machine.node = node
        machine.began_at = machine.sequence_number
        machine._store(stored, ())
        machine.notes.append((machine.applied_index, machine._sum))
        machine.note()
        return machine


def machines_of(kind: type[Watched], node: str) -> Machines:
    """What a host needs to make the machines of a node."""
    return Machines(partial(kind.on, node), partial(kind.loaded_on, node))
