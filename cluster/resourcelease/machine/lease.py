"""lease: pending items go out to a peer."""

from typing import Any

from resourcelease.machine.acks import heartbeat
from resourcelease.machine.answers import Answer, key_of
from resourcelease.machine.checks import invalid, is_count
from resourcelease.machine.decision import Decision, compressed, created, heard, seen_idle
from resourcelease.machine.state import Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType, GrantsData
from resourcelease.model.events import Record
from resourcelease.model.items import Failure, LastLease
from resourcelease.model.ops import Call, Heartbeat, Lease
from resourcelease.model.results import Acked, Granted

__all__ = ["lease", "replay_lease"]

CODE = 2
NOTHING = Granted([], [], [], [], {}, 0, 0)


def lease(state: State, op: Lease) -> Decision:
    """Grants the first items of the queue's order, each under the next fence."""
    call = op.call
    if not call.peer:
        return Decision(invalid("a lease needs a holder", "peer_id"), [])
    answer = state.answers.get(key_of(call), state.clock_ms) if call.operation_id else None
    if answer is not None:
        return _taken_over(state, call, answer)
    if not is_count(op.limit, limits.MAX_ITEMS_PER_OP, least=1):
        return Decision(invalid(f"from 1 to {limits.MAX_ITEMS_PER_OP} leases at a time", "limit"), [])
    if not is_count(op.max_bytes, limits.MAX_OP_BYTES):
        return Decision(invalid(f"from 0 to {limits.MAX_OP_BYTES} bytes", "max_bytes"), [])
    found = created(state, call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    refusal = _not_now(state, ns, call.peer)
    if refusal:
        return Decision(refusal, seen_idle(state, ns, call))
    known = heard(state, call)
    if isinstance(known, Refusal):
        return Decision(known, [])
    records += known[0]
    ids = ns.ready.first(op.limit)
    if ids and op.max_bytes:
        ids = ns.within(ids, op.max_bytes)
    if not ids:
        return Decision(NOTHING, records + seen_idle(state, ns, call))

    deadline_ms = max(state.clock_ms + ns.options.lease_duration_ms, _held_until(state, ns, call.peer))
    history = ns.history
    attempts: int | list[int] = compressed([ns.attempt_of(i) for i in ids]) if history else 1
    data = GrantsData(ids, attempts, state.fence + 1, deadline_ms)
    record = Record(EventType.LEASE_GRANTED, data, count=len(ids), call=call)
    if call.operation_id:
        record.answer = [call.take, CODE, True]
    return Decision(_granted(state, ns, ids, attempts, state.fence + 1, deadline_ms), [*records, record])


def replay_lease(state: State, ns: Namespace | None, content: list[Any]) -> Granted:
    """Those leases of the first answer that are still live: a lease that is lost must not be handed out."""
    ids, attempts, first_fence, deadline_ms = content
    if ns is None:
        return NOTHING
    places = [
        place
        for place, i in enumerate(ids)
        if (held := ns.leases.get(i)) is not None and held[0] == first_fence + place
    ]
    live = [ids[place] for place in places]
    if type(attempts) is list:
        attempts = [attempts[place] for place in places]
    # They may have been extended since, and not all alike: the earliest end is safe for all.
    deadline_ms = min((state.lease_end_ms(ns.leases[i][1]) for i in live), default=deadline_ms)
    granted = _granted(state, ns, live, attempts, first_fence, deadline_ms)
    return granted._replace(fences=[first_fence + place for place in places])


def _taken_over(state: State, call: Call, answer: Answer) -> Decision:
    """The leases of an earlier take, told to this one: it extends them, and an earlier one cannot give them back."""
    granted = replay_lease(state, state.namespaces.get(call.namespace), answer.content)
    columns = map(list, (granted.sequence_ids, granted.attempts, granted.fences))
    result, records = heartbeat(state, Heartbeat(call, *columns))
    if not isinstance(result, Acked) or result.refused:
        return Decision(NOTHING, [])
    for record in records:
        if record.answer is not None:
            record.answer = [call.take, CODE, answer.content]
    return Decision(granted._replace(deadline_ms=result.deadline_ms, left_ms=result.left_ms), records)


def _not_now(state: State, ns: Namespace, name: str) -> Refusal | None:
    peer = state.peers.get(name)
    if ns.options.enforce_peer_health and peer is not None and peer.disconnected:
        message = f"peer {name} is disconnected ({peer.disconnected}); heartbeat, then ask again"
        return Refusal(Reason.PEER_UNHEALTHY, message, "peer_id")
    if ns.paused:
        return Refusal(Reason.PAUSED, f"namespace {ns.name} is paused; nothing is granted until it is resumed")
    return None


def _held_until(state: State, ns: Namespace, name: str) -> int:
    peer = state.peers.get(name)
    presence = peer.at.get(ns.name) if peer else None
    return presence.held_until_ms if presence else 0


def _granted(
    state: State, ns: Namespace, ids: list[int], attempts: int | list[int], first_fence: int, deadline_ms: int
) -> Granted:
    return Granted(
        sequence_ids=tuple(ids),
        attempts=(attempts,) * len(ids) if isinstance(attempts, int) else tuple(attempts),
        fences=range(first_fence, first_fence + len(ids)),
        rows=ns.items.many(ids) if ids else [],
        before=_before(ns, ids) if ns.history else {},
        deadline_ms=deadline_ms,
        left_ms=max(0, deadline_ms - state.clock_ms),
    )


def _before(ns: Namespace, ids: list[int]) -> dict[int, tuple[LastLease, Failure | None]]:
    before = {}
    for place, sequence_id in enumerate(ids):
        history = ns.history.get(sequence_id)
        if history is not None and history.last is not None:
            before[place] = (history.last, history.last_error)
    return before
