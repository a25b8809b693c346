"""The state: what the fold of the events adds up to. Plain data; the rules stand in the handlers and in ``fold``."""

from collections import OrderedDict
from typing import Any, NamedTuple

from resourcelease.machine.agenda import Delays, Hold, Leases
from resourcelease.machine.answers import Answers
from resourcelease.machine.items import BARE_WEIGHT, Items
from resourcelease.machine.leases import LeaseTable
from resourcelease.machine.ready import ReadyQueue
from resourcelease.machine.settled import Gone, Settled
from resourcelease.machine.window import Window
from resourcelease.model.items import Failure, LastLease
from resourcelease.model.options import DEFAULT_OPTIONS, QueueOptions

__all__ = ["Bundle", "Effect", "Gone", "History", "Namespace", "Peer", "Presence", "Segment", "State", "Version"]

# An item is a plain tuple in the order of ``model.items.Item``; these are the places the machine looks at.
RESOURCE_TYPE, RESOURCE_ID, PARTITION_KEY, PAYLOAD_ENCODING, ATTRIBUTES = range(5)
BODY, REQUEST_ID, PRIORITY = 5, 6, 7


def weight(item: tuple[Any, ...], error: Failure | None) -> int:
    """The bytes of an item on the wire, about: what bounds grants and pages."""
    total = BARE_WEIGHT + len(item[BODY] or b"")
    for place in (RESOURCE_TYPE, RESOURCE_ID, PARTITION_KEY, PAYLOAD_ENCODING, REQUEST_ID):
        if item[place]:
            total += _utf8(item[place])
    if item[ATTRIBUTES]:
        total += sum(_utf8(name) + _utf8(text) for name, text in item[ATTRIBUTES].items())
    if error is not None:
        total += _utf8(error.code) + _utf8(error.message)
        if error.metadata:
            total += sum(_utf8(name) + _utf8(text) for name, text in error.metadata.items())
    return total


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class History:
    """What has happened to an item beyond its enqueue; an item that was never leased twice has none."""

    __slots__ = ("attempt", "awaited_from", "budget_from", "last", "last_error", "redrives", "ticket")

    def __init__(self) -> None:
        # The attempt that is running or comes next.
        self.attempt = 1
        # The attempt that the budget counts from: 1, or the first one after a redrive.
        self.budget_from = 1
        # The place in line, if it is no longer the one the item came with; 0 otherwise.
        self.ticket = 0
        self.last: LastLease | None = None
        self.last_error: Failure | None = None
        self.redrives = 0
        # The peer whose pending reassignments count this item, while it waits; "" if none does.
        self.awaited_from = ""

    def packed(self) -> list[Any]:
        """As a list of plain values, for rows and pages."""
        lived = [self.attempt, self.budget_from, self.last, self.last_error, self.redrives]
        return [*lived, self.ticket, self.awaited_from]

    @classmethod
    def unpacked(cls, values: list[Any]) -> "History":
        """From such a list."""
        history = cls()
        history.attempt, history.budget_from, last, error, history.redrives, *here = values
        history.last = None if last is None else LastLease._make(last)
        history.last_error = None if error is None else Failure._make(error)
        history.ticket, history.awaited_from = here
        return history


class Segment(NamedTuple):
    """The stretch of the log that is open: where it began, what it has come to, and the chain before it."""

    first_sequence: int
    size_bytes: int
    clock_ms: int
    chain: bytes


class Version(NamedTuple):
    """A version gate; ``order`` is the event that fixed it."""

    version: int
    order: int


class Bundle(NamedTuple):
    """A bundle that is being drained: the number of its newest page, and that page until the next is asked for."""

    order: int
    number: int
    page: bytes
    size: int
    more: bool


class Effect(NamedTuple):
    """An effect: its runner, and the result once there is one."""

    order: int
    sequence_id: int
    attempt: int
    fence: int
    finished: bool
    result: bytes


class Presence:
    """What one peer does in one namespace."""

    __slots__ = ("active", "heard_ms", "held_until_ms")

    def __init__(self) -> None:
        self.active = 0
        # Its leases here end no earlier: the last heartbeat of the peer itself.
        self.held_until_ms = 0
        self.heard_ms = 0


class Peer:
    """One peer, as the events tell of it."""

    __slots__ = ("at", "disconnected", "heard_ms", "heard_order", "joined_order", "name", "reassignments")

    def __init__(self, name: str, joined_order: int) -> None:
        self.name = name
        self.joined_order = joined_order
        self.heard_ms = 0
        # The sequence number of the event that heard it last: the order in which peers are forgotten.
        self.heard_order = joined_order
        # Why it is disconnected, or "".
        self.disconnected = ""
        self.reassignments = 0
        self.at: dict[str, Presence] = {}

    def present(self, namespace: str) -> Presence:
        """What it does in a namespace, noted from now on."""
        presence = self.at.get(namespace)
        if presence is None:
            presence = self.at[namespace] = Presence()
        return presence

    @property
    def active(self) -> int:
        """The leases it holds, in all namespaces."""
        return sum(presence.active for presence in self.at.values())


class Namespace:
    """One queue."""

    __slots__ = (
        "backpressure",
        "bundles",
        "completed",
        "dead",
        "delayed",
        "discarded",
        "drained",
        "effects",
        "ended_requests",
        "enqueued",
        "history",
        "items",
        "leases",
        "name",
        "next_id",
        "number",
        "options",
        "paused",
        "ready",
        "redriven",
        "requests",
        "restored",
        "restored_pages",
        "settled",
        "touched_keyed",
        "versions",
    )

    def __init__(self, name: str, number: int = 0, options: QueueOptions = DEFAULT_OPTIONS) -> None:
        self.name = name
        # From 1, in the order of creation.
        self.number = number
        self.options = options
        self.paused = False
        self.backpressure = False
        self.next_id = 1

        self.items = Items()
        self.history: dict[int, History] = {}
        # An item's id is in exactly one of these four.
        self.ready = ReadyQueue()
        self.delayed: dict[int, tuple[int, int]] = {}  # (due on the lease clock, ticket), by ticket
        self.leases = LeaseTable()
        self.dead: OrderedDict[int, tuple[int, str]] = OrderedDict()  # (order of death, cause)

        # Ids by request id: of items that are here, and of those that ended, negative if by being drained.
        self.requests: dict[str, int] = {}
        self.ended_requests: Window[str, int] = Window()
        self.settled = Settled()
        self.bundles: OrderedDict[str, Bundle] = OrderedDict()
        self.restored_pages: OrderedDict[str, int] = OrderedDict()
        self.versions: dict[str, Version] = {}
        self.effects: OrderedDict[str, Effect] = OrderedDict()

        self.enqueued = self.restored = self.completed = self.drained = self.discarded = self.redriven = 0

        # What has changed since the rows were last taken, beside items: by kind and order, with their names.
        self.touched_keyed: dict[tuple[str, int], str] = {}

    @property
    def live(self) -> int:
        """Items that are not settled; what the capacity bounds."""
        return self.ready.size + len(self.delayed) + len(self.leases)

    def attempt_of(self, sequence_id: int) -> int:
        """The attempt that runs or comes next."""
        history = self.history.get(sequence_id)
        return 1 if history is None else history.attempt

    def ticket_of(self, sequence_id: int) -> int:
        """Where a pending item stands in line."""
        history = self.history.get(sequence_id)
        return (history.ticket if history else 0) or self.items.lead_of(sequence_id) + sequence_id

    def within(self, sequence_ids: list[int], max_bytes: int) -> list[int]:
        """As many of the ids, from the first on, as weigh no more than that together; one at least."""
        most = self.items.weigh_at_most(sequence_ids)
        if most is not None and most <= max_bytes:
            return sequence_ids
        total = 0
        for place, (sequence_id, row) in enumerate(zip(sequence_ids, self.items.many(sequence_ids), strict=True)):
            history = self.history.get(sequence_id)
            total += weight(row, history.last_error if history else None)
            if total > max_bytes and place:
                return sequence_ids[:place]
        return sequence_ids

    def historied(self, sequence_id: int) -> History:
        """The item's history, begun if it had none."""
        history = self.history.get(sequence_id)
        if history is None:
            history = self.history[sequence_id] = History()
            self.items.single_out(sequence_id)
        return history


class State:
    """Everything, and the position in the log that it stands for."""

    __slots__ = (
        "agenda",
        "answers",
        "chain",
        "clock_ms",
        "cluster_id",
        "delays",
        "entry_version",
        "fence",
        "index",
        "namespaces",
        "peers",
        "segment",
        "sequence",
        "term",
        "touched_namespaces",
        "touched_peers",
        "wall_ms",
    )

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        # The position.
        self.index = self.term = self.clock_ms = self.wall_ms = 0
        # The last sequence number given to an event, and the last fence given to a lease.
        self.sequence = self.fence = 0
        # The digest over all encoded events so far.
        self.chain = bytes(32)
        self.segment = Segment(1, 0, 0, self.chain)
        self.namespaces: dict[str, Namespace] = {}
        # In the order in which they were last heard.
        self.peers: OrderedDict[str, Peer] = OrderedDict()
        self.answers = Answers()
        # Of the entry that is being applied. It is told by the entry, and so no part of the rows.
        self.entry_version = 1
        # Derived from the rest: what falls due when.
        self.agenda = Leases()
        self.delays = Delays()
        self.touched_namespaces: dict[str, None] = {}
        self.touched_peers: dict[int, None] = {}

    def lease_end_ms(self, hold: Hold) -> int:
        """When the leases of a hold end: at its deadline, or later if its owner's own heartbeat says so."""
        peer = self.peers.get(hold.peer)
        presence = peer.at.get(hold.namespace) if peer else None
        return max(hold.deadline_ms, presence.held_until_ms) if presence else hold.deadline_ms
