"""What records say beyond their columns, as the texts of ``metadata``: deadline, cause, change and the like."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from resourcelease.model.eventdata import DATA, EventType
from resourcelease.spark.arrays import Rows, Texts

__all__ = ["Facts"]

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
_EFFECT, _HEARTBEAT = int(EventType.EFFECT), int(EventType.HEARTBEAT)


class Facts:
    """Gathers the metadata of records; the events of one record share it, but where it has a value for each."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._ends = array("i")

    def add(self, fields: Sequence[Any], rows: int) -> None:
        """One record; ``rows`` are those up to its last."""
        number, count, data = fields[1], fields[3], fields[_DATA]
        said = dict(fields[_CALLERS] or {})
        each: tuple[str, list[int]] | None = None
        for name, place in _TOLD[number]:
            value = data[place] if place < len(data) else None
            if type(value) is list:
                each = name, value
            elif not (value is None or value == "" or (type(value) is int and not value)):
                said[name] = value if type(value) is str else _words(value)
        if number == _EFFECT and data[0] == "finish":
            said.pop("value", None)
        if number == _HEARTBEAT and not data[0]:
            said["all_of_peer"] = "true"
        if fields[_OPERATION]:
            said["operation_id"] = fields[_OPERATION]
        if each is None:
            self._texts.add(said)
            self._ends.append(rows)
            return
        name, values = each
        if len(values) != count:
            raise ValueError(f"{name} does not have as many values as there are events")
        for place, value in enumerate(values):
            self._texts.add(said | {name: str(value)} if value else said)
            self._ends.append(rows - count + place + 1)

    def finish(self) -> pa.Array:
        """A map a row."""
        rows = Rows(self._ends)
        return self._texts.finish().take(rows.numbered())


def _words(value: Any) -> str:
    if type(value) is int:
        return str(value)
    # The result of an effect is no fact, and is taken out above.
    return "" if type(value) is bytes else json.dumps(value)
