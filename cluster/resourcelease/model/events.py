"""Events: what the log is made of.

Inside, events travel as *records*: all the events that one step produced of one type, as columns under one header. A
record of n items holds n events with consecutive sequence numbers. ``Record.events`` spells them out one by one.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgpack

from resourcelease.model.errors import CorruptLog
from resourcelease.model.eventdata import (
    DATA,
    BeatsData,
    Data,
    DrainData,
    EffectData,
    EventType,
    FailuresData,
    GrantsData,
    ItemsData,
    PeerData,
    RejectionData,
    check_data,
)
from resourcelease.model.items import Item, ItemColumns, item_rows
from resourcelease.model.limits import DEFAULT_NAMESPACE
from resourcelease.model.ops import Call

__all__ = ["RECORD_VERSION", "Event", "EventHandle", "Record", "shard_of"]

RECORD_VERSION = 1
_MAX_NUMBER = 1 << 62

_pack = msgpack.Packer(autoreset=True).pack


class EventHandle(NamedTuple):
    """The ownership handle an event is about; ``lease_id`` is the fence, 0 where the event has none."""

    sequence_id: int
    attempt: int
    lease_id: int


class Event(NamedTuple):
    """One event of the log, spelled out."""

    sequence_number: int
    type: EventType
    occurred_at_ms: int
    lease_clock_ms: int
    raft_index: int
    raft_term: int
    namespace: str
    shard_id: str
    handle: EventHandle | None
    peer_id: str
    principal: str
    # The item, in ENQUEUE events.
    payload: Item | None
    # (code, message, metadata) of a failure, or (reason, message, None) of a refusal.
    error: tuple[str, str, Mapping[str, str] | None] | None
    # The depth of the queue after the step that the event belongs to.
    pending: int
    active: int
    metadata: Mapping[str, str]


class Record:
    """All events of one type from one step: a header, and ``data`` in columns.

    ``answer`` is what is to be remembered under the operation id: None for nothing, else [take, op code, content],
    where content True means that the columns themselves say it.
    """

    __slots__ = (
        "active",
        "answer",
        "call",
        "clock_ms",
        "count",
        "data",
        "encoded",
        "index",
        "pending",
        "sequence",
        "term",
        "type",
        "unpacked",
        "wall_ms",
    )

    def __init__(
        self, type: EventType, data: Data, *, call: Call, count: int = 1, answer: list[Any] | None = None
    ) -> None:
        self.type = type
        self.data = data
        # Who caused it, and where; its ``take`` is not part of the record.
        self.call = call
        self.count = count
        self.answer = answer
        self.sequence = self.index = self.term = self.clock_ms = self.wall_ms = self.pending = self.active = 0
        self.encoded = b""
        # The columns of an ENQUEUE, where whoever made the record has them at hand.
        self.unpacked: ItemColumns | None = None

    @property
    def namespace(self) -> str:
        """The namespace the events belong to."""
        return self.call.namespace

    @property
    def peer(self) -> str:
        """The peer that caused them, or whose lease expired."""
        return self.call.peer

    def encode(self) -> bytes:
        """The record as it stands in the log."""
        namespace, peer, principal, operation_id, _, metadata = self.call
        encoded: bytes = _pack(
            (
                RECORD_VERSION,
                self.type,
                self.sequence,
                self.count,
                self.index,
                self.term,
                self.clock_ms,
                self.wall_ms,
                namespace,
                peer,
                principal,
                operation_id,
                metadata,
                self.pending,
                self.active,
                self.answer,
                self.data,
            )
        )
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> "Record":
        """The record back again; ``CorruptLog`` if it is none of a version known here."""
        try:
            fields = msgpack.unpackb(encoded)
            if type(fields[0]) is not int or fields[0] != RECORD_VERSION:
                raise CorruptLog(f"a record of another version than {RECORD_VERSION}, which this release reads")
            (_, number, sequence, count, index, term, clock_ms, wall_ms) = fields[:8]
            (namespace, peer, principal, operation_id, metadata, pending, active, answer, columns) = fields[8:]
            numbers = (number, sequence, count, index, term, clock_ms, wall_ms, pending, active)
            if not all(type(value) is int and 0 <= value <= _MAX_NUMBER for value in numbers):
                raise ValueError("a number of the header is none")
            if not all(type(value) is str for value in (namespace, peer, principal, operation_id)):
                raise ValueError("a name of the header is none")
            type_ = EventType(number)
            call = Call(namespace, peer, principal, operation_id, 0, metadata)
            record = cls(type_, DATA[type_](*columns), call=call, count=count, answer=answer)
            check_data(record.data, count)
        except (ValueError, TypeError, LookupError) as error:
            raise CorruptLog(f"not an event record: {error}") from error
        record.sequence, record.index, record.term = sequence, index, term
        record.clock_ms, record.wall_ms, record.pending, record.active = clock_ms, wall_ms, pending, active
        record.encoded = encoded
        return record

    def heading(self) -> Event:
        """What the events of this record share; the number is that of the first."""
        told: dict[str, str] = dict(self.call.metadata or {}) | self._told()
        if self.call.operation_id:
            told["operation_id"] = self.call.operation_id
        return Event(
            sequence_number=self.sequence,
            type=self.type,
            occurred_at_ms=self.wall_ms,
            lease_clock_ms=self.clock_ms,
            raft_index=self.index,
            raft_term=self.term,
            namespace=self.namespace,
            shard_id=shard_of(self.namespace),
            handle=None,
            peer_id=self.data.peer if isinstance(self.data, PeerData) else self.peer,
            principal=self.call.principal,
            payload=None,
            error=None,
            pending=self.pending,
            active=self.active,
            metadata=told,
        )

    def events(self) -> Iterator[Event]:
        """The events of this record, one by one."""
        heading = self.heading()
        # Of the columns only this one is told in words; an event has its own value, and not those of all.
        dues: Any = getattr(self.data, "due_ms", None)
        each = dues if isinstance(dues, list) else None
        for place, (handle, payload, error) in enumerate(self._rows()):
            metadata = heading.metadata
            if each is not None and each[place]:
                metadata = {**metadata, "due_ms": str(each[place])}
            # Fields in their order: a call with names costs as much as all else here together.
            yield Event(
                self.sequence + place, *heading[1:8], handle, *heading[9:11], payload, error, *heading[13:15], metadata
            )

    def _told(self) -> dict[str, str]:
        """What the whole record says beyond handles: deadline, cause, change and the like, as words."""
        fields = self.data._asdict()
        for column in ("sequence_ids", "attempts", "fences", "first_fence", "first_id", "columns", "failures"):
            fields.pop(column, None)
        for column in ("page", "places", "message", "peer", "sequence_id", "attempt", "fence"):
            fields.pop(column, None)
        if isinstance(self.data, EffectData) and self.data.kind == "finish":
            del fields["value"]
        # One for each event: ``events`` adds it.
        if isinstance(fields.get("due_ms"), list):
            del fields["due_ms"]
        if isinstance(self.data, DrainData) and not self.data.more:
            del fields["more"]
        told = {name: _words(value) for name, value in fields.items() if not _says_nothing(value)}
        if isinstance(self.data, BeatsData) and not self.data.sequence_ids:
            told["all_of_peer"] = "true"
        return told

    def _rows(self) -> Iterator[tuple[EventHandle | None, Item | None, tuple[str, str, Any] | None]]:
        data = self.data
        if isinstance(data, ItemsData):
            rows = item_rows(ItemColumns.unpacked(data.columns), self.wall_ms, self.sequence - data.first_id)
            for place, row in enumerate(rows):
                yield EventHandle(data.first_id + place, 1, 0), Item._make(row), None
            return
        if isinstance(data, EffectData):
            yield EventHandle(data.sequence_id, data.attempt, data.fence) if data.fence else None, None, None
            return
        ids: list[int] | None = getattr(data, "sequence_ids", None)
        if not ids:
            yield None, None, (data.reason, data.message, None) if isinstance(data, RejectionData) else None
            return
        attempts: Any = data.attempts  # type: ignore[union-attr]
        fences: Any = getattr(data, "fences", 0)
        if isinstance(data, GrantsData):
            fences = list(range(data.first_fence, data.first_fence + self.count))
        for place, sequence_id in enumerate(ids):
            attempt = attempts if isinstance(attempts, int) else attempts[place]
            fence = fences[place] if fences else 0
            error = None
            if isinstance(data, FailuresData) and data.failures:
                error = tuple(data.failures[place if len(data.failures) > 1 else 0])
            yield EventHandle(sequence_id, attempt, fence), None, error


def shard_of(namespace: str) -> str:
    """The shard a namespace stands for: what follows the default namespace and a dot, else nothing.

    >>> shard_of("resourcelease.eu-1"), shard_of("resourcelease"), shard_of("billing")
    ('eu-1', '', '')
    """
    prefix = DEFAULT_NAMESPACE + "."
    return namespace[len(prefix) :] if namespace.startswith(prefix) else ""


def _says_nothing(value: object) -> bool:
    return value is None or value == "" or (type(value) is int and not value)


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
