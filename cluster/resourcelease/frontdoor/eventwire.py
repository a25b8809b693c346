"""Events as messages, one by one; see ``eventbytes`` for many at once."""

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.model.events import Event

__all__ = ["message_of"]


def message_of(event: Event, *, with_body: bool) -> v1.Event:
    """One event, spelled out."""
    told = v1.Event(
        sequence_number=event.sequence_number,
        type=int(event.type),  # type: ignore[arg-type]
        occurred_at=event.occurred_at_ms,
        lease_clock=event.lease_clock_ms,
        raft_index=event.raft_index,
        raft_term=event.raft_term,
        namespace=event.namespace,
        shard_id=event.shard_id,
        peer_id=event.peer_id,
        principal=event.principal,
        queue=v1.Depth(pending=event.pending, active=event.active),
        metadata=event.metadata,
    )
    if event.handle is not None:
        sequence_id, attempt, fence = event.handle
        told.handle.CopyFrom(v1.Handle(sequence_id=sequence_id, attempt=attempt, lease_id=fence))
    if event.payload is not None:
        told.payload.CopyFrom(answers.payload(event.payload, with_body=with_body))
    if event.error is not None:
        code, message, metadata = event.error
        told.error.CopyFrom(v1.Failure(code=code, message=message, metadata=metadata or {}))
    return told
