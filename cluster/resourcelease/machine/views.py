"""What an operator may look at: copies of values, never the state itself."""

from collections.abc import Iterator
from typing import NamedTuple

from resourcelease.machine.state import Namespace, Peer, State
from resourcelease.model.items import Failure, Item, LastLease
from resourcelease.model.options import QueueOptions

__all__ = ["ItemView", "PeerView", "QueueView", "held", "ids", "item", "peer", "queue"]


class QueueView(NamedTuple):
    """One namespace: what is in it now, and what has passed through it."""

    name: str
    options: QueueOptions
    paused: bool
    backpressure: bool
    pending: int
    delayed: int
    active: int
    dead: int
    enqueued: int
    restored: int
    completed: int
    drained: int
    discarded: int
    redriven: int
    next_id: int


class ItemView(NamedTuple):
    """One item. Fields that do not belong to its place are 0 or empty."""

    sequence_id: int
    item: Item
    # pending, delayed, active or dead
    place: str
    attempt: int
    priority: int
    fence: int
    peer: str
    principal: str
    deadline_ms: int
    due_ms: int
    # Why it is dead: failed or expired.
    cause: str
    last: LastLease | None
    last_error: Failure | None
    redrives: int
    # Of the budget, which begins anew with a redrive; the attempt that runs is not spent yet.
    attempts_used: int = 0


class PeerView(NamedTuple):
    """One peer; ``disconnected`` is the reason, or empty."""

    name: str
    heard_ms: int
    disconnected: str
    active: int
    reassignments: int
    # Leases by namespace.
    leases: dict[str, int]

    def healthy(self, clock_ms: int, grace_ms: int) -> bool:
        """Not disconnected, and heard of within the grace period."""
        return not self.disconnected and clock_ms - self.heard_ms <= grace_ms


def queue(ns: Namespace) -> QueueView:
    """A namespace as it is now."""
    return QueueView(
        name=ns.name,
        options=ns.options,
        paused=ns.paused,
        backpressure=ns.backpressure,
        pending=ns.ready.size,
        delayed=len(ns.delayed),
        active=len(ns.leases),
        dead=len(ns.dead),
        enqueued=ns.enqueued,
        restored=ns.restored,
        completed=ns.completed,
        drained=ns.drained,
        discarded=ns.discarded,
        redriven=ns.redriven,
        next_id=ns.next_id,
    )


def place_of(ns: Namespace, sequence_id: int) -> str:
    """In which of the four places an item is."""
    if sequence_id in ns.leases:
        return "active"
    if sequence_id in ns.delayed:
        return "delayed"
    return "dead" if sequence_id in ns.dead else "pending"


def item(state: State, ns: Namespace, sequence_id: int) -> ItemView | None:
    """An item as it is now."""
    row = ns.items.get(sequence_id)
    if row is None:
        return None
    history = ns.history.get(sequence_id)
    fence, hold = ns.leases.get(sequence_id) or (0, None)
    return ItemView(
        sequence_id=sequence_id,
        item=Item._make(row),
        place=place_of(ns, sequence_id),
        attempt=ns.attempt_of(sequence_id),
        priority=Item._make(row).priority,
        fence=fence,
        peer=hold.peer if hold else "",
        principal=hold.principal if hold else "",
        deadline_ms=state.lease_end_ms(hold) if hold else 0,
        due_ms=ns.delayed.get(sequence_id, (0, 0))[0],
        cause=ns.dead.get(sequence_id, (0, ""))[1],
        last=history.last if history else None,
        last_error=history.last_error if history else None,
        redrives=history.redrives if history else 0,
        attempts_used=(history.attempt - history.budget_from if history else 0) + (sequence_id in ns.dead),
    )


def peer(peer: Peer) -> PeerView:
    """A peer as it is now."""
    leases = {name: presence.active for name, presence in peer.at.items() if presence.active}
    return PeerView(peer.name, peer.heard_ms, peer.disconnected, peer.active, peer.reassignments, leases)


def held(ns: Namespace, name: str) -> list[tuple[int, int, int]]:
    """The leases of one peer: sequence id, attempt and fence."""
    return [(i, ns.attempt_of(i), fence) for i, (fence, hold) in ns.leases.items() if hold.peer == name]


def ids(state: State, namespace: str, place: str) -> Iterator[int]:
    """The ids in one place, in its order."""
    ns = state.namespaces.get(namespace)
    if ns is None:
        return
    if place == "pending":
        yield from ns.ready
    elif place == "delayed":
        yield from (i for _, i in sorted((when, i) for i, when in ns.delayed.items()))
    elif place == "active":
        yield from (i for _, i in sorted((lease[0], i) for i, lease in ns.leases.items()))
    else:
        yield from ns.dead
