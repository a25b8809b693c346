"""Events into state. The machine changes in no other way, so a log that is folded again gives the machine again.

One function a type of event, in the order of the types' numbers. What an event says is done, not judged: the rules were
applied when it was decided. Where an event cannot be true of the state, the log is not one machine's: ``CorruptLog``.
"""

from collections.abc import Callable
from typing import Any

from resourcelease.machine.agenda import Hold
from resourcelease.machine.effects import oldest_finished
from resourcelease.machine.handles import EXPIRED, FAILED, GIVEN_BACK
from resourcelease.machine.items import Batch
from resourcelease.machine.moves import (
    end_leases,
    hear,
    hold,
    last_fence,
    line_up,
    no_longer_awaited,
    pop_lease,
    remove,
    settle,
    spread,
    touch,
    turn_page,
    uniform,
)
from resourcelease.machine.pages import read_page
from resourcelease.machine.settled import Gone
from resourcelease.machine.state import PRIORITY, REQUEST_ID, Effect, Namespace, Peer, State, Version
from resourcelease.model import limits
from resourcelease.model.errors import CorruptLog
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.options import QueueOptions

__all__ = ["fold_record"]


def fold_record(state: State, record: Record) -> None:
    """Makes the state what it is after the events of one record, and notes the depth of the queue in it."""
    state.sequence += record.count
    ns = state.namespaces.get(record.namespace)
    if ns is None:
        ns = _stranger(state, record)
    _FOLDS[record.type](state, ns, record)
    if record.namespace in state.namespaces:
        record.pending, record.active = ns.ready.size, len(ns.leases)
        state.touched_namespaces[ns.name] = None
    if record.answer is not None:
        state.answers.remember(record, record.pending)


def _stranger(state: State, record: Record) -> Namespace:
    """A namespace that is not there: made by CONFIGURED, and needed by nothing that may come before it."""
    ns = Namespace(record.namespace)
    if record.type is EventType.CONFIGURED:
        ns.number = len(state.namespaces) + 1
        state.namespaces[ns.name] = ns
    elif record.type is not EventType.REJECTED:
        raise CorruptLog(f"event {record.sequence}: there is no namespace {record.namespace}")
    return ns


def _enqueue(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    columns = record.unpacked or ItemColumns.unpacked(data.columns)
    ids = range(data.first_id, data.first_id + record.count)
    if data.first_id != ns.next_id or columns.size != record.count:
        raise CorruptLog(f"event {record.sequence}: ids from {data.first_id}, expected {ns.next_id}")
    if not columns.even():
        raise CorruptLog(f"event {record.sequence}: columns of different lengths")
    batch = Batch(data.first_id, columns, data.columns, record.wall_ms, record.sequence - data.first_id)
    ns.items.add(batch)
    ns.next_id += record.count
    ns.enqueued += record.count
    if columns.request_id is not None:
        for sequence_id in ids:
            if request_id := batch.request_id(sequence_id):
                ns.requests[request_id] = sequence_id
    priority: Any = uniform(columns.priority)
    if columns.not_before_ms == 0 and type(priority) is int:
        ns.ready.append_run(priority, data.first_id, record.count)
        return
    delays, priorities = spread(columns.not_before_ms, record.count), spread(priority, record.count)
    for place, sequence_id in enumerate(ids):
        delay_ms = delays[place]
        due_ms = record.clock_ms + delay_ms if delay_ms else 0
        line_up(state, ns, sequence_id, priorities[place], due_ms, record.sequence + place)


def _lease_granted(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    ids = data.sequence_ids
    if ns.ready.take(record.count) != ids or data.first_fence != state.fence + 1:
        raise CorruptLog(f"event {record.sequence}: grants what is not first in line")
    fences = list(range(data.first_fence, data.first_fence + record.count))
    state.fence += record.count
    hold(state, Hold(ns.name, record.peer, record.call.principal, data.deadline_ms, ids, fences))
    if ns.history:
        for sequence_id in ids:
            no_longer_awaited(state, ns, sequence_id)
    hear(state, record).present(ns.name).active += record.count
    ns.items.touch(ids)


def _heartbeat(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    peer = hear(state, record)
    if not data.sequence_ids:
        peer.present(ns.name).held_until_ms = data.deadline_ms
        return
    owners: dict[tuple[str, str, int], tuple[list[int], list[int]]] = {}
    for sequence_id, fence in zip(data.sequence_ids, data.fences, strict=True):
        held = pop_lease(state, ns, record, sequence_id, fence)
        deadline_ms = max(data.deadline_ms, state.lease_end_ms(held))
        ids, fences = owners.setdefault((held.peer, held.principal, deadline_ms), ([], []))
        ids.append(sequence_id)
        fences.append(fence)
    for (owner, principal, deadline_ms), (ids, fences) in owners.items():
        hold(state, Hold(ns.name, owner, principal, deadline_ms, ids, fences))
    ns.items.touch(data.sequence_ids)


def _completed(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    ids = data.sequence_ids
    hear(state, record)
    end_leases(state, ns, record, ids)
    remove(ns, ids, record.clock_ms)
    settle(ns, ids, data.fences, record.clock_ms)
    ns.completed += record.count


def _failed(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    hear(state, record)
    end_leases(state, ns, record, data.sequence_ids, FAILED)
    if data.failures:
        for place, sequence_id in enumerate(data.sequence_ids):
            failure = data.failures[place if len(data.failures) > 1 else 0]
            ns.history[sequence_id].last_error = Failure._make(failure)


def _drained(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    ids = data.sequence_ids
    active = dict.fromkeys(i for i in ids if i in ns.leases)
    fences = [last_fence(ns, i) for i in ids]
    end_leases(state, ns, record, list(active))
    pending = 0
    for sequence_id in ids:
        no_longer_awaited(state, ns, sequence_id)
        if sequence_id in ns.delayed:
            state.delays.remove(ns.delayed.pop(sequence_id)[1])
        elif sequence_id not in active:
            pending += 1
    if ns.ready.take(pending) != ids[:pending]:
        raise CorruptLog(f"event {record.sequence}: drains what is not first in line")
    if ids:
        remove(ns, ids, record.clock_ms, drained=True)
        settle(ns, ids, [Gone(fence, "drained") for fence in fences], record.clock_ms)
    ns.drained += len(ids)
    turn_page(ns, record)


def _restored(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    page = read_page(data.page)
    if isinstance(page, str):
        raise CorruptLog(f"event {record.sequence}: {page}")
    for order, place in enumerate(data.places):
        sequence_id, ticket = page.sequence_ids[place], record.sequence + order
        history = page.histories[place]
        ns.items[sequence_id] = (*page.rows[place], ticket - sequence_id)
        if history is not None:
            ns.history[sequence_id] = history
        if request_id := page.rows[place][REQUEST_ID]:
            ns.requests[request_id] = sequence_id
            ns.ended_requests.discard(request_id)
        ns.settled.discard(sequence_id)
        delay_ms = page.delays_ms[place]
        line_up(
            state, ns, sequence_id, page.rows[place][PRIORITY], record.clock_ms + delay_ms if delay_ms else 0, ticket
        )
        ns.next_id = max(ns.next_id, sequence_id + 1)
    ns.items.touch(data.sequence_ids)
    ns.restored += record.count
    state.fence = max(state.fence, page.fence)
    ns.restored_pages[page.key] = record.sequence
    touch(ns, "restored_pages", record.sequence, page.key)
    if len(ns.restored_pages) > limits.RESTORED_PAGES_KEPT:
        oldest, order = ns.restored_pages.popitem(last=False)
        touch(ns, "restored_pages", order, oldest)


def _lease_expired(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    end_leases(state, ns, record, data.sequence_ids, EXPIRED)


def _requeued(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    ids = data.sequence_ids
    if data.cause == GIVEN_BACK:
        hear(state, record)
        end_leases(state, ns, record, ids, GIVEN_BACK)
        # The last in line first: each then finds its place at the very front.
        for sequence_id in sorted(ids, key=ns.ticket_of, reverse=True):
            ns.ready.put_back(ns.items[sequence_id][PRIORITY], sequence_id, ns.ticket_of(sequence_id), ns.ticket_of)
    else:
        attempts, dues = spread(data.attempts, len(ids)), spread(data.due_ms, len(ids))
        for place, sequence_id in enumerate(ids):
            history = ns.history[sequence_id]
            history.attempt = attempts[place]
            history.ticket = record.sequence + place
            line_up(state, ns, sequence_id, ns.items[sequence_id][PRIORITY], dues[place], history.ticket)
    for sequence_id in ids:
        history = ns.history[sequence_id]
        peer = state.peers.get(history.last.peer) if history.last else None
        if peer is not None:
            history.awaited_from = peer.name
            peer.reassignments += 1
            state.touched_peers[peer.joined_order] = None
    ns.items.touch(ids)


def _dead_lettered(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    for place, sequence_id in enumerate(data.sequence_ids):
        ns.dead[sequence_id] = (record.sequence + place, data.cause)
    ns.items.touch(data.sequence_ids)


def _backpressure(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    ns.backpressure = data.active


def _configured(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    try:
        ns.options = QueueOptions(**data.options)
    except TypeError as error:
        raise CorruptLog(f"event {record.sequence}: {error}") from error
    ns.paused = data.paused


def _peer_changed(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    if data.change == "joined":
        state.peers[data.peer] = Peer(data.peer, record.sequence)
    peer = state.peers.get(data.peer)
    if peer is None:
        raise CorruptLog(f"event {record.sequence}: peer {data.peer} is not known")
    state.touched_peers[peer.joined_order] = None
    if data.change == "removed":
        del state.peers[data.peer]
    elif data.change == "disconnected":
        peer.disconnected = data.reason
    elif data.change == "connected":
        peer.disconnected = ""
    if data.change in ("joined", "heard"):
        hear(state, record)


def _redriven(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    attempts = spread(data.attempts, record.count)
    for place, sequence_id in enumerate(data.sequence_ids):
        del ns.dead[sequence_id]
        history = ns.history[sequence_id]
        history.attempt = history.budget_from = attempts[place]
        history.redrives += 1
        history.ticket = record.sequence + place
        line_up(state, ns, sequence_id, ns.items[sequence_id][PRIORITY], data.due_ms, history.ticket)
    ns.redriven += record.count
    ns.items.touch(data.sequence_ids)


def _effect(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    if data.kind == "version":
        ns.versions[data.id] = Version(data.value, record.sequence)
        touch(ns, "versions", record.sequence, data.id)
        return
    earlier = ns.effects.get(data.id)
    if earlier is None and len(ns.effects) >= limits.MAX_EFFECTS:
        forgotten = oldest_finished(ns.effects)
        touch(ns, "effects", ns.effects.pop(forgotten).order, forgotten)
    order = record.sequence if earlier is None else earlier.order
    finished = data.kind == "finish"
    result = data.value if finished else b""
    ns.effects[data.id] = Effect(order, data.sequence_id, data.attempt, data.fence, finished, result)
    touch(ns, "effects", order, data.id)


def _released(state: State, ns: Namespace, record: Record) -> None:
    data: Any = record.data
    for place, sequence_id in enumerate(data.sequence_ids):
        due_ms, ticket = ns.delayed.pop(sequence_id)
        if due_ms > record.clock_ms:
            raise CorruptLog(f"event {record.sequence}: item {sequence_id} is delayed until {due_ms}")
        state.delays.remove(ticket)
        ns.historied(sequence_id).ticket = record.sequence + place
        ns.ready.append(ns.items[sequence_id][PRIORITY], sequence_id)
    ns.items.touch(data.sequence_ids)


def _rejected(state: State, ns: Namespace, record: Record) -> None:
    """Only the answer is new."""


def _discarded(state: State, ns: Namespace, record: Record) -> None:
    ids = record.data.sequence_ids  # type: ignore[union-attr]
    gone = [Gone(last_fence(ns, i), "discarded") for i in ids]
    for sequence_id in ids:
        del ns.dead[sequence_id]
    remove(ns, ids, record.clock_ms)
    settle(ns, ids, gone, record.clock_ms)
    ns.discarded += record.count


_FOLDS: dict[EventType, Callable[[State, Namespace, Record], None]] = {
    EventType.ENQUEUE: _enqueue,
    EventType.LEASE_GRANTED: _lease_granted,
    EventType.HEARTBEAT: _heartbeat,
    EventType.COMPLETED: _completed,
    EventType.FAILED: _failed,
    EventType.DRAIN_SNAPSHOT: _drained,
    EventType.RESTORE_SNAPSHOT: _restored,
    EventType.LEASE_EXPIRED: _lease_expired,
    EventType.REQUEUED: _requeued,
    EventType.DEAD_LETTERED: _dead_lettered,
    EventType.BACKPRESSURE: _backpressure,
    EventType.CONFIGURED: _configured,
    EventType.PEER_CHANGED: _peer_changed,
    EventType.REDRIVEN: _redriven,
    EventType.EFFECT: _effect,
    EventType.RELEASED: _released,
    EventType.REJECTED: _rejected,
    EventType.DISCARDED: _discarded,
}
