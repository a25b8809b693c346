"""The ownership handles in records: which columns of each type's data are ids, attempts and fences."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from resourcelease.model.eventdata import EventType
from resourcelease.spark.arrays import Rows, struct

__all__ = ["Handles", "handles_of"]

# Ids, one a row; attempts and fences likewise, or one number that holds for all. None: the events have no handle.
Columns: TypeAlias = tuple[list[int] | range, int | list[int], int | list[int] | range]


def handles_of(number: int, count: int, data: Sequence[Any]) -> Columns | None:
    """The handles of a record of ``count`` events. Raises ValueError unless there are as many."""
    found = _OF[number](count, data)
    size = len(found[0]) if found is not None else 1
    if size != count or count < 1:
        raise ValueError("the columns do not have as many values as there are events")
    return found


def _items(count: int, data: Sequence[Any]) -> Columns:
    return range(data[0], data[0] + count), 1, 0


def _grants(count: int, data: Sequence[Any]) -> Columns:
    return data[0], data[1], range(data[2], data[2] + count)


def _fenced(count: int, data: Sequence[Any]) -> Columns | None:
    """Also heartbeats of all that a peer holds, which name no lease."""
    return (data[0], data[1], data[2] or 0) if data[0] else None


def _unfenced(count: int, data: Sequence[Any]) -> Columns | None:
    """Also the page of a bundle that has nothing in it."""
    return (data[0], data[1], 0) if data[0] else None


def _effect(count: int, data: Sequence[Any]) -> Columns | None:
    return ([data[2]], data[3], data[4]) if data[4] else None


def _none(count: int, data: Sequence[Any]) -> None:
    return None


_OF: dict[int, Callable[[int, Sequence[Any]], Columns | None]] = {
    EventType.ENQUEUE: _items,
    EventType.LEASE_GRANTED: _grants,
    EventType.HEARTBEAT: _fenced,
    EventType.COMPLETED: _fenced,
    EventType.FAILED: _fenced,
    EventType.DRAIN_SNAPSHOT: _unfenced,
    EventType.RESTORE_SNAPSHOT: _unfenced,
    EventType.LEASE_EXPIRED: _fenced,
    EventType.REQUEUED: _fenced,
    EventType.DEAD_LETTERED: _fenced,
    EventType.BACKPRESSURE: _none,
    EventType.CONFIGURED: _none,
    EventType.PEER_CHANGED: _none,
    EventType.REDRIVEN: _unfenced,
    EventType.EFFECT: _effect,
    EventType.RELEASED: _unfenced,
    EventType.REJECTED: _none,
    EventType.DISCARDED: _unfenced,
}
_ = [_OF[type_] for type_ in EventType]  # a type without an entry is found when this is loaded

_NO_HANDLE: Columns = (range(1), 0, 0)


class Handles:
    """The handles of many records."""

    def __init__(self, numbers: Sequence[int], counts: Sequence[int], datas: Sequence[Sequence[Any]]) -> None:
        found = [_OF[number](count, data) for number, count, data in zip(numbers, counts, datas, strict=True)]
        self._absent = None if None not in found else [each is None for each in found]
        ids, attempts, fences = zip(*[each or _NO_HANDLE for each in found], strict=True)
        if list(map(len, ids)) != list(counts) or min(counts) < 1:
            raise ValueError("the columns do not have as many values as there are events")
        self._columns: dict[str, Sequence[Any]] = {"sequence_id": ids, "attempt": attempts, "lease_id": fences}

    def finish(self, kind: pa.DataType, rows: Rows) -> pa.Array:
        """All of them, as a struct of the fields that are wanted."""
        absent = None if self._absent is None else rows.spread(pa.array(self._absent, pa.bool_()))

        def column(name: str) -> pa.Array:
            return rows.each(self._columns[name])

        return struct(kind, column, absent)
