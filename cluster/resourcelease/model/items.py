"""Items as callers give them (columns) and as the machine keeps them (rows)."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgpack

from resourcelease.model.limits import DEFAULT_PRIORITY

__all__ = ["Failure", "Item", "ItemColumns", "LastLease", "item_rows"]


class Item(NamedTuple):
    """What an item carries for life. The machine holds plain tuples of this shape, made a column at a time."""

    resource_type: str
    resource_id: str
    partition_key: str | None
    payload_encoding: str | None
    attributes: Mapping[str, str] | None
    body: bytes | None
    request_id: str | None
    priority: int
    # Wall time, for people; decides nothing.
    enqueued_at_ms: int
    # The sequence number of the event that first put the item into its queue, less the item's own id: with the id, its
    # place in line while it has no other. The items of one call share it.
    lead: int


class Failure(NamedTuple):
    """What a worker said about an attempt that failed."""

    code: str
    message: str
    metadata: Mapping[str, str] | None = None


class LastLease(NamedTuple):
    """The lease that an item had before the present one, and how it ended."""

    attempt: int
    fence: int
    peer: str
    outcome: str


class ItemColumns(NamedTuple):
    """The items of one enqueue, a column a field. A single value in a column's place stands for all items.

    >>> ItemColumns(2, "table", ["orders", "users"], body=[b"1", b"2"]).packed()[:1]
    b'\\x9a'
    """

    size: int
    resource_type: str | Sequence[str]
    resource_id: str | Sequence[str]
    partition_key: str | Sequence[str | None] | None = None
    payload_encoding: str | Sequence[str | None] | None = None
    attributes: Sequence[Mapping[str, str] | None] | None = None
    body: Sequence[bytes | None] | None = None
    # "" is no request id, as None is.
    request_id: Sequence[str | None] | None = None
    priority: int | Sequence[int] = DEFAULT_PRIORITY
    # Delays counted from acceptance.
    not_before_ms: int | Sequence[int] = 0

    def even(self) -> bool:
        """Whether each column that is a list has a value an item."""
        size, *columns = self
        for column in columns:  # noqa: SIM110 a generator would cost more than the loop
            if type(column) is list and len(column) != size:
                return False
        return True

    def packed(self) -> bytes:
        """The columns as they travel, in ops and in events alike."""
        packed: bytes = msgpack.packb(self)
        return packed

    @staticmethod
    def unpacked(data: bytes) -> "ItemColumns":
        """Columns of the right number; their content is as unchecked as it came. Raises ValueError or TypeError."""
        columns: Any = msgpack.unpackb(data)
        return ItemColumns(*columns)


def item_rows(
    columns: ItemColumns, wall_ms: int, lead: int, start: int = 0, stop: int | None = None
) -> list[tuple[Any, ...]]:
    """Checked columns, or a part of them, as rows in the order of ``Item``."""
    stop = columns.size if stop is None else stop
    count = stop - start
    if count == 1:
        values = [column[start] if type(column) is list else column for column in columns[1:9]]
        return [(*values, wall_ms, lead)]
    spread = [column[start:stop] if type(column) is list else repeat(column, count) for column in columns[1:9]]
    return list(zip(*spread, repeat(wall_ms, count), repeat(lead, count), strict=True))
