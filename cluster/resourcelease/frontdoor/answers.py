"""What the machine answers, as callers are told it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from resourcelease import v1
from resourcelease.frontdoor.refusals import item_error
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
    "payload",
]

OUTCOMES: "Mapping[str, v1.LeaseOutcome.ValueType]" = {
    "failed": v1.LeaseOutcome.LEASE_OUTCOME_FAILED,
    "expired": v1.LeaseOutcome.LEASE_OUTCOME_EXPIRED,
    "given_back": v1.LeaseOutcome.LEASE_OUTCOME_GIVEN_BACK,
    "drained": v1.LeaseOutcome.LEASE_OUTCOME_DRAINED,
}
_R = TypeVar("_R")


def depth_of(queue: QueueView | None) -> v1.Depth:
    """A namespace's unsettled items; of one that is not there, none."""
    if queue is None:
        return v1.Depth()
    return v1.Depth(pending=queue.pending, active=queue.active, delayed=queue.delayed)


def enqueued(result: Enqueued) -> list[v1.EnqueueResult]:
    """One result an item."""
    if not result.refused and not result.duplicates:
        return [v1.EnqueueResult(enqueued=v1.Enqueued(sequence_id=i)) for i in result.sequence_ids]
    known = frozenset(result.duplicates)
    return [
        v1.EnqueueResult(error=item_error(result.refused[place]))
        if place in result.refused
        else v1.EnqueueResult(enqueued=v1.Enqueued(sequence_id=i, duplicate=place in known))
        for place, i in enumerate(result.sequence_ids)
    ]


def leases(granted: Granted) -> list[v1.Lease]:
    """One lease an item, with all that its holder needs."""
    deadline_ms, left_ms, before = granted.deadline_ms, granted.left_ms, granted.before
    rows: Sequence[tuple[Any, ...]] = granted.rows
    found = [
        v1.Lease(
            handle=v1.Handle(sequence_id=sequence_id, attempt=attempt, lease_id=fence),
            payload=payload(row),
            deadline_ms=deadline_ms,
            remaining_ms=left_ms,
            enqueued_at_ms=row[8],
        )
        for sequence_id, attempt, fence, row in zip(
            granted.sequence_ids, granted.attempts, granted.fences, rows, strict=True
        )
    ]
    for place, (last, error) in before.items():
        _tell_before(found[place], granted.sequence_ids[place], last, error)
    return found


def _tell_before(lease: v1.Lease, sequence_id: int, last: LastLease, error: Failure | None) -> None:
    lease.last_handle.CopyFrom(v1.Handle(sequence_id=sequence_id, attempt=last.attempt, lease_id=last.fence))
    lease.last_peer_id = last.peer
    lease.last_outcome = OUTCOMES.get(last.outcome, v1.LeaseOutcome.LEASE_OUTCOME_UNSPECIFIED)
    if error is not None:
        lease.last_error.CopyFrom(failure(error))


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
