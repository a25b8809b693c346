"""Records as columns: what many of them hold becomes one Arrow batch, without an object for each event."""

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from resourcelease.model.eventdata import EventType
from resourcelease.model.events import RECORD_VERSION, shard_of
from resourcelease.spark.arrays import Rows, numbers, struct
from resourcelease.spark.facts import Facts
from resourcelease.spark.handles import Handles, handles_of
from resourcelease.spark.items import Errors, Payloads

__all__ = ["NOT_A_RECORD", "EventBatch"]

# What unpacking or adding something that is no record may raise.
NOT_A_RECORD = (ValueError, TypeError, LookupError, OverflowError, AttributeError)

_NAMES = {int(type_): type_.name for type_ in EventType}

# Places in a record.
_FIRST, _COUNT, _WALL, _NAMESPACE, _PEER, _DATA, _FIELDS = 2, 3, 7, 8, 9, 16, 17
_NUMBERS = {"raft_index": 4, "raft_term": 5, "lease_clock": 6, "pending": 13, "active": 14}
_TEXTS = {"namespace": _NAMESPACE, "peer_id": _PEER, "principal": 10}


class EventBatch:
    """Takes unpacked records, and makes one Arrow batch of them; only what ``schema`` names is built.

    ``add`` and ``finish`` raise one of ``NOT_A_RECORD`` if something is none; the batch is then of no further use.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        names = schema.names
        self.rows = 0
        self._records: list[Sequence[Any]] = []
        # Of each record, the row behind its last.
        self._ends = array("i")
        self._handles = Handles() if "handle" in names else None
        self._payloads = Payloads() if "payload" in names else None
        self._errors = Errors() if "error" in names else None
        self._facts = Facts() if "metadata" in names else None

    def add(self, fields: list[Any]) -> None:
        """One record, as it was unpacked."""
        version, number, _, count = fields[:4]
        if version != RECORD_VERSION or number not in _NAMES or len(fields) != _FIELDS:
            raise ValueError(f"a record of another version or type than this release reads: {version}, {number}")
        data = fields[_DATA]
        found = handles_of(number, count, data)
        if number == EventType.PEER_CHANGED:
            fields[_PEER] = data[0]
        row, self.rows = self.rows, self.rows + count
        self._ends.append(self.rows)
        if self._handles is not None:
            self._handles.add(count, found)
        if self._payloads is not None:
            self._payloads.add(row, number, count, data)
        if self._errors is not None:
            self._errors.add(row, number, count, data)
        if self._facts is not None:
            self._facts.add(fields, self.rows)
        self._records.append(fields[:_DATA])

    def finish(self, first: int, last: int) -> pa.RecordBatch:
        """The events that were added, those from ``first`` to ``last``."""
        before = max(0, first - self._records[0][_FIRST])
        behind = max(0, self._records[-1][_FIRST] + self._records[-1][_COUNT] - 1 - last)
        batch = self._all()
        return batch.slice(before, self.rows - before - behind) if before or behind else batch

    def _all(self) -> pa.RecordBatch:
        columns = list(zip(*self._records, strict=True))
        rows = Rows(self._ends)
        arrays = [self._column(field, columns, rows) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, columns: Sequence[Sequence[Any]], rows: Rows) -> pa.Array:
        def number(name: str) -> pa.Array:
            return rows.spread(numbers(array("q", columns[_NUMBERS[name]])))

        name, kind = field.name, field.type
        if name in _NUMBERS:
            return number(name)
        if name in _TEXTS:
            return rows.spread(pa.array(columns[_TEXTS[name]], pa.string()))
        match name:
            case "sequence_number":
                return rows.rising(columns[_FIRST])
            case "type":
                return rows.spread(pa.array([_NAMES[number] for number in columns[1]], pa.string()))
            case "occurred_at":
                return rows.spread(numbers(array("q", [wall * 1000 for wall in columns[_WALL]]))).cast(kind)
            case "shard_id":
                return rows.spread(pa.array(list(map(shard_of, columns[_NAMESPACE])), pa.string()))
            case "queue":
                return struct(kind, number)
        return self._gathered(name, kind, rows)

    def _gathered(self, name: str, kind: pa.DataType, rows: Rows) -> pa.Array:
        if name == "handle" and self._handles is not None:
            return self._handles.finish(kind, rows)
        if name == "payload" and self._payloads is not None:
            return self._payloads.finish(kind, rows.size)
        if name == "error" and self._errors is not None:
            return self._errors.finish(kind, rows.size)
        if name == "metadata" and self._facts is not None:
            return self._facts.finish()
        raise LookupError(f"an event has no column {name}")
