"""What the naive model remembers: plain lists of plain objects, searched from end to end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resourcelease.model.eventdata import EventType
from resourcelease.model.items import Failure, Item, LastLease
from resourcelease.model.options import DEFAULT_OPTIONS, QueueOptions
from resourcelease.model.results import Drained

PENDING, DELAYED, ACTIVE, DEAD = "pending", "delayed", "active", "dead"
FAILED, EXPIRED, GIVEN_BACK, DRAINED = "failed", "expired", "given_back", "drained"
COMPLETED, DISCARDED = "completed", "discarded"


class Row(NamedTuple):
    """What one event is about: the ownership handle, zeros where there is none."""

    sequence_id: int = 0
    attempt: int = 0
    fence: int = 0


class Handle(NamedTuple):
    """A lease as a caller names it."""

    sequence_id: int
    attempt: int
    fence: int


class Happened(NamedTuple):
    """One event, without what only people read."""

    number: int
    type: EventType
    namespace: str
    sequence_id: int
    attempt: int
    fence: int
    peer: str
    pending: int
    active: int


@dataclass(eq=False)
class Thing:
    """One item and everything that has happened to it."""

    sequence_id: int
    item: Item
    place: str
    # The number of the event that put it in line; the queue's second key.
    ticket: int
    attempt: int = 1
    # Attempts that were used up before the last redrive; they no longer count against the budget.
    forgiven: int = 0
    # When a delay is over.
    due_ms: int = 0
    # The lease, while there is one.
    fence: int = 0
    deadline_ms: int = 0
    peer: str = ""
    principal: str = ""
    # Whose lease it waits for another try after; nobody's once it has been leased, redriven or restored.
    left_by: str = ""
    last: LastLease | None = None
    failure: Failure | None = None
    # The number of the event that it died by.
    died: int = 0

    @property
    def used(self) -> int:
        """Attempts used of the budget, the present one included."""
        return self.attempt - self.forgiven

    @property
    def handle(self) -> Handle:
        """The live lease's handle."""
        return Handle(self.sequence_id, self.attempt, self.fence)

    @property
    def weight(self) -> int:
        """What it adds to an answer or a page, in bytes."""
        item, error = self.item, self.failure
        texts = [item.resource_type, item.resource_id, item.partition_key, item.payload_encoding, item.request_id]
        texts += [error.code, error.message] if error else []
        for names in (item.attributes, error.metadata if error else None):
            texts += [text for pair in (names or {}).items() for text in pair]
        return 64 + len(item.body or b"") + sum(len((text or "").encode()) for text in texts)

    def lasted(self, handle: Handle) -> str:
        """How the last lease ended (before the present one, if there is one), if this is its handle."""
        if self.last is None or (self.last.attempt, self.last.fence) != handle[1:]:
            return ""
        return self.last.outcome


class Settled(NamedTuple):
    """An item that is gone, and by which lease, remembered for late acks."""

    handle: Handle
    outcome: str


@dataclass(eq=False)
class SettledBlock:
    """The settled among so many consecutive ids, and when the last of them was added."""

    number: int
    written_ms: int
    settled: list[Settled] = field(default_factory=list)


class EndedRequest(NamedTuple):
    """The request id of an item that is gone."""

    request_id: str
    sequence_id: int
    outcome: str
    forget_ms: int


@dataclass(eq=False)
class Effect:
    """A recorded side effect; ``result`` None while its runner is at it."""

    id: str
    handle: Handle
    result: bytes | None = None


class PageItem(NamedTuple):
    """An item inside a drained page; ``wait_ms`` is what remained of its delay."""

    sequence_id: int
    item: Item
    attempt: int
    forgiven: int
    wait_ms: int
    last: LastLease | None
    failure: Failure | None


class Page(NamedTuple):
    """What restore needs to know of a drained page."""

    cluster: str
    namespace: str
    bundle: str
    number: int
    highest_fence: int
    items: Sequence[PageItem]

    @property
    def name(self) -> tuple[str, str, str, int]:
        """By what it is known where it has been restored."""
        return self[:4]


@dataclass(eq=False)
class Bundle:
    """How far a drain has come, and the newest page until it is known to have arrived."""

    id: str
    next_number: int = 0
    kept: Drained | None = None


@dataclass(eq=False)
class Space:
    """One namespace."""

    name: str
    options: QueueOptions = DEFAULT_OPTIONS
    paused: bool = False
    backpressure: bool = False
    things: list[Thing] = field(default_factory=list)
    last_id: int = 0
    # Counts of items that came and went.
    enqueued: int = 0
    restored: int = 0
    completed: int = 0
    drained: int = 0
    discarded: int = 0
    settled_blocks: list[SettledBlock] = field(default_factory=list)
    ended_requests: list[EndedRequest] = field(default_factory=list)
    held_until: dict[str, int] = field(default_factory=dict)
    # When each peer was heard of here.
    heard_ms: dict[str, int] = field(default_factory=dict)
    gates: dict[str, int] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)
    restored_pages: list[tuple[str, str, str, int]] = field(default_factory=list)

    def pending(self) -> list[Thing]:
        """The queue, in the order in which it is served."""
        return sorted(self._in(PENDING), key=lambda thing: (-thing.item.priority, thing.ticket))

    def delayed(self) -> list[Thing]:
        """What waits for a time, the earliest first."""
        return sorted(self._in(DELAYED), key=lambda thing: (thing.due_ms, thing.ticket))

    def active(self) -> list[Thing]:
        """What is leased, by fence."""
        return sorted(self._in(ACTIVE), key=lambda thing: thing.fence)

    def dead(self) -> list[Thing]:
        """The dead letters, in the order they died."""
        return sorted(self._in(DEAD), key=lambda thing: thing.died)

    def find(self, sequence_id: int) -> Thing | None:
        """The item, wherever it is."""
        return next((thing for thing in self.things if thing.sequence_id == sequence_id), None)

    def unsettled(self) -> int:
        """What counts against the capacity."""
        return sum(thing.place != DEAD for thing in self.things)

    def _in(self, place: str) -> list[Thing]:
        return [thing for thing in self.things if thing.place == place]


@dataclass(eq=False)
class Peer:
    """A worker, as far as its calls tell."""

    name: str
    heard_ms: int
    disconnected: str = ""


class Answer(NamedTuple):
    """What a call was told, for its retries."""

    key: tuple[str, str, str]
    take: int
    kind: type
    result: Any
    at_ms: int
    accepted: bool
