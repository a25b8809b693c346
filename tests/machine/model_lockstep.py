"""The machine and the model side by side: the same entries, and everything about them compared."""

from collections.abc import Mapping
from typing import Any

from model import NaiveMachine
from model_state import ACTIVE, DELAYED, Happened, Page, Space, Thing

from resourcelease.machine import Machine
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Event, EventHandle
from resourcelease.model.ops import Op, pack_entry, pack_op, pack_ops
from resourcelease.model.results import Drained, Enqueued, Granted, Redriven

WALL_MS = 1_700_000_000_000


def plain(value: Any) -> Any:
    """A result as nested plain values: sequences are lists, refusals have lost their words.

    The path of a field is promised for INVALID_ARGUMENT only.
    """
    if isinstance(value, Refusal):
        return ("refused", str(value.reason), value.field if value.reason is Reason.INVALID_ARGUMENT else "")
    if isinstance(value, Drained):
        return ("Drained", value.size, value.more)
    if isinstance(value, Enqueued):
        return ("Enqueued", list(value.sequence_ids), sorted(value.duplicates), _places(value.refused), value.pending)
    if isinstance(value, Redriven):
        return ("Redriven", list(value.sequence_ids), _places(value.refused))
    if isinstance(value, Granted):
        rows = [tuple(row) for row in value.rows]
        before = {place: (tuple(last), failure and tuple(failure)) for place, (last, failure) in value.before.items()}
        columns = [list(column) for column in (value.sequence_ids, value.attempts, value.fences)]
        # Without a lease there is no deadline to tell.
        until = (value.deadline_ms, value.left_ms) if rows else ()
        return ("Granted", *columns, rows, before, *until, value.next_take)
    if hasattr(value, "refused"):
        return (type(value).__name__, value.total, _places(value.refused), value.deadline_ms, value.left_ms)
    return (type(value).__name__, *value)


def _places(refused: Mapping[int, Refusal]) -> dict[int, Any]:
    return {place: plain(refused[place]) for place in sorted(refused)}


def happened(event: Event) -> Happened:
    """An event of the machine in the model's words."""
    handle = event.handle or EventHandle(0, 0, 0)
    return Happened(
        event.sequence_number, event.type, event.namespace, *handle, event.peer_id, event.pending, event.active
    )


class Lockstep:
    """One cluster, twice."""

    def __init__(self, cluster_id: str, pages: dict[bytes, Page]) -> None:
        self.machine = Machine(cluster_id=cluster_id)
        self.model = NaiveMachine(cluster_id, pages)
        self.index = 0
        self.clock_ms = 1000
        self.events: list[Event] = []
        self.last_fence = 0
        # Pages by the model's name for them.
        self.drained: dict[bytes, bytes] = {}

    def apply(self, ops: list[Op], clock_ms: int | None = None) -> list[Any]:
        """One entry to both; the machine's results, once they are known to be the same."""
        self.index += 1
        return self._apply_at(self.index, ops, self.clock_ms if clock_ms is None else clock_ms)

    def replay(self, index: int, ops: list[Op]) -> None:
        """An entry of an index that has been: neither may move."""
        assert self._apply_at(index, ops, self.clock_ms + 1_000_000) == []

    def _apply_at(self, index: int, ops: list[Op], clock_ms: int) -> list[Any]:
        wall_ms = WALL_MS + clock_ms
        expected = self.model.apply(index, 1, clock_ms, wall_ms, ops)
        out = self.machine.apply(index, 1, pack_entry(clock_ms, wall_ms, pack_ops(map(pack_op, ops))))
        events = [event for record in out.records for event in record.events()]
        self._check_numbers(events)
        assert len(out.results) == len(expected.results)
        for op, ours, theirs in zip(ops, expected.results, out.results, strict=False):
            assert plain(theirs) == plain(ours), f"{op}\n model  {plain(ours)}\n machine {plain(theirs)}"
            if isinstance(ours, Drained) and isinstance(theirs, Drained):
                self._same_page(ours, theirs)
        theirs_too = [happened(event) for event in events]
        assert theirs_too == expected.events, told(ops, expected.events, theirs_too)
        assert (self.machine.applied_index, self.machine.clock_ms) == (self.index, self.model.clock_ms)
        return list(out.results)

    def _same_page(self, ours: Drained, theirs: Drained) -> None:
        if ours.size:
            assert self.drained.setdefault(ours.page, theirs.page) == theirs.page
        self.model.call_page(ours.page, theirs.page)

    def _check_numbers(self, events: list[Event]) -> None:
        last = self.events[-1].sequence_number if self.events else 0
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(last + 1, last + 1 + len(events))), "the log has a gap"
        for event in events:
            if event.type is EventType.LEASE_GRANTED and event.handle is not None:
                assert event.handle.lease_id > self.last_fence, "a fence did not rise"
                self.last_fence = event.handle.lease_id
        self.events += events

    def check(self) -> None:
        """Everything that can be asked of the machine says what the model says, and keeps what is promised."""
        for space in self.model.spaces:
            self._check_space(space)
        views = {
            peer.name: (peer.heard_ms, peer.disconnected, peer.active, peer.reassignments)
            for peer in self.machine.peers()
        }
        mine = {
            peer.name: (
                peer.heard_ms,
                peer.disconnected,
                self.model.active_of(peer.name),
                self.model.reassignments_of(peer.name),
            )
            for peer in self.model.peers
        }
        assert views == mine, f"heard, disconnected, active, reassignments\n model  {mine}\n machine {views}"
        self._check_next_due()

    def _check_next_due(self) -> None:
        """The machine may be woken too early, by a lease that has been extended since; never too late, or in vain."""
        theirs, mine = self.machine.next_due_ms(), self.model.next_due_ms()
        assert theirs is None or theirs > self.model.clock_ms
        assert mine is None or (theirs is not None and theirs <= mine), (theirs, mine)

    def _check_space(self, space: Space) -> None:
        machine, name = self.machine, space.name
        places = space.pending(), space.delayed(), space.active(), space.dead()
        mine = [[thing.sequence_id for thing in place] for place in places]
        theirs = [
            list(ids(name)) for ids in (machine.pending_ids, machine.delayed_ids, machine.active_ids, machine.dead_ids)
        ]
        assert theirs == mine, f"{name}: pending, delayed, active, dead\n model  {mine}\n machine {theirs}"
        everyone = [sequence_id for ids in theirs for sequence_id in ids]
        assert len(everyone) == len(set(everyone)), "an item stands in two places"
        view = machine.queue(name)
        assert view is not None
        assert [view.pending, view.delayed, view.active, view.dead] == list(map(len, mine))
        assert machine.grantable(name) == (0 if space.paused else view.pending)
        assert (view.options, view.paused, view.backpressure) == (space.options, space.paused, space.backpressure)
        counts = [view.enqueued, view.restored, view.completed, view.drained, view.discarded]
        assert counts == [space.enqueued, space.restored, space.completed, space.drained, space.discarded]
        here = view.pending + view.delayed + view.active + view.dead
        assert view.enqueued + view.restored == here + view.completed + view.drained + view.discarded
        high, low = view.options.high_watermark, view.options.low_watermark
        if high is None or low is None or view.pending <= low:
            assert not view.backpressure
        elif view.pending >= high:
            assert view.backpressure
        for thing in space.things:
            self._check_item(name, thing)

    def _check_item(self, namespace: str, thing: Thing) -> None:
        view = self.machine.item(namespace, thing.sequence_id)
        assert view is not None
        assert (view.place, view.attempt, view.priority) == (thing.place, thing.attempt, thing.item.priority)
        if thing.place == ACTIVE:
            assert (view.fence, view.deadline_ms, view.peer) == (thing.fence, thing.deadline_ms, thing.peer)
        if thing.place == DELAYED:
            assert view.due_ms == thing.due_ms


def told(ops: list[Op], ours: list[Happened], theirs: list[Happened]) -> str:
    """Two lists of events, one below the other."""
    lines = [f"{op}" for op in ops]
    lines += ["model:", *(f"  {event}" for event in ours), "machine:", *(f"  {event}" for event in theirs)]
    return "\n".join(lines)
