"""Which events a reader wants, and which parts of the log it can leave unread."""

from collections.abc import Iterable
from typing import NamedTuple

from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Event, Record
from resourcelease.storage.segments.summary import Span

__all__ = ["ALL", "Query"]


class Query(NamedTuple):
    """A selection of the log. What is left as it is selects everything.

    >>> Query.of(first=100, types=[EventType.COMPLETED], namespaces=["jobs"]).first
    100
    """

    # Sequence numbers, both included; 0: from the first that is kept, and to the end.
    first: int = 0
    last: int = 0
    # A mask, bit n for type n; 0: all.
    types: int = 0
    namespaces: frozenset[str] | None = None
    # Wall time (``occurred_at_ms``), both included; -1 for the end: no end.
    from_ms: int = 0
    until_ms: int = -1

    @classmethod
    def of(
        cls,
        *,
        first: int = 0,
        last: int = 0,
        types: Iterable[EventType] = (),
        namespaces: Iterable[str] | None = None,
        from_ms: int = 0,
        until_ms: int = -1,
    ) -> "Query":
        """A query from types and names."""
        mask = 0
        for type_ in types:
            mask |= 1 << int(type_)
        return cls(first, last, mask, None if namespaces is None else frozenset(namespaces), from_ms, until_ms)

    def starting(self, first: int) -> "Query":
        """The same from another event on."""
        return self._replace(first=first)

    def within(self, first: int, last: int) -> bool:
        """Whether some of the events ``first`` to ``last`` are in its range."""
        return last >= self.first and (not self.last or first <= self.last)

    def may_want(self, span: Span) -> bool:
        """Whether there may be something in a stretch of the log."""
        if not self.within(span.first, span.last) or not self._in_time(span.least_wall_ms, span.most_wall_ms):
            return False
        if self.namespaces is None:
            return not self.types or bool(self.types & span.types)
        return any(
            name in self.namespaces and (not self.types or any(self.types >> number & 1 for number in by_type))
            for name, by_type in span.counts.items()
        )

    def may_want_part(self, least_wall_ms: int, most_wall_ms: int, types: int, namespaces: Iterable[str]) -> bool:
        """The same, of what a footer says about a frame in its range."""
        if not self._in_time(least_wall_ms, most_wall_ms) or (self.types and not self.types & types):
            return False
        return self.namespaces is None or any(name in self.namespaces for name in namespaces)

    def wants(self, record: Record) -> bool:
        """Whether events of a record are among the selected."""
        return (
            self.within(record.sequence, record.sequence + record.count - 1)
            and (not self.types or bool(self.types >> record.type & 1))
            and (self.namespaces is None or record.namespace in self.namespaces)
            and self._in_time(record.wall_ms, record.wall_ms)
        )

    def covers(self, event: Event) -> bool:
        """Whether an event of a record that is wanted is in the range of sequence numbers."""
        return self.within(event.sequence_number, event.sequence_number)

    def _in_time(self, least_ms: int, most_ms: int) -> bool:
        return most_ms >= self.from_ms and (self.until_ms < 0 or least_ms <= self.until_ms)


ALL = Query()
