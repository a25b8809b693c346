"""What can be read off the books without any search: one verdict, nothing lost, nobody but the holder at the store."""

from collections import defaultdict
from collections.abc import Iterable

from chaos.drills.history import OK, Call

__all__ = ["nothing_is_lost", "one_verdict", "store_was_protected"]


def one_verdict(calls: Iterable[Call]) -> list[str]:
    """An item completes under one fence, or dies under one, and never both."""
    ends: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for call in calls:
        if call.kind in ("complete", "bury") and call.outcome == OK:
            ends[call.item].add((call.kind, call.fence))
    return [f"item {item} has {len(told)} verdicts: {sorted(told)}" for item, told in ends.items() if len(told) > 1]


def nothing_is_lost(calls: Iterable[Call]) -> list[str]:
    """Every item that was acknowledged has an end; what was acknowledged as its end is what is found at the end."""
    made: dict[int, str] = {}
    ends: dict[int, str] = {}
    found: dict[int, str] = {}
    for call in calls:
        if call.outcome != OK:
            continue
        if call.kind == "enqueue":
            made[call.item] = call.request
        elif call.kind in ("complete", "bury"):
            ends[call.item] = "done" if call.kind == "complete" else "dead"
        elif call.kind == "look":
            found[call.item] = call.detail
    problems = []
    for item, request in made.items():
        place = found.get(item, "nobody looked")
        if place not in ("done", "dead"):
            problems.append(f"item {item} ({request}) was acknowledged, and in the end it is: {place}")
        elif ends.get(item, place) != place:
            problems.append(f"item {item} ({request}) was told to be {ends[item]}, and in the end it is: {place}")
    return problems


def store_was_protected(calls: Iterable[Call]) -> list[str]:
    """Only who had been granted the fence wrote under it; no older fence came after a newer; none after the end."""
    holders: dict[int, tuple[str, int]] = {}
    highest: dict[int, int] = {}
    completed: dict[int, int] = {}
    problems = []
    writes = []
    for call in calls:
        if call.outcome != OK:
            continue
        if call.kind == "grant":
            before = holders.setdefault(call.fence, (call.client, call.item))
            if before != (call.client, call.item):
                problems.append(f"fence {call.fence} went to {before[0]} and to {call.client}: two holders")
        elif call.kind == "complete":
            completed[call.item] = call.fence
        elif call.kind == "write":
            writes.append(call)
    for call in writes:
        row = f"row {call.item} was written by {call.client} under fence {call.fence}"
        if holders.get(call.fence) != (call.client, call.item):
            problems.append(f"{row}, which was granted to {holders.get(call.fence)}")
        if call.fence < highest.get(call.item, 0):
            problems.append(f"{row} after fence {highest[call.item]}")
        if call.fence > completed.get(call.item, call.fence):
            problems.append(f"{row}; the item was completed under fence {completed[call.item]}")
        highest[call.item] = max(highest.get(call.item, 0), call.fence)
    return problems
