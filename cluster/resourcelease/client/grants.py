"""What an answer says of granted leases, in either of the two forms that they travel in; read when it is asked for."""

from collections.abc import Sequence
from typing import Any

from resourcelease import v1
from resourcelease.client.lease import Acks, Lease

__all__ = ["leases_of", "leases_of_messages"]


def leases_of(answer: v1.LeaseResponse | v1.WorkLeases, acks: Acks, peer_id: str, now: float) -> list[Lease]:
    """The leases of an answer that came just now."""
    if not answer.HasField("packed"):
        return leases_of_messages(answer.leases, acks, peer_id, now)
    packed = answer.packed
    ids, fences = packed.handles.sequence_ids, packed.handles.lease_ids
    attempts = _spread(packed.handles.attempts, len(ids), 1)
    granted = _Packed(packed)
    remaining = packed.remaining_ms / 1000
    columns = zip(ids, attempts, fences, range(len(ids)), strict=True)
    return [
        Lease(sequence_id, attempt, fence, granted, place, acks, peer_id, now, remaining)
        for sequence_id, attempt, fence, place in columns
    ]


def leases_of_messages(messages: Sequence[v1.Lease], acks: Acks, peer_id: str, now: float) -> list[Lease]:
    """The same of leases that came as a message each."""
    return [
        Lease(
            message.handle.sequence_id,
            message.handle.attempt,
            message.handle.lease_id,
            _Spelled(message),
            0,
            acks,
            peer_id,
            now,
            message.remaining_ms / 1000,
        )
        for message in messages
    ]


class _Spelled:
    """One lease, as the message that it came as."""

    __slots__ = ("_message", "_payload")

    def __init__(self, message: v1.Lease) -> None:
        self._message = message
        self._payload = message.payload

    def body(self, place: int) -> bytes:
        return self._payload.body

    def resource_type(self, place: int) -> str:
        return self._payload.resource_type

    def resource_id(self, place: int) -> str:
        return self._payload.resource_id

    def payload(self, place: int) -> v1.ItemPayload:
        return self._payload

    def last_error(self, place: int) -> v1.Failure | None:
        return self._message.last_error if self._message.HasField("last_error") else None

    def enqueued_at_ms(self, place: int) -> int:
        return self._message.enqueued_at_ms


class _Packed:
    """All leases of an answer, as columns."""

    __slots__ = ("_bodies", "_ids", "_packed", "_types")

    def __init__(self, packed: v1.PackedLeases) -> None:
        self._packed = packed
        items = packed.items
        self._types = _spread(items.resource_types, items.count, "")
        self._ids = _spread(items.resource_ids, items.count, "")
        self._bodies = _spread(items.bodies, items.count, b"")

    def body(self, place: int) -> bytes:
        found: bytes = self._bodies[place]
        return found

    def resource_type(self, place: int) -> str:
        found: str = self._types[place]
        return found

    def resource_id(self, place: int) -> str:
        found: str = self._ids[place]
        return found

    def payload(self, place: int) -> v1.ItemPayload:
        items, body = self._packed.items, self._bodies[place]
        return v1.ItemPayload(
            resource_type=self._types[place],
            resource_id=self._ids[place],
            body=body,
            priority=_at(items.priorities, place, None),
            request_id=_at(items.request_ids, place, ""),
            partition_key=_at(items.partition_keys, place, ""),
            payload_encoding=_at(items.payload_encodings, place, ""),
            body_size=len(body),
        )

    def last_error(self, place: int) -> None:
        return None

    def enqueued_at_ms(self, place: int) -> int:
        found: int = _at(self._packed.enqueued_at_ms, place, 0)
        return found


def _spread(column: Sequence[Any], count: int, absent: Any) -> Sequence[Any]:
    if len(column) == count:
        return list(column)
    return [column[0] if column else absent] * count


def _at(column: Sequence[Any], place: int, absent: Any) -> Any:
    if not column:
        return absent
    return column[0] if len(column) == 1 else column[place]
