"""The newest events, in memory, for those who follow."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from resourcelease.model.events import Record

__all__ = ["Tail"]

# The list is cut when so many of its first places are empty.
_CUT_AT = 4096


class Tail:
    """A bounded stretch of records up to the newest. Readers pull; whoever is too slow finds that it has moved on."""

    def __init__(self, next_sequence: int, events_max: int, bytes_max: int) -> None:
        self._next = next_sequence
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # None where one is forgotten: a record may weigh megabytes.
        self._records: list[Record | None] = []
        self._firsts: list[int] = []
        # Where the list really begins.
        self._head = 0
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def first_sequence(self) -> int:
        """The oldest event that is kept; one beyond the newest, if none is."""
        return self._firsts[self._head] if self._head < len(self._firsts) else self._next

    @property
    def next_sequence(self) -> int:
        """One beyond the newest event."""
        return self._next

    def extend(self, records: Sequence[Record]) -> None:
        """Adds what was applied. After a snapshot the history has a gap; what came before it is then forgotten."""
        for record in records:
            if record.sequence != self._next:
                self._records, self._firsts, self._head, self._bytes = [], [], 0, 0
            self._records.append(record)
            self._firsts.append(record.sequence)
            self._bytes += len(record.encoded)
            self._next = record.sequence + record.count
        self._forget()
        self.wake()

    def records(self, from_sequence: int) -> Iterator[Record]:
        """The records that hold this event and later ones, as they are now."""
        if from_sequence < self.first_sequence or from_sequence >= self._next:
            return iter(())
        place = bisect_right(self._firsts, from_sequence, self._head) - 1
        return filter(None, self._records[place : place + _CUT_AT])

    async def news(self) -> None:
        """Waits until there is something newer, or the node stops."""
        await asyncio.shield(self._news)

    def wake(self) -> None:
        """Has everybody look again."""
        news, self._news = self._news, self._news.get_loop().create_future()
        news.set_result(None)

    def _forget(self) -> None:
        # The newest stays, whatever its size.
        while self._head < len(self._records) - 1:
            oldest = self._records[self._head]
            too_many = self._next - self._firsts[self._head] > self._events_max
            if oldest is None or not (too_many or self._bytes > self._bytes_max):
                break
            self._bytes -= len(oldest.encoded)
            self._records[self._head] = None
            self._head += 1
        if self._head >= _CUT_AT:
            del self._records[: self._head]
            del self._firsts[: self._head]
            self._head = 0
