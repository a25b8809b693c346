"""The items and the errors in records: what few events have."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgpack
import pyarrow as pa

from resourcelease.model.eventdata import EventType
from resourcelease.model.items import Item, ItemColumns
from resourcelease.spark.arrays import TEXTS, Rows, optional_texts, spread_some, struct
from resourcelease.spark.unpack import unpack_all

__all__ = ["errors", "payloads"]

# A page of a bundle is (content, digest of the content); of the content's parts this one is the items' columns, in the
# order of ``Item``.
_PAGE_COLUMNS = 7


# What has an error to tell.
_TOLD = frozenset((EventType.FAILED, EventType.REJECTED))

# What stands nowhere in an item: true, in msgpack.
_BORDER = b"\xc3"

_NAMES = ItemColumns._fields[1:9]
_KINDS = {"attributes": TEXTS, "body": pa.binary(), "priority": pa.int32()}


def payloads(
    kind: pa.DataType, rows: Rows, numbers: Sequence[int], counts: Sequence[int], datas: Sequence[Sequence[Any]]
) -> pa.Array:
    """The items of ENQUEUE events, and of RESTORE_SNAPSHOT events, whose page holds them; null in other rows."""
    packed = [data[1] for number, data in zip(numbers, datas, strict=True) if number == EventType.ENQUEUE]
    enqueued = iter(_each(packed))
    found: list[Sequence[Any]] = []
    sizes = [0] * len(counts)
    for place, number in enumerate(numbers):
        if number == EventType.ENQUEUE:
            found.append(next(enqueued))
        elif number == EventType.RESTORE_SNAPSHOT and datas[place][0]:
            found.append([counts[place], *_of_page(datas[place][3], datas[place][2])])
        else:
            continue
        sizes[place] = counts[place]
    if not found:
        return pa.nulls(rows.size, kind)
    each = [size for size in sizes if size]
    told, *columns = zip(*found, strict=False)
    if list(told) != each:
        raise ValueError("an enqueue does not have as many items as there are events")
    by_name = dict(zip(_NAMES, columns, strict=False))
    values = struct(kind, lambda name: _column(name, by_name[name], each))
    return spread_some(values, rows, sizes)


def _each(packed: Sequence[bytes]) -> list[Any]:
    """The value in each; none may end, or begin, in another."""
    values = unpack_all((part for one in packed for part in (one, _BORDER)), 2 * len(packed))
    if not all(value is True for value in values[1::2]):
        raise ValueError("the items of an enqueue are not one value")
    return values[::2]


def _column(name: str, columns: Sequence[Any], sizes: Sequence[int]) -> pa.Array:
    """One column of all items; in each record it is a list, or one value for all of them."""
    kind, first = _KINDS.get(name, pa.string()), columns[0]
    is_one = type(first) is not list and columns.count(first) == len(columns)
    if is_one and first is None:
        return pa.nulls(sum(sizes), kind)
    if is_one and name != "attributes":
        return pa.repeat(pa.scalar(first, kind), sum(sizes))
    spread: Sequence[Any] = columns
    if not all(type(column) is list for column in columns):
        pairs = zip(columns, sizes, strict=True)
        spread = [column if type(column) is list else [column] * size for column, size in pairs]
    if list(map(len, spread)) != sizes:
        raise ValueError("a column of an item does not have as many values as there are items")
    values = list(chain.from_iterable(spread))
    return optional_texts(values) if name == "attributes" else pa.array(values, kind)


def _of_page(page: bytes, places: Sequence[int]) -> list[list[Any]]:
    columns = msgpack.unpackb(msgpack.unpackb(page)[0])[_PAGE_COLUMNS]
    return [[column[place] for place in places] for column in columns[: len(Item._fields) - 2]]


def errors(
    kind: pa.DataType, rows: Rows, numbers: Sequence[int], counts: Sequence[int], datas: Sequence[Sequence[Any]]
) -> pa.Array:
    """What workers said of attempts that failed, and why ops were refused; null in other rows."""
    if _TOLD.isdisjoint(numbers):
        return pa.nulls(rows.size, kind)
    found: list[Sequence[Any]] = []
    sizes = []
    for number, count, data in zip(numbers, counts, datas, strict=True):
        if number == EventType.FAILED and data[3]:
            failures = data[3] * count if len(data[3]) == 1 else data[3]
            if len(failures) != count:
                raise ValueError("there are not as many failures as there are events")
        elif number == EventType.REJECTED:
            failures = [(data[0], data[1], None)]
        else:
            failures = ()
        found += failures
        sizes.append(len(failures))
    if not found:
        return pa.nulls(rows.size, kind)
    columns = dict(zip(("code", "message", "metadata"), zip(*found, strict=True), strict=False))

    def column(name: str) -> pa.Array:
        values = columns.get(name, ())
        return optional_texts(values) if name == "metadata" else pa.array(values, pa.string())

    return spread_some(struct(kind, column), rows, sizes)
