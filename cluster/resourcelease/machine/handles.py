"""Which of the named leases are live, and what became of the others."""

from typing import Any, NamedTuple, TypeAlias

from resourcelease.machine.checks import column_of_ids, invalid
from resourcelease.machine.settled import Gone
from resourcelease.machine.state import Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.ops import Complete, Fail, GiveBack, Heartbeat

__all__ = ["AckOp", "Verdicts", "handles_of", "judge"]

AckOp: TypeAlias = Complete | Fail | GiveBack | Heartbeat

# What an ack does to a lease, as the last lease of an item remembers it.
FAILED, GIVEN_BACK, EXPIRED = "failed", "given_back", "expired"
_REPEATABLE = {Fail: FAILED, GiveBack: GIVEN_BACK}


class Handles(NamedTuple):
    """The three columns of a call, spread to lists of one length."""

    sequence_ids: list[int]
    attempts: list[int]
    fences: list[int]


class Verdicts(NamedTuple):
    """Live handles, each once; the places in the call they came from (None: all of them); and refusals by place."""

    live: Handles
    places: list[int] | None
    refused: dict[int, Refusal]


def handles_of(op: AckOp) -> Handles | Refusal:
    """The handles of a call, or what is wrong with them."""
    ids = op.sequence_ids
    size = len(ids) if type(ids) is list else 1
    if not 1 <= size <= limits.MAX_ITEMS_PER_OP:
        return invalid(f"a call names 1 to {limits.MAX_ITEMS_PER_OP} leases", "handles")
    columns = []
    for name, column in (("sequence_id", ids), ("attempt", op.attempts), ("lease_id", op.fences)):
        spread = column_of_ids(column, size, f"handles.{name}")
        if isinstance(spread, Refusal):
            return spread
        columns.append(spread)
    return Handles._make(columns)


def judge(state: State, ns: Namespace, op: AckOp, handles: Handles) -> Verdicts:
    """Sorts handles into live and refused; a handle that was accepted before is neither."""
    ids, attempts, fences = handles
    hold = ns.leases.run_of(ids, fences)
    if hold is not None and _these_attempts(ns, ids, attempts) and hold.principal in ("", op.call.principal):
        return Verdicts(handles, None, {})
    held = list(map(ns.leases.get, ids))
    if _all_live(ns, op, handles, held):
        return Verdicts(handles, None, {})

    places: list[int] = []
    refused: dict[int, Refusal] = {}
    taken: dict[int, tuple[int, int]] = {}
    for place, lease in enumerate(held):
        sequence_id, attempt, fence = ids[place], attempts[place], fences[place]
        if taken.get(sequence_id) == (attempt, fence):
            continue
        if lease is None or lease[0] != fence or ns.attempt_of(sequence_id) != attempt or sequence_id in taken:
            refusal = _lost(state, ns, op, sequence_id, attempt, fence)
            if refusal:
                refused[place] = refusal
        elif lease[1].principal and lease[1].principal != op.call.principal:
            message = f"the lease belongs to {lease[1].principal}, which alone may end or extend it"
            refused[place] = Refusal(Reason.FORBIDDEN, message)
        else:
            taken[sequence_id] = (attempt, fence)
            places.append(place)
    live = Handles(*([column[place] for place in places] for column in handles))
    return Verdicts(live, places, refused)


def _all_live(ns: Namespace, op: AckOp, handles: Handles, held: list[Any]) -> bool:
    """Whether everything is live and the caller's: the usual case, told at the least cost."""
    ids, attempts, fences = handles
    if None in held:
        return False
    held_fences, holds = zip(*held, strict=True)
    if list(held_fences) != fences or len(set(ids)) != len(ids):
        return False
    if not _these_attempts(ns, ids, attempts):
        return False
    principal = op.call.principal
    owners = holds[:1] if holds.count(holds[0]) == len(holds) else holds
    return all(not hold.principal or hold.principal == principal for hold in owners)


def _these_attempts(ns: Namespace, ids: list[int], attempts: list[int]) -> bool:
    """Whether the attempts are those that run; the first, for items without a history."""
    if ns.history:
        return attempts == [ns.attempt_of(i) for i in ids]
    return attempts.count(1) == len(attempts)


def _lost(state: State, ns: Namespace, op: AckOp, sequence_id: int, attempt: int, fence: int) -> Refusal | None:
    """Why a handle that is not live is refused; None if this very call was accepted on it before."""
    if not 1 <= sequence_id < ns.next_id or not 1 <= fence <= state.fence:
        message = f"no such lease was ever granted here: item {sequence_id}, fence {fence}"
        return Refusal(Reason.NOT_FOUND, message)
    if sequence_id not in ns.items:
        return _settled(state, ns, op, sequence_id, fence)
    history = ns.history.get(sequence_id)
    last = history.last if history else None
    dead = sequence_id in ns.dead
    if last is not None and last.fence == fence and last.attempt == attempt:
        if _REPEATABLE.get(type(op)) == last.outcome:
            return None
        if dead and last.outcome == FAILED and isinstance(op, (Complete, Heartbeat)):
            return Refusal(Reason.ALREADY_SETTLED, f"item {sequence_id} failed for good under this lease")
        message = f"the lease on item {sequence_id} is over ({last.outcome}); stop working on it"
        return Refusal(Reason.LEASE_LOST, message)
    return Refusal(Reason.LEASE_LOST, f"the lease on item {sequence_id} is over; stop working on it")


def _settled(state: State, ns: Namespace, op: AckOp, sequence_id: int, fence: int) -> Refusal | None:
    settled = ns.settled.get(sequence_id, state.clock_ms)
    if settled is None:
        return Refusal(Reason.NOT_FOUND, f"item {sequence_id} is gone; how it ended is no longer known")
    if isinstance(settled, Gone):
        return Refusal(Reason.LEASE_LOST, f"item {sequence_id} was {settled.how}; stop working on it")
    if settled != fence:
        return Refusal(Reason.LEASE_LOST, f"item {sequence_id} was completed under another lease; stop working on it")
    if isinstance(op, Complete):
        return None
    return Refusal(Reason.ALREADY_SETTLED, f"item {sequence_id} was completed under this lease")
