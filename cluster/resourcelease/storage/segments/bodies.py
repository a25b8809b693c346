"""Records without the bodies of their items, for nodes that are told to keep none in their log."""

from hashlib import sha256
from typing import Any

import msgpack

from resourcelease.model.eventdata import DrainData, ItemsData, RestoreData
from resourcelease.model.events import Record
from resourcelease.model.items import Item, ItemColumns

__all__ = ["without_bodies"]

# A page is (content, digest of the content); of the content's parts this one is the items' columns, as in ``Item``.
_COLUMNS = 7
_BODY = Item._fields.index("body")


def without_bodies(record: Record) -> bytes:
    """The encoded record, with every body in it replaced by none. Everything else stays as it is.

    >>> from resourcelease.model.eventdata import EventType
    >>> from resourcelease.model.ops import Call
    >>> items = ItemsData(1, ItemColumns(2, "table", ["a", "b"], body=[b"secret", None]).packed())
    >>> record = Record(EventType.ENQUEUE, items, call=Call("jobs"), count=2)
    >>> b"secret" in record.encode(), b"secret" in without_bodies(record)
    (True, False)
    """
    data = record.data
    if isinstance(data, ItemsData):
        columns = ItemColumns.unpacked(data.columns)
        if not columns.body:
            return record.encoded or record.encode()
        return _with(record, data._replace(columns=columns._replace(body=None).packed()))
    if isinstance(data, (DrainData, RestoreData)) and data.page:
        return _with(record, data._replace(page=_page_without(data.page)))
    return record.encoded or record.encode()


def _with(record: Record, data: Any) -> bytes:
    twin = Record(record.type, data, call=record.call, count=record.count, answer=record.answer)
    twin.sequence, twin.index, twin.term = record.sequence, record.index, record.term
    twin.clock_ms, twin.wall_ms, twin.pending, twin.active = (
        record.clock_ms,
        record.wall_ms,
        record.pending,
        record.active,
    )
    return twin.encode()


def _page_without(page: bytes) -> bytes:
    """The page with a digest over what is left of it, so that it is a page still."""
    content: Any = msgpack.unpackb(msgpack.unpackb(page)[0])
    columns = content[_COLUMNS]
    columns[_BODY] = [None] * len(columns[_BODY])
    kept = msgpack.packb(content)
    packed: bytes = msgpack.packb((kept, sha256(kept).digest()))
    return packed
