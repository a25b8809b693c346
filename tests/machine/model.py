"""The rules of the machine once more, written down naively: a second reading of docs/machine.md.

Every question is answered by looking through everything there is. Nothing is cached, nothing is kept in columns, and
every operation is decided and carried out item by item. Slow, and short enough to be checked against the page.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from model_ground import no
from model_state import (
    COMPLETED,
    DRAINED,
    PENDING,
    Bundle,
    Effect,
    Handle,
    Happened,
    Page,
    PageItem,
    Row,
    Space,
    Thing,
)
from model_work import Work, wrong_field

from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.items import Item
from resourcelease.model.ops import (
    BeginEffect,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Pause,
    Redrive,
    RequireVersion,
    Restore,
    Resume,
)
from resourcelease.model.options import DEFAULT_OPTIONS, changed_options
from resourcelease.model.results import (
    Configured,
    Drained,
    EffectState,
    Granted,
    Redriven,
    Restored,
    Result,
    VersionFixed,
)

__all__ = ["Applied", "NaiveMachine"]

_NEEDS_PEER = (Lease, Heartbeat, Complete, Fail, GiveBack, Drain, BeginEffect, FinishEffect)


class Applied(NamedTuple):
    """What became of an entry: an answer for each op, and the events."""

    results: list[Result]
    events: list[Happened]


class NaiveMachine(Work):
    """One cluster's state, and what each operation does to it.

    A drained page is opaque to callers. Here a page's bytes are only a name for what was drained; ``call_page`` gives
    another name, the real machine's bytes, to the same content, so that a restore of those finds it.
    """

    def apply(self, index: int, term: int, clock_ms: int, wall_ms: int, ops: Sequence[Op]) -> Applied:
        """One entry: what is due, then each op, each followed by the decision on backpressure."""
        if index <= self.applied_index:
            return Applied([], [])
        self.applied_index = index
        self.clock_ms = max(self.clock_ms, clock_ms)
        self.wall_ms = wall_ms
        self.events = []
        self.fall_due()
        results = [self._answer(op) for op in ops]
        return Applied(results, self.events)

    def call_page(self, drained: bytes, name: bytes) -> None:
        """From now on the name stands for the drained page as well."""
        self.pages[name] = self.pages[drained]

    def next_due_ms(self) -> int | None:
        """When something falls due by itself."""
        times = [thing.deadline_ms for space in self.spaces for thing in space.active()]
        times += [thing.due_ms for space in self.spaces for thing in space.delayed()]
        return min(times, default=None)

    def _answer(self, op: Op) -> Any:
        wrong = self._wrong_call(op)
        if wrong:
            return no(Reason.INVALID_ARGUMENT, wrong)
        if op.call.operation_id:
            stored = self.remembered(op)
            if isinstance(stored, Granted):
                live = self.still_live(op.call.namespace, stored)
                kept = self.take_of(op.call, op.call.operation_id)
                if not live.sequence_ids or op.call.take <= kept:
                    return live._replace(next_take=kept + 1 if live.sequence_ids else 0)
                assert isinstance(op, Lease)
                return self.take_over(op, live)
            if stored is not None:
                return stored
        self.own_events = False
        result = self._decide(op)
        if not isinstance(result, Drained):
            self.remember(op, result)
        space = self.space(op.call.namespace)
        if space is not None:
            self.decide_backpressure(space)
        return result

    def _wrong_call(self, op: Op) -> str:
        """The path of the first field that is wrong whatever the state is."""
        if not 1 <= len(op.call.namespace) <= limits.MAX_NAME:
            return "namespace"
        if len(op.call.peer) > limits.MAX_NAME or (isinstance(op, _NEEDS_PEER) and not op.call.peer):
            return "peer_id"
        return ""

    def _wrong_content(self, op: Op) -> str:
        """The same of what is no part of the call."""
        least = 0 if isinstance(op, Drain) else 1
        if isinstance(op, Lease | Drain) and not least <= op.limit <= limits.MAX_ITEMS_PER_OP:
            return "limit"
        if isinstance(op, RequireVersion) and op.minimum > op.maximum:
            return "maximum"
        if isinstance(op, FinishEffect) and len(op.result) > limits.MAX_EFFECT_RESULT:
            return "result"
        if isinstance(op, Restore) and op.page not in self.pages:
            return "page"
        return ""

    def _decide(self, op: Op) -> Any:
        wrong = self._wrong_content(op)
        if wrong:
            return no(Reason.INVALID_ARGUMENT, wrong)
        match op:
            case Enqueue():
                return self.enqueue(op)
            case Lease():
                return self.lease(op)
            case Heartbeat():
                return self.heartbeat(op)
            case Complete():
                return self.complete(op)
            case Fail():
                return self.fail(op)
            case GiveBack():
                return self.give_back(op)
            case Configure() | Pause() | Resume():
                return self.configure(op)
            case Restore():
                return self.restore(op)
            case RequireVersion():
                return self.require_version(op)
        space = self.space(op.call.namespace)
        if space is None:
            return no(Reason.NOT_FOUND)
        match op:
            case Redrive():
                return self.redrive(op, space)
            case Drain():
                return self.drain(op, space)
            case BeginEffect():
                return self.begin_effect(op, space)
            case FinishEffect():
                return self.finish_effect(op, space)

    # Settings.

    def configure(self, op: Configure | Pause | Resume) -> Any:
        """Options and the pause; one event if anything is new."""
        space = self.space(op.call.namespace)
        if space is None and isinstance(op, Resume):
            return no(Reason.NOT_FOUND)
        if not self.room_for_space(op.call.namespace):
            return no(Reason.QUEUE_FULL)
        before = (space.options, space.paused) if space else None
        options, paused = before or (DEFAULT_OPTIONS, False)
        if isinstance(op, Configure):
            changed = changed_options(options, op.options)
            if isinstance(changed, Refusal):
                return changed
            options = changed
        else:
            paused = isinstance(op, Pause)
        if (options, paused) != before:
            if space is None:
                space = Space(op.call.namespace)
                self.spaces.append(space)
            space.options, space.paused = options, paused
            self.emit(EventType.CONFIGURED, [Row()], space.name, op.call.peer, own=True)
        return Configured(options, paused)

    # Dead letters.

    def redrive(self, op: Redrive, space: Space) -> Redriven:
        """Dead letters get a new budget and go back to work, while there is room."""
        room = space.options.capacity - space.unsettled()
        refused: dict[int, Refusal] = {}
        if op.sequence_ids is None:
            chosen = space.dead()[: min(op.limit, max(room, 0))]
        else:
            chosen = []
            names = [op.sequence_ids] if isinstance(op.sequence_ids, int) else list(op.sequence_ids)
            for place, sequence_id in enumerate(names):
                thing = next((thing for thing in space.dead() if thing.sequence_id == sequence_id), None)
                if thing is None or thing in chosen:
                    refused[place] = no(Reason.NOT_FOUND)
                elif len(chosen) >= room:
                    refused[place] = no(Reason.QUEUE_FULL)
                else:
                    chosen.append(thing)
        for thing, number in zip(chosen, self.next_numbers(), strict=False):
            self.put_in_line(thing, number, op.delay_ms)
            thing.forgiven, thing.left_by = thing.attempt, ""
            thing.attempt += 1
        rows = [Row(thing.sequence_id, thing.attempt) for thing in chosen]
        self.emit(EventType.REDRIVEN, rows, space.name, op.call.peer, own=bool(rows))
        return Redriven([thing.sequence_id for thing in chosen], refused)

    # Drain and restore.

    def drain(self, op: Drain, space: Space) -> Any:
        """The next page of a bundle, or the newest once more; asking for the next lets go of the newest."""
        bundle = next((bundle for bundle in space.bundles if bundle.id == op.bundle_id), None)
        if bundle and bundle.kept and op.page == bundle.next_number - 1:
            return bundle.kept
        if op.page != (bundle.next_number if bundle else 0):
            return no(Reason.CONFLICT)
        waiting = space.pending() + sorted(space.delayed(), key=lambda thing: thing.ticket)
        candidates = waiting + (space.active() if op.include_active else [])
        taken: list[Thing] = []
        for thing in candidates[: op.limit]:
            if taken and sum(other.weight for other in taken) + thing.weight > op.max_bytes:
                break
            taken.append(thing)
        if self._too_many_open(space, bundle, taken):
            return no(Reason.QUEUE_FULL)
        name = f"page {self.cluster_id} {space.name} {op.bundle_id} {op.page} {len(self.pages)}".encode()
        items = [self._page_item(thing) for thing in taken]
        self.pages[name] = Page(self.cluster_id, space.name, op.bundle_id, op.page, self.fence, items)
        drained = Drained(name, len(taken), len(taken) < len(candidates))
        if not taken:
            if bundle and bundle.kept:
                bundle.kept = None
                self.emit(EventType.DRAIN_SNAPSHOT, [Row()], space.name, op.call.peer)
            return drained
        if bundle is None:
            bundle = Bundle(op.bundle_id)
            space.bundles = [*space.bundles, bundle][-limits.RESTORED_PAGES_KEPT :]
        bundle.next_number += 1
        bundle.kept = drained
        for thing in taken:
            space.drained += 1
            self.take_away(space, thing, DRAINED, thing.handle)
        rows = [Row(thing.sequence_id, thing.attempt) for thing in taken]
        self.emit(EventType.DRAIN_SNAPSHOT, rows, space.name, op.call.peer)
        return drained

    def _too_many_open(self, space: Space, bundle: Bundle | None, taken: list[Thing]) -> bool:
        """Whether one more bundle would keep a page, beyond the limit; a new one is not let in at all."""
        if bundle and (bundle.kept or not taken):
            return False
        return sum(other.kept is not None for other in space.bundles) >= limits.MAX_OPEN_BUNDLES

    def _page_item(self, thing: Thing) -> PageItem:
        wait_ms = max(0, thing.due_ms - self.clock_ms)
        return PageItem(
            thing.sequence_id, thing.item, thing.attempt, thing.forgiven, wait_ms, thing.last, thing.failure
        )

    def restore(self, op: Restore) -> Any:
        """A page's items are back, each once, or nothing has changed."""
        if not self.room_for_space(op.call.namespace):
            return no(Reason.QUEUE_FULL)
        page = self.pages[op.page]
        space = self.space(op.call.namespace) or Space(op.call.namespace)
        if page.name in space.restored_pages:
            return Restored(0, len(page.items))
        absent: list[PageItem] = []
        for here in page.items:
            presence = self._presence(space, page, here)
            if presence is None:
                return no(Reason.CONFLICT)
            if not presence:
                absent.append(here)
        if absent and space.unsettled() + len(absent) > space.options.capacity:
            return no(Reason.QUEUE_FULL)
        for here in absent:
            field = wrong_field(here.item, here.wait_ms, space.options.max_body_bytes)
            if field:
                return no(Reason.INVALID_ARGUMENT, f"page.items[{page.items.index(here)}].{field}")
        if absent:
            space = self.open_space(space.name, op.call.peer)
            self._put_back(space, page, absent, op.call.peer)
        return Restored(len(absent), len(page.items) - len(absent))

    def _presence(self, space: Space, page: Page, lost: PageItem) -> bool | None:
        """Whether the item is here already; None if another one is here under its id."""
        thing = space.find(lost.sequence_id)
        if thing is not None:
            return True if _content(thing) == _content(lost) else None
        from_here = (page.cluster, page.namespace) == (self.cluster_id, space.name)
        settled = self.settled(space, lost.sequence_id)
        if settled is not None and settled.outcome == COMPLETED and from_here:
            return True
        known = self.known_request(space, lost.item.request_id)
        return known is not None and not (from_here and known == (lost.sequence_id, DRAINED))

    def _put_back(self, space: Space, page: Page, absent: list[PageItem], peer: str) -> None:
        self.fence = max(self.fence, page.highest_fence)
        for lost, number in zip(absent, self.next_numbers(), strict=False):
            thing = Thing(
                lost.sequence_id,
                lost.item._replace(lead=number - lost.sequence_id),
                PENDING,
                number,
                lost.attempt,
                lost.forgiven,
                last=lost.last,
                failure=lost.failure,
            )
            self.put_in_line(thing, number, lost.wait_ms)
            space.things.append(thing)
            space.last_id = max(space.last_id, thing.sequence_id)
            space.restored += 1
            for block in space.settled_blocks:
                block.settled = [one for one in block.settled if one.handle.sequence_id != thing.sequence_id]
            space.ended_requests = [
                ended for ended in space.ended_requests if ended.request_id != thing.item.request_id
            ]
        space.restored_pages = [*space.restored_pages, page.name][-limits.RESTORED_PAGES_KEPT :]
        rows = [Row(lost.sequence_id, lost.attempt) for lost in absent]
        self.emit(EventType.RESTORE_SNAPSHOT, rows, space.name, peer, own=True)

    # Versions and effects.

    def require_version(self, op: RequireVersion) -> Any:
        """The first call fixes the version."""
        space = self.space(op.call.namespace)
        fixed = space.gates.get(op.change_id) if space else None
        if fixed is not None:
            return VersionFixed(fixed) if op.minimum <= fixed <= op.maximum else no(Reason.CONFLICT)
        if not self.room_for_space(op.call.namespace) or (space and len(space.gates) >= limits.MAX_GATES):
            return no(Reason.QUEUE_FULL)
        space = self.open_space(op.call.namespace, op.call.peer)
        space.gates[op.change_id] = op.maximum
        self.emit(EventType.EFFECT, [Row()], space.name, op.call.peer, own=True)
        return VersionFixed(op.maximum)

    def begin_effect(self, op: BeginEffect, space: Space) -> Any:
        """One runner at a time, under a live lease."""
        held = self._held(op, space)
        if isinstance(held, Refusal):
            return held
        effect = next((effect for effect in space.effects if effect.id == op.effect_id), None)
        if effect is None:
            if len(space.effects) >= limits.MAX_EFFECTS:
                finished = [effect for effect in space.effects if effect.result is not None]
                if not finished:
                    return no(Reason.QUEUE_FULL)
                space.effects.remove(finished[0])
            space.effects.append(Effect(op.effect_id, held))
        elif effect.result is not None:
            return EffectState(True, effect.result)
        elif effect.handle == held:
            return EffectState(False, b"")
        elif self.live_lease(space, effect.handle) or held.fence < effect.handle.fence:
            return no(Reason.CONFLICT)
        else:
            effect.handle = held
        self.emit(EventType.EFFECT, [Row(*held)], space.name, op.call.peer, own=True)
        return EffectState(False, b"")

    def finish_effect(self, op: FinishEffect, space: Space) -> Any:
        """The runner's result is everyone's."""
        held = self._held(op, space)
        if isinstance(held, Refusal):
            return held
        effect = next((effect for effect in space.effects if effect.id == op.effect_id), None)
        if effect is None:
            return no(Reason.NOT_FOUND)
        if effect.result is not None:
            return EffectState(True, effect.result)
        if held != effect.handle:
            return no(Reason.CONFLICT)
        effect.result = op.result
        self.emit(EventType.EFFECT, [Row(*effect.handle)], space.name, op.call.peer, own=True)
        return EffectState(True, op.result)

    def _held(self, op: BeginEffect | FinishEffect, space: Space) -> Handle | Refusal:
        handle = Handle(op.sequence_id, op.attempt, op.fence)
        thing = self.live_lease(space, handle)
        if thing is None:
            return no(Reason.LEASE_LOST)
        if thing.principal and thing.principal != op.call.principal:
            return no(Reason.FORBIDDEN)
        return handle


def _content(item: Thing | PageItem) -> Item:
    """What the caller gave."""
    return item.item._replace(lead=0, enqueued_at_ms=0)
