"""The moves that events are made of: into line, under a lease, out of a lease, out of the house."""

from collections.abc import Sequence
from typing import Any

from resourcelease.machine.agenda import Delay, Hold
from resourcelease.machine.settled import Gone
from resourcelease.machine.state import Bundle, Namespace, Peer, State
from resourcelease.model import limits
from resourcelease.model.errors import CorruptLog
from resourcelease.model.eventdata import DrainData
from resourcelease.model.events import Record
from resourcelease.model.items import LastLease

__all__ = [
    "end_leases",
    "hear",
    "hold",
    "last_fence",
    "line_up",
    "no_longer_awaited",
    "pop_lease",
    "remove",
    "settle",
    "spread",
    "touch",
    "turn_page",
    "uniform",
]


def line_up(state: State, ns: Namespace, sequence_id: int, priority: int, due_ms: int, ticket: int) -> None:
    """Puts an item at the tail of its lane, or among the delayed if it has a time to wait for."""
    if due_ms:
        ns.delayed[sequence_id] = (due_ms, ticket)
        state.delays.add(Delay(due_ms, ticket, sequence_id, ns.name))
    else:
        ns.ready.append(priority, sequence_id)


def hold(state: State, held: Hold) -> None:
    """Puts items under a hold."""
    ns = state.namespaces[held.namespace]
    ns.leases.add(held)
    state.agenda.add(held, held.deadline_ms)


def pop_lease(state: State, ns: Namespace, record: Record, sequence_id: int, fence: int) -> Hold:
    """Takes an item from under its hold, without touching the owner's counts."""
    lease = ns.leases.get(sequence_id)
    if lease is None or lease[0] != fence:
        raise CorruptLog(f"event {record.sequence}: item {sequence_id} is not leased under fence {fence}")
    ns.leases.end([sequence_id])
    state.agenda.end(lease[1], 1)
    return lease[1]


def end_leases(state: State, ns: Namespace, record: Record, sequence_ids: list[int], outcome: str = "") -> None:
    """Ends the leases of items; with an outcome, each item remembers it as its last."""
    try:
        holds = ns.leases.end(sequence_ids)
    except KeyError as error:
        raise CorruptLog(f"event {record.sequence}: item {error} is not leased") from error
    if holds and holds.count(holds[0]) == len(holds):
        _end(state, holds[0], len(holds))
    else:
        for held in holds:
            _end(state, held, 1)
    if outcome:
        for sequence_id, held in zip(sequence_ids, holds, strict=True):
            history = ns.historied(sequence_id)
            history.last = LastLease(history.attempt, held.fence_of(sequence_id), held.peer, outcome)


def _end(state: State, held: Hold, count: int) -> None:
    state.agenda.end(held, count)
    peer = state.peers[held.peer]
    peer.at[held.namespace].active -= count


def remove(ns: Namespace, sequence_ids: list[int], clock_ms: int, *, drained: bool = False) -> None:
    """Lets go of items that are in no place any more; their request ids stay known for a while."""
    requests = ns.items.request_ids(sequence_ids) if ns.requests else []
    ns.items.remove(sequence_ids)
    if ns.history:
        for sequence_id in sequence_ids:
            ns.history.pop(sequence_id, None)
    if requests:
        ended_ms = clock_ms + ns.options.dedup_window_ms
        for request_id, sequence_id in zip(requests, sequence_ids, strict=True):
            if request_id and ns.requests.pop(request_id, None):
                ns.ended_requests.add(request_id, -sequence_id if drained else sequence_id, ended_ms)
        ns.ended_requests.purge(clock_ms, ns.options.dedup_limit)


def settle(ns: Namespace, sequence_ids: list[int], how: Sequence[int | Gone], clock_ms: int) -> None:
    """Remembers for a while how items ended, so that a repeated ack is recognised."""
    ns.settled.add(sequence_ids, how, clock_ms)


def hear(state: State, record: Record) -> Peer:
    """Notes that the peer of a record was heard, here and now."""
    peer = state.peers.get(record.peer)
    if peer is None:
        raise CorruptLog(f"event {record.sequence}: peer {record.peer} is not known")
    peer.heard_ms = record.clock_ms
    peer.heard_order = state.sequence
    peer.present(record.namespace).heard_ms = record.clock_ms
    state.peers.move_to_end(peer.name)
    state.touched_peers[peer.joined_order] = None
    return peer


def no_longer_awaited(state: State, ns: Namespace, sequence_id: int) -> None:
    """An item that waited for reassignment waits no more."""
    history = ns.history.get(sequence_id)
    if history is not None and history.awaited_from:
        peer = state.peers[history.awaited_from]
        peer.reassignments -= 1
        history.awaited_from = ""
        state.touched_peers[peer.joined_order] = None


def last_fence(ns: Namespace, sequence_id: int) -> int:
    """The fence of the lease an item has, or had last; 0 if it was never leased."""
    lease = ns.leases.get(sequence_id)
    if lease is not None:
        return lease[0]
    history = ns.history.get(sequence_id)
    return history.last.fence if history and history.last else 0


def turn_page(ns: Namespace, record: Record) -> None:
    """Keeps the newest page of a bundle; with no items in it, the one before has arrived and nothing is kept."""
    assert isinstance(record.data, DrainData)
    data = record.data
    before = ns.bundles.get(data.bundle_id)
    order = record.sequence if before is None else before.order
    if data.sequence_ids:
        ns.bundles[data.bundle_id] = Bundle(order, data.number, data.page, record.count, data.more)
    elif before is not None:
        ns.bundles[data.bundle_id] = before._replace(page=b"")
    touch(ns, "bundles", order, data.bundle_id)
    if len(ns.bundles) > limits.RESTORED_PAGES_KEPT:
        oldest, bundle = ns.bundles.popitem(last=False)
        touch(ns, "bundles", bundle.order, oldest)


def touch(ns: Namespace, kind: str, order: int, name: str) -> None:
    """Notes that a row changed which is kept by kind and order."""
    ns.touched_keyed[(kind, order)] = name


def spread(column: Any, size: int) -> list[int]:
    """A column as a list, also where one number stands for all."""
    return column if type(column) is list else [column] * size


def uniform(column: Any) -> Any:
    """The one value of a column whose values are all the same; else the column."""
    if type(column) is list and column.count(column[0]) == len(column):
        return column[0]
    return column
