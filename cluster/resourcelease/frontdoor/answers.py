"""What the machine answers, as callers are told it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from resourcelease import v1
from resourcelease.frontdoor.refusals import item_error
from resourcelease.frontdoor.varint import varint
from resourcelease.machine.views import QueueView
from resourcelease.model.errors import Refusal
from resourcelease.model.items import Failure, LastLease
from resourcelease.model.results import Acked, Enqueued, Granted

__all__ = [
    "OUTCOMES",
    "acked",
    "depth_of",
    "enqueued",
    "failure",
    "leases",
    "packed_leases",
    "payload",
]

OUTCOMES: "Mapping[str, v1.LeaseOutcome.ValueType]" = {
    "failed": v1.LeaseOutcome.LEASE_OUTCOME_FAILED,
    "expired": v1.LeaseOutcome.LEASE_OUTCOME_EXPIRED,
    "given_back": v1.LeaseOutcome.LEASE_OUTCOME_GIVEN_BACK,
    "drained": v1.LeaseOutcome.LEASE_OUTCOME_DRAINED,
}
_R = TypeVar("_R")
_WORTH_PACKING = 4


def depth_of(queue: QueueView | None) -> v1.Depth:
    """A namespace's unsettled items; of one that is not there, none."""
    if queue is None:
        return v1.Depth()
    return v1.Depth(pending=queue.pending, active=queue.active, delayed=queue.delayed)


def enqueued(result: Enqueued, *, packed: bool = False) -> v1.EnqueueResponse:
    """A response with one result an item, or the first id where that is enough, and nothing else yet."""
    if not result.refused and not result.duplicates:
        if packed and isinstance(result.sequence_ids, range):
            return v1.EnqueueResponse(first_sequence_id=result.sequence_ids[0])
        # Put together from parts: a message an item would cost more than all else that is done for it here.
        ids = [varint(i) for i in result.sequence_ids]
        lengths = [len(each) for each in ids]
        heads = {length: bytes((0x12, length + 3, 0x0A, length + 1, 0x08)) for length in set(lengths)}
        told = b"".join([heads[length] + each for length, each in zip(lengths, ids, strict=True)])
        return v1.EnqueueResponse.FromString(told)
    return v1.EnqueueResponse(results=_each_enqueued(result))


def _each_enqueued(result: Enqueued) -> list[v1.EnqueueResult]:
    known = frozenset(result.duplicates)
    return [
        v1.EnqueueResult(error=item_error(result.refused[place]))
        if place in result.refused
        else v1.EnqueueResult(enqueued=v1.Enqueued(sequence_id=i, duplicate=place in known))
        for place, i in enumerate(result.sequence_ids)
    ]


def leases(granted: Granted, key: bytes) -> bytes:
    """Encoded, one lease an item with all that its holder needs, each behind ``key``: as a list of a message.

    Put together from parts, for the reason given above.
    """
    rows: Sequence[tuple[Any, ...]] = granted.rows
    before = granted.before
    found: list[bytes] = []
    shared = b"\x18" + varint(granted.deadline_ms) + b"\x20" + varint(granted.left_ms) + b"\x28"
    # Items that came together have this in common.
    enqueued_at, stamp = 0, shared + b"\0"
    columns = zip(granted.sequence_ids, granted.attempts, granted.fences, rows, strict=True)
    for place, (sequence_id, attempt, fence, row) in enumerate(columns):
        if row[8] != enqueued_at:
            enqueued_at = row[8]
            stamp = shared + varint(max(enqueued_at, 0))
        handle = b"\x08%b\x10%b\x18%b" % (varint(sequence_id), varint(attempt), varint(fence))
        item = _encoded(row)
        lease = b"\x0a%b%b\x12%b%b%b" % (varint(len(handle)), handle, varint(len(item)), item, stamp)
        if place in before:
            lease += _before(sequence_id, *before[place])
        found += (key, varint(len(lease)), lease)
    return b"".join(found)


def packed_leases(granted: Granted) -> v1.PackedLeases | None:
    """Leases as columns; None where they cannot be said so, or are so few that it would cost more."""
    if granted.before or len(granted.sequence_ids) < _WORTH_PACKING:
        return None
    columns = list(zip(*granted.rows, strict=True))
    resource_type, resource_id, partition_key, encoding, attributes, body, request_id, priority, at_ms, _ = columns
    if any(attributes):
        return None
    return v1.PackedLeases(
        handles=v1.PackedHandles(
            sequence_ids=granted.sequence_ids, attempts=_values(granted.attempts), lease_ids=granted.fences
        ),
        items=v1.PackedItems(
            count=len(granted.sequence_ids),
            resource_types=_values(resource_type),
            resource_ids=resource_id,
            bodies=_values(body, b""),
            priorities=_values(priority),
            request_ids=_values(request_id, ""),
            partition_keys=_values(partition_key, ""),
            payload_encodings=_values(encoding, ""),
        ),
        deadline_ms=granted.deadline_ms,
        remaining_ms=granted.left_ms,
        enqueued_at_ms=_values(at_ms),
    )


def _values(column: Sequence[Any], empty: Any = None) -> Sequence[Any]:
    """A column of a packed list: none where it is empty throughout, one where all are the same."""
    if column.count(column[0]) == len(column):
        return [column[0]] if column[0] or empty is None else []
    return column if empty is None or all(column) else [value or empty for value in column]


def _encoded(row: Sequence[Any]) -> bytes:
    """The same as ``payload``."""
    resource_type, resource_id, partition_key, encoding, attributes, body, request_id, priority = row[:8]
    if attributes or priority < 0:
        return payload(row).SerializeToString()
    kind, name, number = resource_type.encode(), resource_id.encode(), varint
    told = b"\x0a%b%b\x12%b%b\x20%b" % (number(len(kind)), kind, number(len(name)), name, number(priority))
    if body:
        size = number(len(body))
        told = b"%b\x50%b\x1a%b%b" % (told, size, size, body)
    if request_id or partition_key or encoding:
        for tag, text in ((b"\x32", request_id), (b"\x3a", partition_key), (b"\x42", encoding)):
            if text:
                value = text.encode()
                told += tag + number(len(value)) + value
    return told


def _before(sequence_id: int, last: LastLease, error: Failure | None) -> bytes:
    lease = v1.Lease()
    lease.last_handle.CopyFrom(v1.Handle(sequence_id=sequence_id, attempt=last.attempt, lease_id=last.fence))
    lease.last_peer_id = last.peer
    lease.last_outcome = OUTCOMES.get(last.outcome, v1.LeaseOutcome.LEASE_OUTCOME_UNSPECIFIED)
    if error is not None:
        lease.last_error.CopyFrom(failure(error))
    return lease.SerializeToString()


def payload(row: Sequence[Any], *, with_body: bool = True) -> v1.ItemPayload:
    """An item, which is a tuple in the order of ``Item``."""
    resource_type, resource_id, key, encoding, attributes, body, request_id, priority = row[:8]
    told = v1.ItemPayload(resource_type=resource_type, resource_id=resource_id, priority=priority)
    if body:
        told.body_size = len(body)
        if with_body:
            told.body = body
    if request_id:
        told.request_id = request_id
    if key:
        told.partition_key = key
    if encoding:
        told.payload_encoding = encoding
    if attributes:
        told.attributes.update(attributes)
    return told


def failure(error: Failure) -> v1.Failure:
    """What a worker said about an attempt."""
    return v1.Failure(code=error.code, message=error.message, metadata=error.metadata or {})


def acked(result: Acked, good: _R, bad: Callable[[v1.ItemError], _R], field: str) -> list[_R]:
    """One result a handle; ``field`` is the path of a handle, with {} for its place."""
    refused: Mapping[int, Refusal] = result.refused
    if not refused:
        return [good] * result.total
    return [
        bad(item_error(refused[place], field.format(place))) if place in refused else good
        for place in range(result.total)
    ]
