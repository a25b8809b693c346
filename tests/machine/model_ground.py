"""What all operations of the naive model stand on: the log, namespaces, peers, backpressure, answers, ends of items."""

from collections.abc import Iterable, Sequence
from typing import Any

from model_state import (
    DEAD,
    DISCARDED,
    Answer,
    EndedRequest,
    Handle,
    Happened,
    Page,
    Peer,
    Row,
    Settled,
    SettledBlock,
    Space,
    Thing,
)

from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.items import LastLease
from resourcelease.model.ops import Call, Complete, Fail, GiveBack, Heartbeat, Lease, Op
from resourcelease.model.options import DEFAULT_OPTIONS
from resourcelease.model.results import Acked

# A refusal of one of these is an answer too, and remembered; not for leases and acks.
_REMEMBERED = (Reason.QUEUE_FULL, Reason.BACKPRESSURE, Reason.NOT_FOUND, Reason.CONFLICT)
_CURABLE = (Reason.QUEUE_FULL, Reason.BACKPRESSURE)
_LEASE_AND_ACKS = (Lease, Heartbeat, Complete, Fail, GiveBack)


def no(reason: Reason, field: str = "") -> Refusal:
    """A refusal; its words are free."""
    return Refusal(reason, "", field)


def refusals(result: Any) -> list[Refusal]:
    """Every no that a result holds."""
    return [result] if isinstance(result, Refusal) else list(getattr(result, "refused", {}).values())


class Ground:
    """The state of the whole cluster, and the steps that several operations share."""

    def __init__(self, cluster_id: str, pages: dict[bytes, Page] | None = None) -> None:
        self.cluster_id = cluster_id
        self.applied_index = 0
        self.clock_ms = 0
        self.wall_ms = 0
        self.fence = 0
        self.sequence = 0
        self.spaces: list[Space] = []
        # In the order in which they were last heard of.
        self.peers: list[Peer] = []
        self.answers: list[Answer] = []
        self.events: list[Happened] = []
        # The op at hand has put an event of its own into the log.
        self.own_events = False
        # Pages by what stands for them outside: drained pages, and the same as the real machine packs them.
        self.pages: dict[bytes, Page] = {} if pages is None else pages

    # The log.

    def emit(self, type_: EventType, rows: Sequence[Row], space: str, peer: str = "", *, own: bool = False) -> None:
        """All events of one type of one step, after the state has changed accordingly."""
        found = self.space(space)
        pending = len(found.pending()) if found else 0
        active = len(found.active()) if found else 0
        for row in rows:
            self.sequence += 1
            self.events.append(Happened(self.sequence, type_, space, *row, peer, pending, active))
        self.own_events = self.own_events or own

    def next_numbers(self) -> Iterable[int]:
        """The numbers that the next events will get."""
        number = self.sequence
        while True:
            number += 1
            yield number

    # Namespaces.

    def space(self, name: str) -> Space | None:
        """The namespace, if it has been created."""
        return next((space for space in self.spaces if space.name == name), None)

    def room_for_space(self, name: str) -> bool:
        """Whether the namespace is there or may be created."""
        return self.space(name) is not None or len(self.spaces) < limits.MAX_NAMESPACES

    def open_space(self, name: str, peer: str) -> Space:
        """The namespace, created with default options if it is new."""
        space = self.space(name)
        if space is None:
            space = Space(name, DEFAULT_OPTIONS)
            self.spaces.append(space)
            self.emit(EventType.CONFIGURED, [Row()], name, peer)
        return space

    def decide_backpressure(self, space: Space) -> None:
        """On at the high watermark, off at the low one or without watermarks."""
        high, low = space.options.high_watermark, space.options.low_watermark
        pending = len(space.pending())
        active = space.backpressure
        if high is None or low is None or pending <= low:
            active = False
        elif pending >= high:
            active = True
        if active != space.backpressure:
            space.backpressure = active
            self.emit(EventType.BACKPRESSURE, [Row()], space.name)

    # Peers.

    def peer(self, name: str) -> Peer | None:
        """The peer, if it is known."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def active_of(self, peer: str) -> int:
        """How many leases the peer holds, over all namespaces."""
        return sum(thing.peer == peer for space in self.spaces for thing in space.active())

    def reassignments_of(self, peer: str) -> int:
        """How many items wait for another try after a lease of this peer."""
        return sum(thing.left_by == peer for space in self.spaces for thing in space.pending() + space.delayed())

    def room_for_peer(self, name: str) -> bool:
        """Whether the peer is known or may become so."""
        return bool(self.peer(name) or len(self.peers) < limits.MAX_PEERS or self._forgettable())

    def meet(self, name: str, space: str) -> Peer:
        """The peer, heard of now; makes room and lets it join if it is new."""
        peer = self.peer(name)
        if peer is None:
            if len(self.peers) >= limits.MAX_PEERS:
                gone = self._forgettable()[0]
                self.peers.remove(gone)
                for other in self.spaces:
                    other.held_until.pop(gone.name, None)
                    other.heard_ms.pop(gone.name, None)
                self.emit(EventType.PEER_CHANGED, [Row()], space, gone.name)
            peer = Peer(name, self.clock_ms)
            self.peers.append(peer)
            self.emit(EventType.PEER_CHANGED, [Row()], space, name)
        self._hear(peer, space)
        return peer

    def hear_again(self, peer: Peer | None, space: Space) -> None:
        """A lease call without a grant: noted for a known peer, if it was not heard of here lately."""
        if peer is None:
            return
        heard_ms = space.heard_ms.get(peer.name)
        if heard_ms is None or (self.clock_ms - heard_ms) * 10 >= space.options.peer_grace_ms:
            self._hear(peer, space.name)
            self.emit(EventType.PEER_CHANGED, [Row()], space.name, peer.name)

    def _hear(self, peer: Peer, name: str) -> None:
        peer.heard_ms = self.clock_ms
        self.peers.remove(peer)
        self.peers.append(peer)
        space = self.space(name)
        if space is not None:
            space.heard_ms[peer.name] = self.clock_ms

    def disconnect(self, name: str, space: str, reason: str) -> None:
        """The peer lost a lease, or gave up on an item."""
        peer = self.peer(name)
        if peer is not None and not peer.disconnected:
            peer.disconnected = reason
            self.emit(EventType.PEER_CHANGED, [Row()], space, name)

    def connect(self, peer: Peer, space: str) -> None:
        """A heartbeat came."""
        if peer.disconnected:
            peer.disconnected = ""
            self.emit(EventType.PEER_CHANGED, [Row()], space, peer.name)

    def _forgettable(self) -> list[Peer]:
        """Peers without leases and reassignments, the longest unheard first."""
        return [peer for peer in self.peers if not self.active_of(peer.name) and not self.reassignments_of(peer.name)]

    # Items.

    def end_lease(self, thing: Thing, outcome: str) -> None:
        """The lease becomes the last lease."""
        thing.last = LastLease(thing.attempt, thing.fence, thing.peer, outcome)
        thing.left_by = thing.peer
        thing.fence = thing.deadline_ms = 0
        thing.peer = thing.principal = thing.place = ""

    def take_away(self, space: Space, thing: Thing, outcome: str, handle: Handle) -> None:
        """The item leaves for good; late acks and its request id are remembered for their windows."""
        space.things.remove(thing)
        self._settle(space, Settled(handle, outcome))
        if thing.item.request_id:
            forget_ms = self.clock_ms + space.options.dedup_window_ms
            space.ended_requests.append(EndedRequest(thing.item.request_id, thing.sequence_id, outcome, forget_ms))
        self._bound_requests(space)

    def _settle(self, space: Space, settled: Settled) -> None:
        number = settled.handle.sequence_id // limits.SETTLED_BLOCK
        space.settled_blocks = [block for block in space.settled_blocks if self._lately(block.written_ms)]
        block = next((block for block in space.settled_blocks if block.number == number), None)
        if block is None:
            if len(space.settled_blocks) >= limits.SETTLED_BLOCKS:
                oldest = min(space.settled_blocks, key=lambda block: (block.written_ms, block.number))
                space.settled_blocks.remove(oldest)
            block = SettledBlock(number, self.clock_ms)
            space.settled_blocks.append(block)
        block.written_ms = self.clock_ms
        block.settled.append(settled)

    def _bound_requests(self, space: Space) -> None:
        """Ended request ids beyond the limit go, a millisecond at a time, except the newest."""
        while len(space.ended_requests) > space.options.dedup_limit:
            first = min(ended.forget_ms for ended in space.ended_requests)
            if first == max(ended.forget_ms for ended in space.ended_requests):
                break
            space.ended_requests = [ended for ended in space.ended_requests if ended.forget_ms != first]

    def _discard_surplus(self, space: Space, peer: str) -> None:
        """The oldest dead letters beyond the limit go."""
        surplus = space.dead()[: max(0, len(space.dead()) - space.options.dead_letter_limit)]
        for thing in surplus:
            space.discarded += 1
            last = thing.last
            self.take_away(space, thing, DISCARDED, Handle(thing.sequence_id, thing.attempt, last.fence if last else 0))
        self.emit(EventType.DISCARDED, [Row(thing.sequence_id, thing.attempt) for thing in surplus], space.name, peer)

    def known_request(self, space: Space, request_id: str | None) -> tuple[int, str] | None:
        """The id of the item that has or had this request id, and how it ended."""
        if not request_id:
            return None
        for thing in space.things:
            if thing.item.request_id == request_id:
                return thing.sequence_id, ""
        for ended in space.ended_requests:
            if ended.request_id == request_id and self.clock_ms < ended.forget_ms:
                return ended.sequence_id, ended.outcome
        return None

    def settled(self, space: Space, sequence_id: int) -> Settled | None:
        """How the item ended, if that was lately."""
        for block in space.settled_blocks:
            for settled in reversed(block.settled):
                if settled.handle.sequence_id == sequence_id and self._lately(block.written_ms):
                    return settled
        return None

    def requeue_or_bury(
        self, space: Space, things: Sequence[Thing], again: Sequence[bool], waits: Sequence[int | None], peer: str
    ) -> None:
        """What follows a failed or expired lease: another attempt while the budget lasts, or death."""
        numbers = iter(self.next_numbers())
        back, gone = [], []
        for thing, requeue, wait in zip(things, again, waits, strict=True):
            if requeue and thing.used < space.options.max_attempts:
                wait = space.options.requeue_wait_ms(thing.used) if wait is None else wait
                self.put_in_line(thing, next(numbers), wait)
                thing.attempt += 1
                assert thing.last is not None
                back.append(Row(thing.sequence_id, thing.attempt, thing.last.fence))
            else:
                gone.append(thing)
        self.emit(EventType.REQUEUED, back, space.name, peer)
        for thing, number in zip(gone, self.next_numbers(), strict=False):
            thing.place, thing.died = DEAD, number
        died = [Row(thing.sequence_id, thing.attempt, thing.last.fence) for thing in gone if thing.last]
        self.emit(EventType.DEAD_LETTERED, died, space.name, peer)
        if gone:
            self._discard_surplus(space, peer)

    def put_in_line(self, thing: Thing, ticket: int, wait_ms: int) -> None:
        """To the tail of its priority, or aside until the wait is over."""
        thing.ticket = ticket
        thing.place = "delayed" if wait_ms > 0 else "pending"
        thing.due_ms = self.clock_ms + wait_ms if wait_ms > 0 else 0

    # Answers.

    def remembered(self, op: Op) -> Any:
        """The answer to an earlier take of this call, or None if it is to be decided now."""
        key = (op.call.namespace, op.call.peer, op.call.operation_id)
        for answer in self.answers:
            if answer.key != key or not self._lately(answer.at_ms):
                continue
            if answer.kind is not type(op):
                return no(Reason.CONFLICT)
            curable = any(refusal.reason in _CURABLE for refusal in refusals(answer.result))
            if op.call.take > answer.take and curable and not answer.accepted:
                return None
            if isinstance(answer.result, Acked):
                return answer.result._replace(left_ms=max(0, answer.result.deadline_ms - self.clock_ms))
            return answer.result
        return None

    def take_of(self, call: Call, operation_id: str) -> int:
        """The take whose answer is kept under an operation id of this caller; 0 if there is none."""
        key = (call.namespace, call.peer, operation_id)
        return next((each.take for each in self.answers if each.key == key and self._lately(each.at_ms)), 0)

    def note_take(self, call: Call) -> None:
        """The kept answer is from now on that of this take, and the newest."""
        key = (call.namespace, call.peer, call.operation_id)
        (answer,) = (each for each in self.answers if each.key == key)
        self.answers.remove(answer)
        self.answers.append(answer._replace(take=call.take, at_ms=self.clock_ms))

    def remember(self, op: Op, result: Any) -> None:
        """Keeps the answer for retries, if it is one to keep."""
        call = op.call
        if not call.operation_id:
            return
        accepted = self.own_events
        if not accepted:
            if isinstance(op, _LEASE_AND_ACKS):
                return
            if not any(refusal.reason in _REMEMBERED for refusal in refusals(result)):
                return
            self.emit(EventType.REJECTED, [Row()], call.namespace, call.peer)
        key = (call.namespace, call.peer, call.operation_id)
        self.answers = [answer for answer in self.answers if answer.key != key]
        self.answers.append(Answer(key, call.take, type(op), result, self.clock_ms, accepted))
        of_peer = [answer for answer in self.answers if answer.key[1] == call.peer]
        for answer in of_peer[: max(0, len(of_peer) - limits.ANSWERS_PER_PEER)]:
            self.answers.remove(answer)

    def keeps_answer(self, op: Op) -> bool:
        """Whether a retry of exactly this op would be told what is remembered."""
        call = op.call
        key = (call.namespace, call.peer, call.operation_id)
        return any(answer.key == key and answer.kind is type(op) for answer in self.answers)

    def _lately(self, at_ms: int) -> bool:
        return self.clock_ms < at_ms + limits.ANSWER_WINDOW_MS
