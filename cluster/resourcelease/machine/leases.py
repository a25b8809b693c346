"""Which items are leased, and under which hold.

Leases are granted, and mostly acked, in runs: consecutive items under consecutive fences. Such a run costs a slice, not
an entry an item.
"""

from collections.abc import Iterator, Sequence

from resourcelease.machine.agenda import Hold
from resourcelease.machine.blocks import Blocks

__all__ = ["LeaseTable"]


class LeaseTable:
    """The live leases of a namespace by sequence id, each as its fence and its hold."""

    __slots__ = ("_holds", "_size")

    def __init__(self) -> None:
        self._holds: Blocks[Hold] = Blocks()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._holds

    def __getitem__(self, sequence_id: int) -> tuple[int, Hold]:
        hold = self._holds[sequence_id]
        return hold.fence_of(sequence_id), hold

    def get(self, sequence_id: int) -> tuple[int, Hold] | None:
        """The lease of an item, if it has one."""
        hold = self._holds.get(sequence_id)
        return None if hold is None else (hold.fence_of(sequence_id), hold)

    def items(self) -> Iterator[tuple[int, tuple[int, Hold]]]:
        """Every lease, lowest id first."""
        for first, end, hold in self._holds.runs():
            for sequence_id in range(first, end):
                yield sequence_id, (hold.fence_of(sequence_id), hold)

    def within(self, first_id: int, end_id: int) -> Iterator[int]:
        """The leased ids from one on, up to another, which is left out; lowest first."""
        for first, end, _ in self._holds.runs(first_id, end_id):
            yield from range(first, end)

    def add(self, hold: Hold) -> None:
        """The leases of a hold, on items that have none."""
        ids = hold.sequence_ids
        if hold.is_run:
            self._holds.put_run(ids[0], [hold] * len(ids))
        else:
            for sequence_id in ids:
                self._holds[sequence_id] = hold
        self._size += len(ids)

    def end(self, sequence_ids: Sequence[int]) -> list[Hold]:
        """Takes leases out; the hold each was under. KeyError if there is no such lease."""
        holds = self._holds.pop_many(sequence_ids) if sequence_ids else []
        self._size -= len(holds)
        return holds

    def run_of(self, sequence_ids: list[int], fences: list[int]) -> Hold | None:
        """The hold, if these are consecutive leases of one run, with these fences; else they have to be looked at."""
        first, count = sequence_ids[0], len(sequence_ids)
        hold = self._holds.get(first)
        if hold is None or not hold.is_run or sequence_ids[-1] - first != count - 1:
            return None
        fence = hold.fence_of(first)
        if count == 1:
            return hold if fences[0] == fence else None
        if sequence_ids != list(range(first, first + count)) or fences != list(range(fence, fence + count)):
            return None
        last = hold.sequence_ids[-1]
        return hold if first + count - 1 <= last and self._holds.holds_all(first, count, hold) else None
