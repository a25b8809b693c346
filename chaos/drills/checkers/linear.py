"""Linearizability, item by item: is there an order of its calls, each between its start and its end, that the
specification allows?

The search is Wing and Gong's: of the calls not yet placed, any may be next that began before each of the others ended;
a set of calls already placed and a state is looked at once. Calls whose outcome is unknown may be placed at any time
after their start, or never.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from chaos.drills.checkers.item import State, after
from chaos.drills.history import OK, Call

__all__ = ["Undecided", "calls_by_item", "linearizable", "order_of"]

# What a client may do to an item.
KINDS = ("enqueue", "grant", "beat", "complete", "fail", "bury", "give-back", "look")
# Looks at states, for one item. Hundreds is usual.
_STEPS_MAX = 400_000


class Undecided(Exception):
    """The search has become too long."""


def linearizable(calls: Iterable[Call], lease_s: float) -> list[str]:
    """Judges every item; a sentence for each that has no order of its calls."""
    problems = []
    for name, own in sorted(calls_by_item(calls).items()):
        try:
            if order_of(own, lease_s) is None:
                problems.append(f"item of {name}: no order of its {len(own)} calls fits: {_story(own)}")
        except Undecided:
            problems.append(f"item of {name}: {len(own)} calls could not be decided in {_STEPS_MAX} steps")
    return problems


def calls_by_item(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Calls by the request id that their item was made under: that is known even where the item's number is not."""
    everything = [call for call in calls if call.kind in KINDS]
    request_of = {call.item: call.request for call in everything if call.item and call.request}
    found: dict[str, list[Call]] = defaultdict(list)
    for call in everything:
        found[call.request or request_of.get(call.item, f"number {call.item}")].append(call)
    return found


def order_of(calls: list[Call], lease_s: float) -> list[Call] | None:
    """An order that the specification allows, or None. It need not hold calls of unknown outcome."""
    calls = [replace(call, end=inf) if call.unknown else call for call in calls if call.kind in KINDS]
    calls.sort(key=lambda call: call.start)
    needed = sum(1 << at for at, call in enumerate(calls) if not call.unknown)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State, tuple[int, ...]]] = [(0, State(), ())]
    steps = 0
    while stack:
        placed, state, order = stack.pop()
        if placed & needed == needed:
            return [calls[at] for at in order]
        for at in _may_be_next(calls, placed):
            for following in after(state, calls[at], lease_s):
                steps += 1
                key = (placed | 1 << at, following)
                if key not in seen:
                    seen.add(key)
                    stack.append((*key, (*order, at)))
        if steps > _STEPS_MAX:
            raise Undecided
    return None


def _may_be_next(calls: list[Call], placed: int) -> Iterator[int]:
    """Latest first, so that the stack takes the earliest first."""
    waiting = [at for at in range(len(calls)) if not placed >> at & 1]
    first_end = min(calls[at].end for at in waiting)
    return (at for at in reversed(waiting) if calls[at].start <= first_end)


def _story(calls: list[Call]) -> str:
    told = sorted(calls, key=lambda call: call.start)
    words = [
        f"{call.kind}({call.fence or ''}) by {call.client} {call.start:.3f}-{call.end:.3f} "
        f"{call.outcome if call.outcome == OK else f'{call.outcome} {call.detail}'.strip()}"
        + (f" [{call.detail}]" if call.kind == "look" else "")
        for call in told
    ]
    return "; ".join(words)
