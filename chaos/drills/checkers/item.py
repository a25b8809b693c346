"""One item as the specification has it, as far as a client can see: what may follow what, and when at the earliest.

Expiry is nobody's call, so it may happen between any two calls, but never before the lease has run for its time. To
judge that without knowing the moment at which a call took effect, the state carries ``now``: the earliest it can be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chaos.drills.history import OK, Call

__all__ = ["State", "after"]

# Readings of the lease clock are whole milliseconds.
_ROUNDING_S = 0.003
# Grants in a row that no caller saw.
_UNSEEN_MAX = 3


@dataclass(frozen=True, slots=True)
class State:
    """How an item is; ``ended`` says how the lease of ``fence`` ended."""

    # Absent, waiting, active, unseen (active for somebody who does not know it), dead or done.
    place: str = "absent"
    item: int = 0
    attempt: int = 1
    fence: int = 0
    ended: str = ""
    # The earliest that the live lease can run out.
    until: float = 0.0
    now: float = 0.0


def after(state: State, call: Call, lease_s: float) -> Iterator[State]:
    """The states in which the item may be after a call took effect, ``state`` being before it; none: it cannot have."""
    if call.unknown:
        yield from _effect(replace(state, now=max(state.now, call.start)), call, lease_s)
        return
    for before in (state, *_hidden(state, lease_s)):
        moment = max(before.now, call.start)
        if moment > call.end + _ROUNDING_S:
            continue
        here = replace(before, now=moment)
        if call.outcome == OK:
            yield from _effect(here, call, lease_s)
        elif _may_refuse(here, call):
            yield here


def _hidden(state: State, lease_s: float) -> Iterator[State]:
    """What may have become of the item with no call of anybody's.

    The live lease ran out. And the item was granted on its way to a caller who never saw it, and that lease ran out in
    its time, a few times over. Such a lease may well live while others ask for what they held before.
    """
    for _ in range(1 + _UNSEEN_MAX):
        if state.place in ("active", "unseen"):
            ran_out = max(state.now, state.until - _ROUNDING_S)
            ended = "expired" if state.place == "active" else "unseen"
            state = replace(state, place="waiting", ended=ended, attempt=state.attempt + 1, now=ran_out)
            yield state
        if state.place != "waiting":
            return
        state = replace(state, place="unseen", ended="unseen", until=state.now + lease_s)
        yield state


def _effect(state: State, call: Call, lease_s: float) -> Iterator[State]:
    kind, place = call.kind, state.place
    holds = state.fence == call.fence and state.attempt == call.attempt
    if kind == "enqueue":
        same = not call.item or not state.item or call.item == state.item
        if place == "absent" and call.detail != "again":
            yield replace(state, place="waiting", item=call.item)
        elif place != "absent" and same and (call.detail == "again" or call.unknown):
            yield replace(state, item=state.item or call.item)
    elif kind == "grant":
        if place == "waiting" and call.fence > state.fence and call.attempt == state.attempt:
            until = state.now + lease_s
            yield replace(state, place="active", fence=call.fence, ended="", until=until, item=call.item)
    elif kind == "beat":
        if place == "active" and holds:
            yield replace(state, until=max(state.until, state.now + lease_s))
    elif kind == "look":
        if call.detail == place:
            yield state
    elif place == "active" and holds:
        yield _settled(state, kind)
    elif state.fence == call.fence and state.ended == kind:
        # The same verdict again: accepted, and nothing happens.
        yield state


def _settled(state: State, kind: str) -> State:
    if kind == "complete":
        return replace(state, place="done", ended=kind)
    if kind == "bury":
        return replace(state, place="dead", ended=kind)
    step = 1 if kind == "fail" else 0
    return replace(state, place="waiting", ended=kind, attempt=state.attempt + step)


def _may_refuse(state: State, call: Call) -> bool:
    """Whether the call may be told no, the item being as it is."""
    if call.detail in ("NO_LEADER", "QUEUE_FULL", "BACKPRESSURE", "PEER_UNHEALTHY", "PAUSED"):
        return True
    live = state.place == "active" and state.fence == call.fence
    if call.detail == "LEASE_LOST":
        return not live and (state.ended != call.kind or state.fence != call.fence)
    if call.detail == "ALREADY_SETTLED":
        return state.place in ("dead", "done") and not live
    if call.detail == "NOT_FOUND":
        return state.place in ("done", "dead", "absent")
    return False
