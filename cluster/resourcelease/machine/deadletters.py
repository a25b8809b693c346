"""After a failed attempt: another one, or the dead letters; and the way back from there."""

from typing import Any

import msgpack

from resourcelease.machine.checks import column_of_ids, invalid, is_count
from resourcelease.machine.decision import Decision, compressed, unknown
from resourcelease.machine.handles import Handles
from resourcelease.machine.outcomes import RUNS_SINCE, listed, outcomes_of, packed, refusals_of, runs_of
from resourcelease.machine.state import Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import DeathsData, EventType, IdsData, RedrivesData, RejectionData, RequeuesData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call, Redrive
from resourcelease.model.results import Redriven

__all__ = ["redrive", "replay_redrive", "requeue_or_bury"]

CODE = 10


def requeue_or_bury(
    state: State,
    ns: Namespace,
    ended: Handles,
    cause: str,
    call: Call,
    requeue: list[bool] | None = None,
    delays: list[int | None] | None = None,
) -> list[Record]:
    """The records that follow the end of attempts: REQUEUED, DEAD_LETTERED, and DISCARDED for those that fall out."""
    again: list[tuple[int, int, int, int]] = []
    buried: list[tuple[int, int, int]] = []
    for place, (sequence_id, attempt, fence) in enumerate(zip(*ended, strict=True)):
        history = ns.history.get(sequence_id)
        used = attempt - (history.budget_from if history else 1) + 1
        if used >= ns.options.max_attempts or (requeue is not None and not requeue[place]):
            buried.append((sequence_id, attempt, fence))
            continue
        wish = delays[place] if delays is not None else None
        wait_ms = ns.options.requeue_wait_ms(used) if wish is None else wish
        again.append((sequence_id, attempt + 1, fence, state.clock_ms + wait_ms if wait_ms else 0))

    records = []
    if again:
        ids, attempts, fences, due = map(list, zip(*again, strict=True))
        data = RequeuesData(ids, compressed(attempts), fences, compressed(due), cause)
        records.append(Record(EventType.REQUEUED, data, count=len(ids), call=call))
    if buried:
        ids, attempts, fences = map(list, zip(*buried, strict=True))
        deaths = DeathsData(ids, compressed(attempts), fences, cause)
        records.append(Record(EventType.DEAD_LETTERED, deaths, count=len(ids), call=call))
        excess = len(ns.dead) + len(ids) - ns.options.dead_letter_limit
        if excess > 0:
            records.append(_discarded(ns, ids, attempts, excess, call))
    return records


def redrive(state: State, op: Redrive) -> Decision:
    """Puts dead letters back in line, with a new budget of attempts."""
    if not is_count(op.delay_ms, limits.MAX_DELAY_MS):
        return Decision(invalid(f"a delay is from 0 to {limits.MAX_DELAY_MS} ms", "delay_ms"), [])
    named = None if op.sequence_ids is None else _ids(op.sequence_ids)
    if isinstance(named, Refusal):
        return Decision(named, [])
    if named is None and not is_count(op.limit, limits.MAX_ITEMS_PER_OP, least=1):
        return Decision(invalid(f"name the items, or a limit from 1 to {limits.MAX_ITEMS_PER_OP}", "limit"), [])
    ns = state.namespaces.get(op.call.namespace)
    if ns is None:
        return unknown(op.call)
    room = max(0, ns.options.capacity - ns.live)
    if named is None:
        oldest = [i for _, i in zip(range(min(op.limit, room)), ns.dead, strict=False)]
        return _redriven(state, ns, op, oldest, {})
    return _named(state, ns, op, named, room)


def replay_redrive(state: State, ns: Namespace | None, content: Any) -> Redriven:
    """The first answer again."""
    if type(content) is bytes:
        runs, *refusals = msgpack.unpackb(content)
        return Redriven([i for _, i in outcomes_of([], runs) if type(i) is int], refusals_of(*refusals))
    ids, refused = content
    return Redriven(ids, {place: Refusal(Reason(reason), *rest) for place, reason, *rest in refused})


def _ids(column: object) -> list[int] | Refusal:
    size = len(column) if type(column) is list else 1
    if not 1 <= size <= limits.MAX_ITEMS_PER_OP:
        return invalid(f"name 1 to {limits.MAX_ITEMS_PER_OP} items", "sequence_ids")
    return column_of_ids(column, size, "sequence_ids")


def _named(state: State, ns: Namespace, op: Redrive, named: list[int], room: int) -> Decision:
    chosen: dict[int, None] = {}
    refused: dict[int, Refusal] = {}
    for place, sequence_id in enumerate(named):
        if sequence_id not in ns.dead or sequence_id in chosen:
            refused[place] = Refusal(Reason.NOT_FOUND, f"item {sequence_id} is not a dead letter")
        elif len(chosen) >= room:
            message = f"the queue holds {ns.options.capacity} items, its capacity"
            refused[place] = Refusal(Reason.QUEUE_FULL, message)
        else:
            chosen[sequence_id] = None
    return _redriven(state, ns, op, list(chosen), refused)


def _redriven(state: State, ns: Namespace, op: Redrive, ids: list[int], refused: dict[int, Refusal]) -> Decision:
    result = Redriven(ids, refused)
    answer = [op.call.take, CODE, _kept(state, ids, refused)] if op.call.operation_id else None
    if ids:
        due_ms = state.clock_ms + op.delay_ms if op.delay_ms else 0
        data = RedrivesData(ids, compressed([ns.history[i].attempt + 1 for i in ids]), due_ms)
        return Decision(result, [Record(EventType.REDRIVEN, data, count=len(ids), answer=answer, call=op.call)])
    if refused and answer:
        first = next(iter(refused.values()))
        data_ = RejectionData(first.reason, first.message)
        return Decision(result, [Record(EventType.REJECTED, data_, answer=answer, call=op.call)])
    return Decision(result, [])


def _kept(state: State, ids: list[int], refused: dict[int, Refusal]) -> Any:
    if state.entry_version < RUNS_SINCE:
        return [ids, listed(refused)]
    return packed((runs_of(enumerate(ids))[1], *runs_of(refused.items())))


def _discarded(ns: Namespace, buried: list[int], attempts: list[int], excess: int, call: Call) -> Record:
    """The longest dead are the first to fall out, then those that died just now."""
    oldest = [(i, ns.attempt_of(i)) for _, i in zip(range(excess), ns.dead, strict=False)]
    oldest += list(zip(buried, attempts, strict=True))[: excess - len(oldest)]
    ids, tried = map(list, zip(*oldest, strict=True))
    return Record(EventType.DISCARDED, IdsData(ids, compressed(tried)), count=len(ids), call=call)
