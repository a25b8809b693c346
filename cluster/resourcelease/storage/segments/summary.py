"""What a frame or a file holds, in numbers: ranges, times, and counts by namespace and type."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from resourcelease.model.events import Record
from resourcelease.storage.segments.errors import CorruptSegment

__all__ = ["Counts", "FrameMeta", "Span", "Tally", "read_frame_meta", "read_span"]

_NUMBER_MAX = 1 << 62
_CHAIN_BYTES = 32

# Events by namespace and number of the type.
Counts = Mapping[str, Mapping[int, int]]


class Span(NamedTuple):
    """A stretch of the log. Entries and the lease clock only rise in it; wall time does as it likes."""

    first: int
    last: int
    # Of the Raft entries that the first and the last event belong to.
    first_entry: int
    last_entry: int
    first_clock_ms: int
    last_clock_ms: int
    least_wall_ms: int
    most_wall_ms: int
    records: int
    counts: Counts

    @property
    def types(self) -> int:
        """The types present, as a mask: bit n for type n."""
        mask = 0
        for by_type in self.counts.values():
            for number in by_type:
                mask |= 1 << number
        return mask

    def packed(self) -> list[Any]:
        """As it stands in a file: nine numbers, then the counts as [namespace, type, events]."""
        counts = [[name, number, size] for name, by_type in self.counts.items() for number, size in by_type.items()]
        return [*self[:-1], counts]


class FrameMeta(NamedTuple):
    """The meta of a frame."""

    span: Span
    # Bytes of table and content, before compression.
    raw_length: int
    # The chain after the frame's last entry.
    chain: bytes

    def packed(self) -> bytes:
        """The bytes of it."""
        packed: bytes = msgpack.packb([*self.span.packed(), self.raw_length, self.chain])
        return packed


class Tally:
    """Adds up what passes by; empty until something does."""

    def __init__(self) -> None:
        self.records = 0
        self._first = self._last = self._first_entry = self._last_entry = 0
        self._first_clock_ms = self._last_clock_ms = self._least_wall_ms = self._most_wall_ms = 0
        self._counts: dict[tuple[str, int], int] = {}

    def add(self, records: Sequence[Record]) -> None:
        """The records of one entry."""
        head = records[0]
        tail = records[-1]
        self._extend(
            head.sequence,
            tail.sequence + tail.count - 1,
            (head.index, head.index),
            (head.clock_ms, head.clock_ms),
            (head.wall_ms, head.wall_ms),
        )
        self.records += len(records)
        counts = self._counts
        for record in records:
            key = record.call.namespace, record.type
            counts[key] = counts.get(key, 0) + record.count

    def merge(self, span: Span) -> None:
        """A stretch that follows."""
        entries = (span.first_entry, span.last_entry)
        clocks = (span.first_clock_ms, span.last_clock_ms)
        self._extend(span.first, span.last, entries, clocks, (span.least_wall_ms, span.most_wall_ms))
        self.records += span.records
        for name, by_type in span.counts.items():
            for number, size in by_type.items():
                self._counts[name, number] = self._counts.get((name, number), 0) + size

    def span(self) -> Span:
        """What it came to."""
        counts: dict[str, dict[int, int]] = {}
        for (name, number), size in self._counts.items():
            counts.setdefault(name, {})[int(number)] = size
        return Span(
            self._first,
            self._last,
            self._first_entry,
            self._last_entry,
            self._first_clock_ms,
            self._last_clock_ms,
            self._least_wall_ms,
            self._most_wall_ms,
            self.records,
            counts,
        )

    def _extend(
        self, first: int, last: int, entries: tuple[int, int], clocks: tuple[int, int], walls: tuple[int, int]
    ) -> None:
        if not self.records:
            self._first, self._first_entry, self._first_clock_ms = first, entries[0], clocks[0]
            self._least_wall_ms, self._most_wall_ms = walls
        self._last, self._last_entry, self._last_clock_ms = last, entries[1], clocks[1]
        self._least_wall_ms = min(self._least_wall_ms, walls[0])
        self._most_wall_ms = max(self._most_wall_ms, walls[1])


def read_frame_meta(meta: bytes, path: Path, offset: int) -> FrameMeta:
    """The meta of a frame; ``CorruptSegment`` if it is none."""
    try:
        *span, raw_length, chain = msgpack.unpackb(meta)
        if not _is_number(raw_length) or type(chain) is not bytes or len(chain) != _CHAIN_BYTES:
            raise ValueError("length or chain is none")
        return FrameMeta(read_span(span), raw_length, chain)
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptSegment(path, offset, f"the description of a frame cannot be read: {error}") from error


def read_span(packed: Any) -> Span:
    """The opposite of ``Span.packed``; ValueError or TypeError for anything else."""
    *numbers, triples = packed
    if len(numbers) != len(Span._fields) - 1 or not all(map(_is_number, numbers)):
        raise ValueError("a number of a span is none")
    counts: dict[str, dict[int, int]] = {}
    total = 0
    for name, number, size in triples:
        if type(name) is not str or not _is_number(number) or number > 63 or not _is_number(size):
            raise ValueError("a count is none")
        counts.setdefault(name, {})[number] = size
        total += size
    span = Span._make((*numbers, counts))
    ordered = 1 <= span.first <= span.last and span.first_entry <= span.last_entry
    if not ordered or span.first_clock_ms > span.last_clock_ms or span.least_wall_ms > span.most_wall_ms:
        raise ValueError("a span ends before it begins")
    if total != span.last - span.first + 1 or not 1 <= span.records <= total:
        raise ValueError("a span does not hold as many events as it says")
    return span


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _NUMBER_MAX
