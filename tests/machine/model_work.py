"""The life of an item in the naive model: what falls due, enqueue, lease, heartbeat, complete, fail, give back."""

from typing import Any, NamedTuple

from model_ground import Ground, no
from model_state import (
    ACTIVE,
    COMPLETED,
    DEAD,
    DELAYED,
    EXPIRED,
    FAILED,
    GIVEN_BACK,
    PENDING,
    Handle,
    Row,
    Space,
    Thing,
)

from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.items import Failure, Item, ItemColumns
from resourcelease.model.ops import Complete, Enqueue, Fail, GiveBack, Heartbeat, Ints, Lease
from resourcelease.model.results import Acked, Enqueued, Granted


def spread(column: Any, count: int) -> list[Any]:
    """A column as a list, where one value stands for all."""
    return list(column) if isinstance(column, list | tuple) else [column] * count


def handles_of(sequence_ids: Ints, attempts: Ints, fences: Ints) -> list[Handle]:
    """The handles that three columns name."""
    count = max([1, *(len(column) for column in (sequence_ids, attempts, fences) if not isinstance(column, int))])
    columns = zip(spread(sequence_ids, count), spread(attempts, count), spread(fences, count), strict=True)
    return [Handle(*row) for row in columns]


def items_of(packed: bytes) -> tuple[list[Item], list[int]]:
    """The items of an enqueue, without time and ticket, and their delays."""
    columns: Any = ItemColumns.unpacked(packed)
    count = columns.size
    rows = zip(*(spread(column, count) for column in columns[1:9]), strict=True)
    return [Item._make((*row, 0, 0)) for row in rows], spread(columns.not_before_ms, count)


def wrong_field(item: Item, delay_ms: int, max_body_bytes: int) -> str:
    """The first field of an item that is against the rules."""
    names = ("resource_type", limits.MAX_NAME), ("resource_id", limits.MAX_TEXT)
    for field, most in names:
        value = getattr(item, field)
        if not isinstance(value, str) or not value.strip() or len(value) > most:
            return field
    for field, most in (("partition_key", limits.MAX_TEXT), ("payload_encoding", limits.MAX_NAME)):
        value = getattr(item, field)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            return field
    if len(item.attributes or {}) > limits.MAX_ATTRIBUTES:
        return "attributes"
    if len(item.body or b"") > max_body_bytes:
        return "body"
    if len(item.request_id or "") > limits.MAX_NAME:
        return "request_id"
    if not 0 <= item.priority < limits.PRIORITIES:
        return "priority"
    if not 0 <= delay_ms <= limits.MAX_DELAY_MS:
        return "not_before_ms"
    return ""


class Judged(NamedTuple):
    """An ack that ends leases: where, of which items, and the answer."""

    space: Space
    live: list[Thing]
    acked: Acked


class Work(Ground):
    """The operations that a worker and its producer use."""

    # What falls due.

    def fall_due(self) -> None:
        """Everything whose time has come, namespace by namespace."""
        for space in list(self.spaces):
            self._expire(space)
            self._release(space)
            self.decide_backpressure(space)

    def _expire(self, space: Space) -> None:
        ended = sorted(
            (thing for thing in space.active() if thing.deadline_ms <= self.clock_ms),
            key=lambda thing: (thing.deadline_ms, thing.fence),
        )
        for peer in dict.fromkeys(thing.peer for thing in ended):
            group = [thing for thing in ended if thing.peer == peer]
            rows = [Row(*thing.handle) for thing in group]
            for thing in group:
                self.end_lease(thing, EXPIRED)
            self.emit(EventType.LEASE_EXPIRED, rows, space.name, peer)
            self.requeue_or_bury(space, group, [True] * len(group), [None] * len(group), peer)
            self.disconnect(peer, space.name, "lease expired")

    def _release(self, space: Space) -> None:
        ready = [thing for thing in space.delayed() if thing.due_ms <= self.clock_ms]
        for thing, number in zip(ready, self.next_numbers(), strict=False):
            self.put_in_line(thing, number, 0)
        self.emit(EventType.RELEASED, [Row(thing.sequence_id, thing.attempt) for thing in ready], space.name)

    # Enqueue.

    def enqueue(self, op: Enqueue) -> Any:
        """Each item is judged in turn; what is accepted joins the tail of its priority."""
        if not self.room_for_space(op.call.namespace):
            return no(Reason.QUEUE_FULL)
        items, delays = items_of(op.items)
        space = self.space(op.call.namespace) or Space(op.call.namespace)
        ids: list[int] = []
        duplicates: list[int] = []
        refused: dict[int, Refusal] = {}
        accepted: list[Thing] = []
        for place, (item, delay_ms) in enumerate(zip(items, delays, strict=True)):
            ids.append(0)
            field = wrong_field(item, delay_ms, space.options.max_body_bytes)
            known = self.known_request(space, item.request_id)
            twin = next((new for new in accepted if item.request_id and new.item.request_id == item.request_id), None)
            if field:
                refused[place] = no(Reason.INVALID_ARGUMENT, f"items[{place}].{field}")
            elif known or twin:
                ids[place] = known[0] if known else twin.sequence_id if twin else 0
                duplicates.append(place)
            elif space.backpressure:
                refused[place] = no(Reason.BACKPRESSURE)
            elif space.unsettled() + len(accepted) >= space.options.capacity:
                refused[place] = no(Reason.QUEUE_FULL)
            else:
                ids[place] = space.last_id + len(accepted) + 1
                accepted.append(Thing(ids[place], item, DELAYED if delay_ms else PENDING, 0, due_ms=delay_ms))
        if accepted:
            space = self.open_space(space.name, op.call.peer)
            self._append(space, accepted, op.call.peer)
        return Enqueued(ids, duplicates, refused, len(space.pending()))

    def _append(self, space: Space, accepted: list[Thing], peer: str) -> None:
        for thing, number in zip(accepted, self.next_numbers(), strict=False):
            thing.item = thing.item._replace(enqueued_at_ms=self.wall_ms, lead=number - thing.sequence_id)
            self.put_in_line(thing, number, thing.due_ms)
            space.things.append(thing)
        space.last_id += len(accepted)
        space.enqueued += len(accepted)
        rows = [Row(thing.sequence_id, 1) for thing in accepted]
        self.emit(EventType.ENQUEUE, rows, space.name, peer, own=True)

    # Lease.

    def lease(self, op: Lease) -> Any:
        """The head of the queue, to the calling peer."""
        name, peer = op.call.namespace, self.peer(op.call.peer)
        if not self.room_for_space(name):
            return no(Reason.QUEUE_FULL)
        space = self.space(name)
        if space and space.options.enforce_peer_health and peer and peer.disconnected:
            self.hear_again(peer, space)
            return no(Reason.PEER_UNHEALTHY)
        if space and space.paused:
            self.hear_again(peer, space)
            return no(Reason.PAUSED)
        if not self.room_for_peer(op.call.peer):
            return no(Reason.QUEUE_FULL)
        space = self.open_space(name, op.call.peer)
        chosen = self._head(space, op.limit, op.max_bytes)
        if peer is None or chosen:
            self.meet(op.call.peer, name)
        else:
            self.hear_again(peer, space)
        return self._grant(space, chosen, op)

    def _head(self, space: Space, limit: int, max_bytes: int) -> list[Thing]:
        chosen: list[Thing] = []
        for thing in space.pending()[:limit]:
            if chosen and max_bytes and sum(other.weight for other in chosen) + thing.weight > max_bytes:
                break
            chosen.append(thing)
        return chosen

    def _grant(self, space: Space, chosen: list[Thing], op: Lease) -> Granted:
        if not chosen:
            return Granted([], [], [], [], {}, 0, 0)
        lease_end = self.clock_ms + space.options.lease_duration_ms
        deadline_ms = max(lease_end, space.held_until.get(op.call.peer, 0))
        before = {place: (thing.last, thing.failure) for place, thing in enumerate(chosen) if thing.last}
        for thing in chosen:
            self.fence += 1
            thing.place, thing.fence, thing.deadline_ms = ACTIVE, self.fence, deadline_ms
            thing.peer, thing.principal, thing.left_by = op.call.peer, op.call.principal, ""
        self.emit(EventType.LEASE_GRANTED, [Row(*thing.handle) for thing in chosen], space.name, op.call.peer, own=True)
        return Granted(
            [thing.sequence_id for thing in chosen],
            [thing.attempt for thing in chosen],
            [thing.fence for thing in chosen],
            [tuple(thing.item) for thing in chosen],
            before,
            deadline_ms,
            deadline_ms - self.clock_ms,
        )

    def still_live(self, namespace: str, granted: Granted) -> Granted:
        """An earlier grant, as far as its leases still run, until the first of them ends."""
        space = self.space(namespace)
        live = {thing.handle: thing.deadline_ms for thing in space.active()} if space else {}
        columns = zip(granted.sequence_ids, granted.attempts, granted.fences, strict=True)
        handles = [Handle(*row) for row in columns]
        places = [place for place, handle in enumerate(handles) if handle in live]
        before = {new: granted.before[old] for new, old in enumerate(places) if old in granted.before}
        deadline_ms = min((live[handles[place]] for place in places), default=0)
        return Granted(
            [handles[place].sequence_id for place in places],
            [handles[place].attempt for place in places],
            [handles[place].fence for place in places],
            [granted.rows[place] for place in places],
            before,
            deadline_ms,
            deadline_ms - self.clock_ms,
        )

    def take_over(self, op: Lease, granted: Granted) -> Granted:
        """A later take of a lease: what still runs is extended, and no earlier take can give it back."""
        columns = granted.sequence_ids, granted.attempts, granted.fences
        space = self.space(op.call.namespace)
        assert space is not None
        beat = Heartbeat(op.call, *columns)
        _, acked = self._judge(space, beat, handles_of(*columns))
        if acked.refused:
            return Granted([], [], [], [], {}, 0, 0)
        acked = self.heartbeat(beat)
        self.note_take(op.call)
        return granted._replace(deadline_ms=acked.deadline_ms, left_ms=acked.left_ms)

    # Heartbeat.

    def heartbeat(self, op: Heartbeat) -> Any:
        """More time for the named leases, or for the peer as a whole."""
        if op.sequence_ids is None or op.attempts is None or op.fences is None:
            return self._heartbeat_of_peer(op)
        space = self.space(op.call.namespace)
        if space is None:
            return no(Reason.NOT_FOUND)
        handles = handles_of(op.sequence_ids, op.attempts, op.fences)
        live, acked = self._judge(space, op, handles)
        if not live:
            return acked
        if not self.room_for_peer(op.call.peer):
            return no(Reason.QUEUE_FULL)
        peer = self.meet(op.call.peer, space.name)
        deadline_ms = self.clock_ms + space.options.lease_duration_ms
        for thing in live:
            thing.deadline_ms = max(thing.deadline_ms, deadline_ms)
        rows = [Row(*thing.handle) for thing in live]
        self.emit(EventType.HEARTBEAT, rows, space.name, op.call.peer, own=True)
        self.connect(peer, space.name)
        return acked._replace(deadline_ms=deadline_ms, left_ms=deadline_ms - self.clock_ms)

    def _heartbeat_of_peer(self, op: Heartbeat) -> Any:
        name = op.call.namespace
        if not self.room_for_space(name) or not self.room_for_peer(op.call.peer):
            return no(Reason.QUEUE_FULL)
        space = self.open_space(name, op.call.peer)
        peer = self.meet(op.call.peer, name)
        lease_end = self.clock_ms + space.options.lease_duration_ms
        held_until = space.held_until[peer.name] = max(lease_end, space.held_until.get(peer.name, 0))
        for thing in space.active():
            if thing.peer == peer.name:
                thing.deadline_ms = max(thing.deadline_ms, held_until)
        self.emit(EventType.HEARTBEAT, [Row()], name, peer.name, own=True)
        self.connect(peer, name)
        return Acked(0, {}, held_until, held_until - self.clock_ms)

    # Complete, fail, give back.

    def complete(self, op: Complete) -> Any:
        """The items are done and leave."""
        judged = self._judge_ack(op)
        if not isinstance(judged, Judged):
            return judged
        space, live, acked = judged
        rows = [Row(*thing.handle) for thing in live]
        for thing in live:
            handle = thing.handle
            self.end_lease(thing, COMPLETED)
            space.completed += 1
            self.take_away(space, thing, COMPLETED, handle)
        self.emit(EventType.COMPLETED, rows, space.name, op.call.peer, own=True)
        return acked

    def fail(self, op: Fail) -> Any:
        """An attempt ended badly: another one, or death."""
        judged = self._judge_ack(op)
        if not isinstance(judged, Judged):
            return judged
        space, live, acked = judged
        handles = handles_of(op.sequence_ids, op.attempts, op.fences)
        wishes = spread(op.requeue, len(handles))
        waits: list[int | None] = spread(op.delays_ms, len(handles))
        said: list[Failure | None] = [Failure(*failure) for failure in op.failures or ()]
        said = said or [None]
        said = said * len(handles) if len(said) == 1 else said
        places = [handles.index(thing.handle) for thing in live]
        rows = [Row(*thing.handle) for thing in live]
        for thing, place in zip(live, places, strict=True):
            self.end_lease(thing, FAILED)
            thing.failure = said[place] or thing.failure
        self.emit(EventType.FAILED, rows, space.name, op.call.peer, own=True)
        self.requeue_or_bury(
            space, live, [wishes[place] for place in places], [waits[place] for place in places], op.call.peer
        )
        if not all(wishes[place] for place in places):
            self.disconnect(op.call.peer, space.name, "failed without requeue")
        return acked

    def give_back(self, op: GiveBack) -> Any:
        """The items stand where they stood, with no attempt spent."""
        judged = self._judge_ack(op)
        if not isinstance(judged, Judged):
            return judged
        space, live, acked = judged
        rows = [Row(*thing.handle) for thing in live]
        for thing in live:
            self.end_lease(thing, GIVEN_BACK)
            thing.place = PENDING
        self.emit(EventType.REQUEUED, rows, space.name, op.call.peer, own=True)
        return acked

    def _judge_ack(self, op: Complete | Fail | GiveBack) -> Judged | Acked | Refusal:
        """What is to happen, or the answer alone if nothing is."""
        space = self.space(op.call.namespace)
        if space is None:
            return no(Reason.NOT_FOUND)
        live, acked = self._judge(space, op, handles_of(op.sequence_ids, op.attempts, op.fences))
        if not live:
            return acked
        if not self.room_for_peer(op.call.peer):
            return no(Reason.QUEUE_FULL)
        if isinstance(op, GiveBack) and op.untold and self.take_of(op.call, op.untold) > op.call.take:
            return acked
        self.meet(op.call.peer, space.name)
        return Judged(space, live, acked)

    def _judge(
        self, space: Space, op: Heartbeat | Complete | Fail | GiveBack, handles: list[Handle]
    ) -> tuple[list[Thing], Acked]:
        live: list[Thing] = []
        refused: dict[int, Refusal] = {}
        for place, handle in enumerate(handles):
            thing = self.live_lease(space, handle)
            if thing is None:
                reason = self.verdict(space, type(op), handle)
                if reason:
                    refused[place] = no(reason)
            elif thing.principal and thing.principal != op.call.principal:
                refused[place] = no(Reason.FORBIDDEN)
            elif thing not in live:
                live.append(thing)
        return live, Acked(len(handles), refused)

    def live_lease(self, space: Space, handle: Handle) -> Thing | None:
        """The item that is held under exactly this lease."""
        return next((thing for thing in space.active() if thing.handle == handle), None)

    def verdict(self, space: Space, kind: type, handle: Handle) -> Reason | None:
        """What a handle without a live lease gets; None: accepted again."""
        if not 1 <= handle.sequence_id <= space.last_id or not 1 <= handle.fence <= self.fence:
            return Reason.NOT_FOUND
        thing = space.find(handle.sequence_id)
        if thing is None:
            settled = self.settled(space, handle.sequence_id)
            if settled is None:
                return Reason.NOT_FOUND
            if settled.outcome == COMPLETED and settled.handle.fence == handle.fence:
                return None if kind is Complete else Reason.ALREADY_SETTLED
            return Reason.LEASE_LOST
        outcome = thing.lasted(handle)
        if (outcome, kind) in ((FAILED, Fail), (GIVEN_BACK, GiveBack)):
            return None
        if outcome == FAILED and thing.place == DEAD and kind in (Complete, Heartbeat):
            return Reason.ALREADY_SETTLED
        return Reason.LEASE_LOST
