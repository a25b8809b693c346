"""Events as subscribers receive them, and which of them they asked for."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Event, Record
from resourcelease.storage.segments import Query

__all__ = ["Filter", "Spelled", "message_of"]

# Records, by the size of their encoding, whose messages are kept for the next subscriber.
_SPELLED_BYTES_MAX = 16 << 20


class Filter:
    """The wishes of a subscriber; joined by "and", the entries of one by "or"."""

    def __init__(self, request: v1.SubscribeRequest) -> None:
        self._namespaces = frozenset(request.namespaces)
        self._types = frozenset(int(each) for each in request.types)
        self._resource_types = frozenset(request.resource_types)
        self._from = request.from_sequence
        self._to = request.to_sequence
        self._bodies = request.include_bodies

    def query(self, first: int, last: int) -> Query:
        """What of the files may hold something of a stretch."""
        types = [EventType(number) for number in self._types if number in _KNOWN]
        if self._types and not types:
            # Only types of later releases: nothing here is of them.
            return Query.of(first=first, last=last, namespaces=())
        return Query.of(first=first, last=last, types=types, namespaces=self._namespaces or None)

    def until(self, last: int) -> int:
        """The earlier of an event and the last that is wanted."""
        return min(last, self._to) if self._to else last

    def wants_of(self, record: Record) -> bool:
        """Whether any event of a record may be wanted; told from its head alone."""
        if self._namespaces and record.namespace not in self._namespaces:
            return False
        return not self._types or int(record.type) in self._types

    def messages(self, record: Record, position: int) -> Iterator[tuple[int, v1.Event | None]]:
        """Each event of the record from a position on: its number, and itself if it is wanted."""
        for event in record.events():
            number = event.sequence_number
            if number < position:
                continue
            if self._to and number > self._to:
                return
            yield number, message_of(event, with_body=self._bodies) if self._wants(event) else None

    def selected(self, record: Record, position: int, spelled: "Spelled") -> Iterator[tuple[int, v1.Event | None]]:
        """The same, from messages that other subscribers may have asked for already."""
        for event in spelled.of(record, with_bodies=self._bodies)[max(0, position - record.sequence) :]:
            number = event.sequence_number
            if self._to and number > self._to:
                return
            hidden = self._resource_types and event.HasField("payload")
            wanted = not hidden or event.payload.resource_type in self._resource_types
            yield number, event if wanted else None

    def _wants(self, event: Event) -> bool:
        if not self._resource_types or event.payload is None:
            return True
        return event.payload.resource_type in self._resource_types


_KNOWN = frozenset(map(int, EventType))


class Spelled:
    """The messages of the newest records: made once for all who follow. They are only read."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], tuple[int, Sequence[v1.Event]]] = OrderedDict()
        self._bytes = 0

    def of(self, record: Record, *, with_bodies: bool) -> Sequence[v1.Event]:
        """Every event of a record."""
        key = (record.sequence, with_bodies)
        found = self._known.get(key)
        if found is None:
            messages = [message_of(event, with_body=with_bodies) for event in record.events()]
            found = self._known[key] = (len(record.encoded), messages)
            self._bytes += found[0]
            while self._bytes > _SPELLED_BYTES_MAX:
                self._bytes -= self._known.popitem(last=False)[1][0]
        return found[1]


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
