"""What records say beyond their columns, as the texts of ``metadata``: deadline, cause, change and the like."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from resourcelease.model.eventdata import DATA, EventType, GrantsData
from resourcelease.spark.arrays import Rows, texts_of

__all__ = ["facts"]

# Columns of data that have columns of their own in an event, or are no facts.
_ELSEWHERE = (
    "sequence_ids", "attempts", "fences", "first_fence", "first_id", "columns", "failures",
    "page", "places", "message", "peer", "sequence_id", "attempt", "fence",
)  # fmt: skip
_TOLD = {
    int(type_): [(name, place) for place, name in enumerate(data._fields) if name not in _ELSEWHERE]
    for type_, data in DATA.items()
}
_OPERATION, _CALLERS, _DATA = 11, 12, 16
_GRANTED, _DEADLINE = int(EventType.LEASE_GRANTED), GrantsData._fields.index("deadline_ms")
_WITH_DEADLINE = ("deadline_ms", "operation_id")
_DRAIN, _EFFECT, _HEARTBEAT = int(EventType.DRAIN_SNAPSHOT), int(EventType.EFFECT), int(EventType.HEARTBEAT)
_ONCE: Sequence[Any] = (None,)
# Types whose data tells nothing here. (Of a heartbeat it does where no lease is named.)
_PLAIN = frozenset(number for number, told in _TOLD.items() if not told and number != _HEARTBEAT)


def facts(columns: Sequence[Sequence[Any]], rows: Rows) -> pa.Array:
    """The metadata of the events of records, a map a row; ``columns`` are the fields of all records."""
    keys: list[str] = []
    values: list[str] = []
    # How many texts each map has, and how many rows.
    sizes: list[int] = []
    repeats: list[int] = []
    fields = zip(*(columns[place] for place in (1, 3, _OPERATION, _CALLERS, _DATA)), strict=True)
    for number, count, operation, callers, data in fields:
        if not callers:
            # Most records: nothing but the operation, or, a third of a log, a deadline and the operation.
            if number in _PLAIN:
                if operation:
                    keys.append("operation_id")
                    values.append(operation)
                    sizes.append(1)
                else:
                    sizes.append(0)
                repeats.append(count)
                continue
            if number == _GRANTED and operation and type(data[_DEADLINE]) is int and data[_DEADLINE]:
                keys += _WITH_DEADLINE
                values += (str(data[_DEADLINE]), operation)
                sizes.append(2)
                repeats.append(count)
                continue
        said = dict(callers or {})
        each = _tell(said, _TOLD[number], number, data)
        if operation:
            said["operation_id"] = operation
        name, own = each or ("", _ONCE)
        if each is not None and len(own) != count:
            raise ValueError(f"{name} does not have as many values as there are events")
        for value in own:
            told = said | {name: str(value)} if value else said
            keys += told.keys()
            values += told.values()
            sizes.append(len(told))
            repeats.append(1 if each else count)
    texts = texts_of(keys, values, sizes)
    return texts if len(sizes) == rows.size else texts.take(Rows(repeats).numbered())


def _tell(
    said: dict[str, str], told: Sequence[tuple[str, int]], number: int, data: Sequence[Any]
) -> tuple[str, list[int]] | None:
    """Adds what a record says; gives back what it says of each event by itself."""
    each: tuple[str, list[int]] | None = None
    for name, place in told:
        value: Any = data[place] if place < len(data) else None
        kind = type(value)
        if kind is int:
            if value:
                said[name] = str(value)
        elif kind is list:
            each = name, value
        elif not (value is None or value == ""):
            said[name] = value if kind is str else _words(value)
    if number == _EFFECT and data[0] == "finish":
        said.pop("value", None)
    if number == _DRAIN and said["more"] != "true":
        del said["more"]
    if number == _HEARTBEAT and not data[0]:
        said["all_of_peer"] = "true"
    return each


def _words(value: Any) -> str:
    # The result of an effect is no fact, and is taken out above.
    return "" if type(value) is bytes else json.dumps(value)
