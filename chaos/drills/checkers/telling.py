"""Events against clients: what subscribers were told is one line without a gap, and the same that callers were told."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from chaos.checkers import Items, Violation
from chaos.drills.checkers.records import record_of
from chaos.drills.history import OK, REFUSED, Call
from resourcelease import v1

__all__ = ["events_tell_the_same", "one_line_of_events"]

Key = tuple[int, int]

# Where the workload works; some drills put their load elsewhere.
NAMESPACE = "resourcelease"


def one_line_of_events(events: Sequence[v1.Event], breaks: Collection[int] = ()) -> list[str]:
    """Sequence numbers without gaps, a clock that never falls, and items that live as the specification says.

    ``breaks`` are events before which the subscriber knows that some are missing; then lives are not judged.
    """
    problems = []
    for before, event in pairwise(events):
        if event.sequence_number != before.sequence_number + 1 and event.sequence_number not in breaks:
            problems.append(f"event {event.sequence_number} was told after {before.sequence_number}")
        if (event.lease_clock, event.raft_index) < (before.lease_clock, before.raft_index):
            problems.append(f"at event {event.sequence_number} the lease clock or the index falls")
    if problems or breaks:
        return problems
    items = Items()
    for event in events:
        try:
            if (record := record_of(event)) is not None:
                items.event(record)
        except Violation as violation:
            return [str(violation)]
    return []


def events_tell_the_same(events: Iterable[v1.Event], calls: Iterable[Call], *, whole: bool = True) -> list[str]:
    """Every acknowledged call is in the events, what was refused is not, and nothing else is in there.

    Where events are missing, only what the others do say is judged.
    """
    told = _Told(events)
    return list(told.judge(list(calls), whole=whole))


class _Told:
    """The events of items, by kind: (item, fence) and what belongs to it."""

    def __init__(self, events: Iterable[v1.Event]) -> None:
        self.made: dict[str, int] = {}
        self.twice: list[str] = []
        self.granted: dict[Key, int] = {}
        self.ended: dict[str, set[Key]] = {"complete": set(), "fail": set(), "bury": set(), "give-back": set()}
        kinds: dict[int, Callable[[v1.Event], None]] = {
            v1.EventType.EVENT_TYPE_ENQUEUE: self._enqueued,
            v1.EventType.EVENT_TYPE_LEASE_GRANTED: self._granted,
            v1.EventType.EVENT_TYPE_COMPLETED: lambda event: self._ended("complete", event),
            v1.EventType.EVENT_TYPE_FAILED: lambda event: self._ended("fail", event),
            v1.EventType.EVENT_TYPE_REQUEUED: self._requeued,
        }
        for event in events:
            if event.type in kinds and event.namespace == NAMESPACE:
                kinds[event.type](event)
        # Failing for good is a failure too; the verdict is what follows from it.
        self.ended["bury"] = self.ended["fail"]

    def judge(self, calls: list[Call], *, whole: bool) -> Iterator[str]:
        """What does not fit."""
        yield from self.twice
        asked: dict[str, set[Key]] = {kind: set() for kind in self.ended}
        requests = {call.request for call in calls if call.kind == "enqueue"}
        for call in calls:
            if call.kind in asked and call.outcome != REFUSED:
                asked[call.kind].add((call.item, call.fence))
        for call in calls:
            key = (call.item, call.fence)
            refused = call.kind == "complete" and call.outcome == REFUSED and key not in asked["complete"]
            if refused and key in self.ended["complete"]:
                yield f"item {call.item}: completing under fence {call.fence} was refused, and an event says it is"
            if whole and call.outcome == OK:
                yield from self._there(call, key)
        for key in self.ended["complete"] - asked["complete"]:
            yield f"an event completes item {key[0]} under fence {key[1]}, and nobody asked for that"
        for request in set(self.made) - requests:
            yield f"an event enqueues {request!r}, and nobody asked for that"

    def _there(self, call: Call, key: Key) -> Iterator[str]:
        if call.kind == "enqueue" and self.made.get(call.request) != call.item:
            yield f"{call.request} was told to be item {call.item}; the events say {self.made.get(call.request)}"
        if call.kind == "grant" and self.granted.get(key) != call.attempt:
            yield f"{call.client} was granted item {call.item} under fence {call.fence}; no event says so"
        if call.kind in self.ended and key not in self.ended[call.kind]:
            yield f"{call.kind} of item {call.item} under fence {call.fence} was acknowledged; no event says so"

    def _enqueued(self, event: v1.Event) -> None:
        request = event.payload.request_id
        if request in self.made:
            self.twice.append(f"request {request} made item {self.made[request]} and item {event.handle.sequence_id}")
        self.made[request] = event.handle.sequence_id

    def _granted(self, event: v1.Event) -> None:
        self.granted[event.handle.sequence_id, event.handle.lease_id] = event.handle.attempt

    def _requeued(self, event: v1.Event) -> None:
        if event.metadata["cause"] == "given_back":
            self._ended("give-back", event)

    def _ended(self, kind: str, event: v1.Event) -> None:
        self.ended[kind].add((event.handle.sequence_id, event.handle.lease_id))
