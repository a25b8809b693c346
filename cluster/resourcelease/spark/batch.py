"""Records as columns: what many of them hold becomes one Arrow batch, without an object for each event."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from resourcelease.model.eventdata import EventType
from resourcelease.model.events import RECORD_VERSION, shard_of
from resourcelease.spark.arrays import Rows, numbers, struct
from resourcelease.spark.facts import facts
from resourcelease.spark.handles import Handles
from resourcelease.spark.items import errors, payloads

__all__ = ["NOT_A_RECORD", "EventBatch"]

# What unpacking or adding something that is no record may raise.
NOT_A_RECORD = (ValueError, TypeError, LookupError, OverflowError, AttributeError)

_NAMES = {int(type_): type_.name for type_ in EventType}
# By number.
_TYPE_NAMES = pa.array([_NAMES.get(number) for number in range(max(_NAMES) + 1)], pa.string())

# Places in a record.
_FIRST, _COUNT, _WALL, _NAMESPACE, _PEER, _DATA, _FIELDS = 2, 3, 7, 8, 9, 16, 17
_COUNT_OF = itemgetter(_COUNT)
_NUMBERS = {"raft_index": 4, "raft_term": 5, "lease_clock": 6, "pending": 13, "active": 14}
_TEXTS = {"namespace": _NAMESPACE, "peer_id": _PEER, "principal": 10}


class EventBatch:
    """Takes unpacked records, and makes one Arrow batch of them; only what ``schema`` names is built.

    ``finish`` raises one of ``NOT_A_RECORD`` if something is none. Records are worked on together, a column at a time:
    of a log of small records the records would else cost more than the events in them.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._records: list[Sequence[Any]] = []
        self.rows = 0

    def add(self, fields: Sequence[Any]) -> None:
        """One record, as it was unpacked."""
        self.extend([fields])

    def extend(self, records: Sequence[Sequence[Any]]) -> None:
        """Some records."""
        self._records += records
        self.rows += sum(map(_COUNT_OF, records))

    def finish(self, first: int, last: int) -> pa.RecordBatch:
        """The events that were added, those from ``first`` to ``last``."""
        before = max(0, first - self._records[0][_FIRST])
        behind = max(0, self._records[-1][_FIRST] + self._records[-1][_COUNT] - 1 - last)
        batch = self._all()
        return batch.slice(before, self.rows - before - behind) if before or behind else batch

    def _all(self) -> pa.RecordBatch:
        columns = list(zip(*self._records, strict=True))
        if len(columns) != _FIELDS:
            raise ValueError("a record has more fields or fewer than this release reads")
        numbers, counts = columns[1], columns[_COUNT]
        if set(columns[0]) != {RECORD_VERSION} or not set(numbers) <= _NAMES.keys():
            raise ValueError("a record of another version or type than this release reads")
        if EventType.PEER_CHANGED in numbers:
            pairs = zip(numbers, columns[_PEER], columns[_DATA], strict=True)
            columns[_PEER] = tuple(
                data[0] if number == EventType.PEER_CHANGED else peer for number, peer, data in pairs
            )
        # Also where nobody asks for them: whether there are as many as there are events says whether these are records.
        handles = Handles(numbers, counts, columns[_DATA])
        rows = Rows(counts)
        arrays = [self._column(field, columns, rows, handles) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, columns: Sequence[Sequence[Any]], rows: Rows, handles: Handles) -> pa.Array:
        def number(name: str) -> pa.Array:
            return rows.spread(numbers(columns[_NUMBERS[name]]))

        name, kind = field.name, field.type
        if name in _NUMBERS:
            return number(name)
        if name in _TEXTS:
            return rows.texts(columns[_TEXTS[name]])
        match name:
            case "sequence_number":
                return rows.rising(columns[_FIRST])
            case "type":
                return _TYPE_NAMES.take(rows.spread(numbers(columns[1], "i")))
            case "occurred_at":
                return rows.spread(numbers([wall * 1000 for wall in columns[_WALL]])).view(kind)
            case "shard_id":
                shards = {name: shard_of(name) for name in set(columns[_NAMESPACE])}
                return rows.texts([shards[name] for name in columns[_NAMESPACE]])
            case "queue":
                return struct(kind, number)
            case "handle":
                return handles.finish(kind, rows)
            case "payload":
                return payloads(kind, rows, columns[1], columns[_COUNT], columns[_DATA])
            case "error":
                return errors(kind, rows, columns[1], columns[_COUNT], columns[_DATA])
            case "metadata":
                return facts(columns, rows)
        raise LookupError(f"an event has no column {name}")
