"""heartbeat, complete, fail, give back: what a holder says about its leases."""

from typing import Any

import msgpack

from resourcelease.machine.answers import key_of
from resourcelease.machine.checks import invalid, is_count, is_name, is_text_map
from resourcelease.machine.deadletters import requeue_or_bury
from resourcelease.machine.decision import (
    Decision,
    compressed,
    created,
    disconnected,
    heard,
    unknown,
)
from resourcelease.machine.handles import FAILED, GIVEN_BACK, AckOp, Verdicts, handles_of, judge
from resourcelease.machine.outcomes import RUNS_SINCE, listed, packed, refusals_of, runs_of
from resourcelease.machine.state import Namespace, State
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import BeatsData, EndsData, EventType, FailuresData, PeerData, RequeuesData
from resourcelease.model.events import Record
from resourcelease.model.items import Failure
from resourcelease.model.limits import MAX_DELAY_MS, MAX_TEXT
from resourcelease.model.ops import Complete, Fail, GiveBack, Heartbeat
from resourcelease.model.results import Acked

__all__ = ["complete", "fail", "give_back", "heartbeat", "replay_ack"]

_CODES: dict[type[AckOp], int] = {Heartbeat: 3, Complete: 4, Fail: 5, GiveBack: 6}


def complete(state: State, op: Complete) -> Decision:
    """Settles items for good."""
    found = _judged(state, op)
    if isinstance(found, Decision):
        return found
    verdicts, before, _ = found
    ids, attempts, fences = verdicts.live
    record = Record(EventType.COMPLETED, EndsData(ids, compressed(attempts), fences), count=len(ids), call=op.call)
    return _acked(state, op, verdicts, [*before, record], record)


def heartbeat(state: State, op: Heartbeat) -> Decision:
    """Extends the named leases, or all that the peer holds in the namespace."""
    if op.sequence_ids is None and op.attempts is None and op.fences is None:
        return _heartbeat_of_peer(state, op)
    found = _judged(state, op)
    if isinstance(found, Decision):
        return found
    verdicts, before, after = found
    ids, attempts, fences = verdicts.live
    deadline_ms = state.clock_ms + state.namespaces[op.call.namespace].options.lease_duration_ms
    data = BeatsData(ids, compressed(attempts), fences, deadline_ms)
    record = Record(EventType.HEARTBEAT, data, count=len(ids), call=op.call)
    return _acked(state, op, verdicts, [*before, record, *after], record, deadline_ms)


def fail(state: State, op: Fail) -> Decision:
    """Ends attempts; the items are tried again, or become dead letters."""
    found = _judged(state, op)
    if isinstance(found, Decision):
        return found
    verdicts, before, _ = found
    wishes = _wishes(op, verdicts)
    if isinstance(wishes, Refusal):
        return Decision(wishes, [])
    requeue, delays, failures = wishes
    ns = state.namespaces[op.call.namespace]
    ids, attempts, fences = verdicts.live
    data = FailuresData(ids, compressed(attempts), fences, failures)
    record = Record(EventType.FAILED, data, count=len(ids), call=op.call)
    records = [*before, record, *requeue_or_bury(state, ns, verdicts.live, FAILED, op.call, requeue, delays)]
    if False in requeue:
        reason = "failed without requeue"
        if before:  # joined a moment ago, and so not in the state yet
            records.append(Record(EventType.PEER_CHANGED, PeerData(op.call.peer, "disconnected", reason), call=op.call))
        else:
            records += disconnected(state, op.call.peer, reason, op.call)
    return _acked(state, op, verdicts, records, record)


def give_back(state: State, op: GiveBack) -> Decision:
    """Returns leases unused: the items stand where they stood, and no attempt is spent."""
    found = _judged(state, op)
    if isinstance(found, Decision):
        return found
    verdicts, before, _ = found
    if op.untold and _was_taken_over(state, op):
        return Decision(Acked(_size(op), verdicts.refused), [])
    ids, attempts, fences = verdicts.live
    data = RequeuesData(ids, compressed(attempts), fences, 0, GIVEN_BACK)
    record = Record(EventType.REQUEUED, data, count=len(ids), call=op.call)
    return _acked(state, op, verdicts, [*before, record], record)


def _was_taken_over(state: State, op: GiveBack) -> bool:
    answer = state.answers.get(key_of(op.call._replace(operation_id=op.untold)), state.clock_ms)
    return answer is not None and answer.take > op.call.take


def replay_ack(state: State, ns: Namespace | None, content: Any) -> Acked:
    """The first answer again."""
    if type(content) is bytes:
        total, deadline_ms, *runs = msgpack.unpackb(content)
        refusals = refusals_of(*runs)
    else:
        total, refused, *deadline = content
        refusals = {place: Refusal(Reason(reason), *rest) for place, reason, *rest in refused}
        deadline_ms = deadline[0] if deadline else 0
    return Acked(total, refusals, deadline_ms, max(0, deadline_ms - state.clock_ms))


def _judged(state: State, op: AckOp) -> tuple[Verdicts, list[Record], list[Record]] | Decision:
    """The verdicts on a call's handles and the records around its own; or the whole answer, if no handle is live."""
    if not op.call.peer:
        return Decision(invalid("say which peer this is", "peer_id"), [])
    handles = handles_of(op)
    if isinstance(handles, Refusal):
        return Decision(handles, [])
    ns = state.namespaces.get(op.call.namespace)
    if ns is None:
        return unknown(op.call)
    verdicts = judge(state, ns, op, handles)
    if not verdicts.live.sequence_ids:
        if isinstance(op, Fail) and isinstance(wrong := _wishes(op, verdicts), Refusal):
            return Decision(wrong, [])
        return Decision(Acked(len(handles.sequence_ids), verdicts.refused), [])
    known = heard(state, op.call, connects=isinstance(op, Heartbeat))
    if isinstance(known, Refusal):
        return Decision(known, [])
    return verdicts, *known


def _acked(
    state: State, op: AckOp, verdicts: Verdicts, records: list[Record], own: Record, deadline_ms: int = 0
) -> Decision:
    refused = verdicts.refused
    total = own.count if verdicts.places is None else _size(op)
    if op.call.operation_id:
        told_whole = total == own.count and not refused
        content = True if told_whole else _kept(state, total, refused, deadline_ms)
        own.answer = [op.call.take, _CODES[type(op)], content]
    return Decision(Acked(total, refused, deadline_ms, max(0, deadline_ms - state.clock_ms)), records)


def _kept(state: State, total: int, refused: dict[int, Refusal], deadline_ms: int) -> Any:
    if state.entry_version < RUNS_SINCE:
        return [total, listed(refused), deadline_ms]
    return packed((total, deadline_ms, *runs_of(refused.items())))


def _size(op: AckOp) -> int:
    return len(op.sequence_ids) if type(op.sequence_ids) is list else 1


def _heartbeat_of_peer(state: State, op: Heartbeat) -> Decision:
    call = op.call
    if not call.peer:
        return Decision(invalid("say which peer this is", "peer_id"), [])
    found = created(state, call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    known = heard(state, call, connects=True)
    if isinstance(known, Refusal):
        return Decision(known, [])
    peer = state.peers.get(call.peer)
    presence = peer.at.get(call.namespace) if peer else None
    before_ms = presence.held_until_ms if presence else 0
    deadline_ms = max(before_ms, state.clock_ms + ns.options.lease_duration_ms)
    record = Record(EventType.HEARTBEAT, BeatsData([], 0, [], deadline_ms), call=call)
    if call.operation_id:
        record.answer = [call.take, _CODES[Heartbeat], [0, [], deadline_ms]]
    left_ms = deadline_ms - state.clock_ms
    return Decision(Acked(0, {}, deadline_ms, left_ms), [*records, *known[0], record, *known[1]])


def _wishes(op: Fail, verdicts: Verdicts) -> tuple[list[bool], list[int | None], list[Any] | None] | Refusal:
    """Requeue, delay and failure of each live handle, from columns that may be one value for all."""
    size = _size(op)
    requeue: Any = op.requeue if type(op.requeue) is list else [op.requeue] * size
    delays: Any = op.delays_ms if type(op.delays_ms) is list else [op.delays_ms] * size
    failures: Any = op.failures
    if len(requeue) != size or not all(type(wish) is bool for wish in requeue):
        return invalid("requeue is true or false for each lease", "requeue")
    if len(delays) != size or not all(delay is None or is_count(delay, MAX_DELAY_MS) for delay in delays):
        return invalid(f"a delay is from 0 to {MAX_DELAY_MS} ms", "delay_ms")
    if failures is not None:
        if type(failures) is not list or len(failures) not in (1, size) or not all(map(_is_failure, failures)):
            return invalid(f"an error is a code, a message of at most {MAX_TEXT} characters, and metadata", "error")
        failures = [Failure(*failure) for failure in failures]
    places = verdicts.places
    if places is None:
        return requeue, delays, failures
    if failures is not None and len(failures) > 1:
        failures = [failures[place] for place in places] or None
    return [requeue[place] for place in places], [delays[place] for place in places], failures


def _is_failure(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) not in (2, 3):
        return False
    code, message, *metadata = value
    known = is_name(code) and type(message) is str and len(message) <= MAX_TEXT
    return known and is_text_map(metadata[0] if metadata else None)
