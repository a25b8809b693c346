"""Events as the bytes that subscribers receive: what the events of a record share is encoded once.

A message may be put together from encoded parts, in any order, and fields of a submessage may come in pieces; both are
rules of the protobuf encoding. What comes out is equal, as a message, to what ``message_of`` makes one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.frontdoor.eventwire import message_of
from resourcelease.frontdoor.varint import varint
from resourcelease.model.eventdata import FailuresData, GrantsData, ItemsData
from resourcelease.model.events import Record
from resourcelease.model.items import Item, ItemColumns

__all__ = ["encoded", "response"]

# Keys of fields: number and kind. SubscribeResponse.events; Event.sequence_number, handle and payload.
_EVENT, _SEQUENCE, _HANDLE, _PAYLOAD = b"\x0a", b"\x08", b"\x4a", b"\x62"
_ITEM_ID, _ATTEMPT, _FENCE = b"\x08", b"\x10", b"\x18"
_BODY, _BODY_SIZE = b"\x1a", b"\x50"


def encoded(record: Record, *, with_bodies: bool) -> list[bytes]:
    """Every event of a record, each as a field of a ``SubscribeResponse``."""
    data: Any = record.data
    if isinstance(data, ItemsData):
        return _items(record, data, with_bodies)
    ids = getattr(data, "sequence_ids", None)
    each_its_own = isinstance(getattr(data, "due_ms", None), list)
    if not ids or each_its_own or (isinstance(data, FailuresData) and data.failures):
        told = (message_of(event, with_body=with_bodies).SerializeToString() for event in record.events())
        return [_EVENT + varint(len(message)) + message for message in told]
    fences = getattr(data, "fences", None)
    if isinstance(data, GrantsData):
        fences = range(data.first_fence, data.first_fence + record.count)
    attempts = data.attempts
    tails = [] if isinstance(attempts, int) else [_small(_ATTEMPT, attempt) for attempt in attempts]
    if not tails:
        tails = [_small(_ATTEMPT, attempts)] * record.count
    if fences:
        tails = [tail + _small(_FENCE, fence) for tail, fence in zip(tails, fences, strict=True)]
    return list(_joined(record, ids, tails))


def response(events: Sequence[bytes], next_sequence: int, head_sequence: int) -> v1.SubscribeResponse:
    """The message of such events."""
    answer = v1.SubscribeResponse.FromString(b"".join(events))
    answer.next_sequence, answer.head_sequence = next_sequence, head_sequence
    return answer


def _joined(
    record: Record, ids: Sequence[int], tails: Sequence[bytes], payloads: Sequence[bytes] = ()
) -> Iterator[bytes]:
    shared = message_of(record.heading(), with_body=False).SerializeToString()
    sequence, number = record.sequence, varint
    for place, (item, tail) in enumerate(zip(ids, tails, strict=True)):
        handle = b"".join((_ITEM_ID, number(item), tail))
        told = b"".join((shared, _SEQUENCE, number(sequence + place), _HANDLE, number(len(handle)), handle))
        if payloads:
            told = b"".join((told, _PAYLOAD, number(len(payloads[place])), payloads[place]))
        yield b"".join((_EVENT, number(len(told)), told))


def _small(key: bytes, number: int) -> bytes:
    return key + varint(number) if number else b""


def _items(record: Record, data: ItemsData, with_bodies: bool) -> list[bytes]:
    columns = ItemColumns.unpacked(data.columns)
    lists = {name: column for name, column in zip(Item._fields, columns[1:9], strict=False) if type(column) is list}
    # The fields that all items have in common; "" and None are left out of a message.
    common = [None if type(column) is list else column for column in columns[1:9]]
    parts = [[answers.payload(common, with_body=with_bodies).SerializeToString()] * record.count]
    for name, column in lists.items():
        parts.append(_column(name, column, with_bodies=with_bodies))
    payloads = [b"".join(pieces) for pieces in zip(*parts, strict=True)]
    ids = range(data.first_id, data.first_id + record.count)
    return list(_joined(record, ids, [_small(_ATTEMPT, 1)] * record.count, payloads))


def _column(name: str, values: Sequence[Any], *, with_bodies: bool) -> list[bytes]:
    if name == "body":
        return [_body(value, with_bodies=with_bodies) for value in values]
    if name == "attributes":
        return [v1.ItemPayload(attributes=value or {}).SerializeToString() for value in values]
    field = v1.ItemPayload.DESCRIPTOR.fields_by_name[name]
    if name == "priority":
        # Told also where it is 0: its presence is.
        return [varint(field.number << 3) + varint(value) for value in values]
    key = varint(field.number << 3 | 2)
    text: Callable[[str], bytes] = str.encode
    told = (text(value) if value else b"" for value in values)
    return [key + varint(len(one)) + one if one else b"" for one in told]


def _body(value: bytes | None, *, with_bodies: bool) -> bytes:
    if not value:
        return b""
    size = varint(len(value))
    told = _BODY_SIZE + size
    return b"".join((told, _BODY, size, value)) if with_bodies else told
