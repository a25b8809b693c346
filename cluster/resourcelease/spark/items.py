"""The items and the errors in records: what few events have."""

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pyarrow as pa

from resourcelease.model.eventdata import EventType
from resourcelease.model.items import Item, ItemColumns
from resourcelease.spark.arrays import Sparse, optional_texts, struct

__all__ = ["Errors", "Payloads"]

# A page of a bundle is (content, digest of the content); of the content's parts this one is the items' columns, in the
# order of ``Item``.
_PAGE_COLUMNS = 7


class Payloads:
    """The items of ENQUEUE events, and of RESTORE_SNAPSHOT events, whose page holds them."""

    def __init__(self) -> None:
        self._where = Sparse()
        self._columns: dict[str, list[Any]] = {name: [] for name in ItemColumns._fields[1:9]}

    def add(self, row: int, number: int, count: int, data: Sequence[Any]) -> None:
        """What one record says, whose first event is in this row."""
        if number == EventType.ENQUEUE:
            size, *columns = msgpack.unpackb(data[1])
            if size != count:
                raise ValueError("an enqueue does not have as many items as there are events")
        elif number == EventType.RESTORE_SNAPSHOT and data[0]:
            columns = _of_page(data[3], data[2])
        else:
            return
        self._where.add(row, count)
        for (_, values), column in zip(self._columns.items(), columns, strict=False):
            if type(column) is not list:
                values.extend([column] * count)
            elif len(column) == count:
                values.extend(column)
            else:
                raise ValueError("a column of an item does not have as many values as there are items")

    def finish(self, kind: pa.DataType, rows: int) -> pa.Array:
        """All of them, as a struct of the fields that are wanted."""

        def column(name: str) -> pa.Array:
            values = self._columns[name]
            if name == "attributes":
                return optional_texts(values)
            return pa.array(values, _KINDS.get(name, pa.string()))

        return self._where.spread(struct(kind, column), rows)


_KINDS = {"body": pa.binary(), "priority": pa.int32()}


def _of_page(page: bytes, places: Sequence[int]) -> list[list[Any]]:
    columns = msgpack.unpackb(msgpack.unpackb(page)[0])[_PAGE_COLUMNS]
    return [[column[place] for place in places] for column in columns[: len(Item._fields) - 2]]


class Errors:
    """What workers said of attempts that failed, and why ops were refused."""

    def __init__(self) -> None:
        self._where = Sparse()
        self._found: list[tuple[str, str, Any]] = []

    def add(self, row: int, number: int, count: int, data: Sequence[Any]) -> None:
        """What one record says, whose first event is in this row."""
        if number == EventType.FAILED and data[3]:
            failures = data[3] * count if len(data[3]) == 1 else data[3]
            if len(failures) != count:
                raise ValueError("there are not as many failures as there are events")
        elif number == EventType.REJECTED:
            failures = [(data[0], data[1], None)]
        else:
            return
        self._where.add(row, count)
        self._found += failures

    def finish(self, kind: pa.DataType, rows: int) -> pa.Array:
        """All of them, as a struct of the fields that are wanted."""
        columns = dict(zip(("code", "message", "metadata"), zip(*self._found, strict=True), strict=False))
        makers: dict[str, Callable[[Any], pa.Array]] = {"metadata": optional_texts}

        def column(name: str) -> pa.Array:
            values = columns.get(name, ())
            return makers.get(name, lambda texts: pa.array(texts, pa.string()))(values)

        return self._where.spread(struct(kind, column), rows)
