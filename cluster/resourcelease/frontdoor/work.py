"""Work: the stream of one worker. Credit comes in, leases go out, and acks ride along.

The stream is one seeker among those that wait for work, and the holder of the leases that it pushed. It heartbeats them
while it lives. A lease that has not left for the worker when the stream ends is given back; one that has is the
worker's, and is left to run.
"""

import asyncio
import logging
from typing import Any

import grpc

from resourcelease import v1
from resourcelease.errands import Errands
from resourcelease.frontdoor import answers
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.claims import claim, give_back, give_back_others
from resourcelease.frontdoor.direct import attend
from resourcelease.frontdoor.duplex import Duplex
from resourcelease.frontdoor.frames import check_first, check_later, frame_of
from resourcelease.frontdoor.heartbeat import Pulse
from resourcelease.frontdoor.held import Held
from resourcelease.frontdoor.outbox import Outbox, Push
from resourcelease.frontdoor.refusals import Refused, item_error
from resourcelease.frontdoor.workplace import Workplace
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.limits import MAX_ITEMS_PER_OP
from resourcelease.model.ops import Call, Heartbeat, Lease
from resourcelease.model.results import Acked, Granted

__all__ = ["WorkStream", "work"]

logger = logging.getLogger(__name__)

_CREDIT_MAX = 10_000
# The key of WorkLeases.leases.
_LEASES = b"\x0a"
# Leases in one push, and what they may weigh.
_PUSH_MAX = 1_000
_PUSH_BYTES = 3 * 1024 * 1024
# Frames of one worker that are under way; beyond them its next ones are not read.
_FRAMES_MAX = 64
# How long a stream waits after a refusal before it asks again.
_AGAIN_S = 0.5
# How soon after the end of what it sends a caller that has gone is known to have gone.
_BROKEN_S = 0.05


class WorkStream(Duplex):
    """One worker's stream on this node."""

    def __init__(self, place: Workplace, caller: Caller, first: v1.WorkRequest) -> None:
        super().__init__()
        check_first(first)
        call = caller.call(first, needs_peer=True)
        self._place = place
        self._context = caller.context
        self._call = Call(call.namespace, call.peer, call.principal)
        self._loop = asyncio.get_running_loop()
        self.ticket = 0
        self._credit = 0
        self._add_credit(first.credit)
        self._reads_packed = first.open.reads_packed
        self._outbox = Outbox(place.replica.leaving, self._leaving, self._seek)
        self._held = Held()
        self._pulse = Pulse(self._beat, self._loop)
        self._frames = Errands()
        # Whether it takes leases; whether it is among the granter's seekers; the grant to be asked for again.
        self._open = False
        self._seeking = False
        # Whether the worker was told to go on elsewhere, with what it holds.
        self._sent_away = False
        self._unanswered: Lease | None = None

    @property
    def namespace(self) -> str:
        """Whose items."""
        return self._call.namespace

    @property
    def peer(self) -> str:
        """Who works."""
        return self._call.peer

    # Life.

    async def run(self, first: v1.WorkRequest) -> None:
        """Serves the worker until it closes its side, or somebody ends the stream."""
        self._place.streams.enter(self)
        try:
            await self._until_over(self._outbox, self._outbox.write(self._context), self._read(first))
        finally:
            self._open = False
            self._frames.cancel()
            self._close()

    def go_away(self, message: str) -> bool:
        """The worker is to go on elsewhere: pushes no more, and says so, once."""
        if self._sent_away:
            return False
        self._sent_away = True
        self._stop_taking()
        self._outbox.put(v1.WorkResponse(go_away=v1.WorkGoAway(message=message)))
        return True

    def end(self, refused: Refused) -> None:
        """Ends the stream with a status."""
        if not self._ended.done():
            self._ended.set_exception(refused)

    async def _read(self, first: v1.WorkRequest) -> None:
        await self._begin(first)
        attend(self._context, self._take_now)
        while (request := await self._context.read()) is not grpc.aio.EOF:
            # Its credit counts at once, whatever it has to wait for.
            self._heed(request)
            if request.WhichOneof("frame") is not None:
                await self._outbox.room()
                await self._frames.fewer_than(_FRAMES_MAX)
            self._take(request)
        self._stop_taking()
        await self._frames.over()
        # A connection that broke ends the reading too, and then cancels us: what it held has to run out.
        await asyncio.sleep(_BROKEN_S)
        if not self._sent_away:
            await give_back(self._place, self._call, self._held.all())
        await self._outbox.drained()

    def _take_now(self, request: v1.WorkRequest) -> bool:
        if self._outbox.full or self._frames.under_way >= _FRAMES_MAX:
            return False
        self._heed(request)
        self._take(request)
        return True

    def _heed(self, request: v1.WorkRequest) -> None:
        check_later(request, self._call)
        self._add_credit(request.credit)

    def _take(self, request: v1.WorkRequest) -> None:
        if request.WhichOneof("frame") is not None:
            self._frames.begin(self._answer(request), self._frame_over)
        self._seek()

    async def _begin(self, first: v1.WorkRequest) -> None:
        machine = self._place.replica.machine
        queue = machine.queue(self.namespace)
        options = queue.options if queue else self._place.default_options
        opened = v1.WorkOpened(
            node_id=self._place.node_id,
            lease_duration_ms=options.lease_duration_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
        )
        self._outbox.put(v1.WorkResponse(position=self._place.replica.position(self.namespace), opened=opened))
        claimed = [(handle.sequence_id, handle.attempt, handle.lease_id) for handle in first.open.held]
        await self._claim(claimed)
        if first.open.give_back_others:
            await give_back_others(self._place, self._call, self._held)
        self._open = True
        self._pulse.start(options)
        self._seek()

    async def _claim(self, claimed: list[tuple[int, int, int]]) -> None:
        """The leases that the worker says it holds: those that live are this stream's from now on."""
        if not claimed:
            return
        for lease, refusal in zip(claimed, await claim(self._place, self._call, claimed), strict=True):
            if refusal is None:
                self._held.add(*lease, pushed=False)
                self._place.streams.note(self, [lease[2]])
            else:
                self._tell_lost(*lease, refusal)

    def _stop_taking(self) -> None:
        """No more leases: those that have not left go back."""
        self._open = False
        if self._seeking:
            self._place.granter.leave(self)
        for granted in self._outbox.take_pushes():
            self._drop(granted)

    def _close(self) -> None:
        self._stop_taking()
        self._pulse.stop()
        self._place.streams.leave(self, list(self._held))

    def _frame_over(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError) and not self._ended.done():
            self._ended.set_exception(error)

    # Leases out.

    def _add_credit(self, credit: int) -> None:
        self._credit = min(max(self._credit + credit, 0), _CREDIT_MAX)

    def _seek(self) -> None:
        """Stands in line if there is credit, room, and nothing on its way already."""
        ready = self._open and not self._seeking and not self._outbox.pushing
        if ready and self._credit > 0 and len(self._held) < MAX_ITEMS_PER_OP:
            self._seeking = True
            if self.ticket and self._unanswered is None:
                self._place.granter.line_up(self)
            else:
                self._place.granter.seek(self)

    def _seek_again(self) -> None:
        self._seeking = False
        self._seek()

    def wish(self, share: int) -> Lease | None:
        """As many as there is credit for, and no more than a fair part."""
        if not self._open or self._credit <= 0:
            self._seeking = False
            return None
        if self._unanswered is None:
            limit = min(self._credit, share, _PUSH_MAX)
            named = self._call._replace(operation_id=self._place.next_operation_id())
            self._unanswered = Lease(named, limit, _PUSH_BYTES)
        return self._unanswered

    def granted(self, granted: Granted) -> bool:
        """Takes leases, unless the stream has ended meanwhile."""
        self._unanswered = None
        if not self._open:
            return False
        if not granted.sequence_ids:
            return True
        self._seeking = False
        self._credit = max(0, self._credit - len(granted.sequence_ids))
        for lease in zip(granted.sequence_ids, granted.attempts, granted.fences, strict=True):
            self._held.add(*lease, pushed=True)
        self._place.streams.note(self, granted.fences)
        self._outbox.put(Push(granted, self._loop.time()))
        return True

    def refused(self, refused: Refused) -> bool:
        """Most refusals pass; one that cannot ends the stream."""
        reason = refused.refusal.reason
        if not self._open:
            return False
        if reason is Reason.PAUSED:
            self._unanswered = None
            return True
        if reason in (Reason.INVALID_ARGUMENT, Reason.FORBIDDEN, Reason.UNAUTHENTICATED):
            self.end(refused)
        else:
            if reason not in (Reason.OUTCOME_UNKNOWN, Reason.NO_LEADER):
                self._unanswered = None
            self._loop.call_later(_AGAIN_S, self._seek_again)
        return False

    def _leaving(self, push: Push) -> v1.WorkResponse | None:
        """The message for leases that leave now; None if their time has run out here."""
        granted = push.granted
        left_ms = granted.left_ms - int((self._loop.time() - push.at) * 1000)
        if left_ms <= 0:
            self._drop(granted)
            return None
        granted = granted._replace(left_ms=left_ms)
        packed = answers.packed_leases(granted) if self._reads_packed else None
        if packed is not None:
            leases = v1.WorkLeases(packed=packed)
        else:
            leases = v1.WorkLeases.FromString(answers.leases(granted, _LEASES))
        leases.credit_left = self._credit
        return v1.WorkResponse(
            position=self._place.replica.position(self.namespace),
            leases=leases,
        )

    def _drop(self, granted: Granted) -> None:
        self._credit = min(self._credit + len(granted.sequence_ids), _CREDIT_MAX)
        self._place.streams.forget(self, granted.fences)
        for fence in granted.fences:
            self._held.drop(fence)
        self._place.granter.give_back(self._call, granted)

    # Leases that end.

    def let_go(self, fence: int) -> None:
        """A lease ended as its worker wished."""
        self._held.drop(fence)
        if len(self._held) == MAX_ITEMS_PER_OP - 1:
            # It may have ended by a call of its own: then nothing else would say that there is room again.
            self._loop.call_soon(self._seek)

    def lose(self, fence: int, refusal: Refusal) -> None:
        """A lease ended without its worker."""
        lease = self._held.drop(fence)
        if lease is not None:
            self._tell_lost(*lease, refusal)

    def fence_of(self, sequence_id: int) -> int:
        """The lease that it holds on an item."""
        return self._held.fence_of(sequence_id)

    def _tell_lost(self, sequence_id: int, attempt: int, fence: int, refusal: Refusal) -> None:
        handle = v1.Handle(sequence_id=sequence_id, attempt=attempt, lease_id=fence)
        self._outbox.put_lost(v1.LostLease(handle=handle, error=item_error(refusal)))

    # Frames in.

    async def _answer(self, request: v1.WorkRequest) -> None:
        call = self._call._replace(operation_id=request.operation_id)
        done = v1.WorkDone(operation_id=request.operation_id)
        try:
            if request.WhichOneof("frame") == "hand_back" and request.hand_back.all_of_stream:
                await self._hand_all_back(request.hand_back)
                done.hand_back.CopyFrom(v1.FailResponse())
            else:
                if request.WhichOneof("frame") == "heartbeat":
                    self._pulse.heard()
                await frame_of(self._place.acks, call, request, done)
        except Refused as refused:
            done.error.CopyFrom(item_error(refused.refusal))
        self._outbox.put(v1.WorkResponse(position=self._place.replica.position(self.namespace), done=done))

    async def _hand_all_back(self, frame: v1.HandBack) -> None:
        if frame.handles:
            raise Refused(Reason.INVALID_ARGUMENT, "give either this or handles", "hand_back.all_of_stream")
        for granted in self._outbox.take_pushes():
            self._drop(granted)
        await give_back(self._place, self._call, self._held.pushed())

    # Heartbeats.

    def _beat(self) -> None:
        """One heartbeat for all that the stream holds; for an idle one, a sign of life."""
        blocked = self._outbox.blocked_since
        if not self._open or (blocked is not None and self._loop.time() - blocked > self._pulse.every_s):
            # A worker that takes nothing in for so long does not know of its leases either.
            return
        held = self._held.all()
        peer = self._place.replica.machine.peer(self.peer)
        if peer is None or peer.leases.get(self.namespace, 0) == len(held):
            # All that the peer holds is this stream's, so one event does for all.
            self._place.replica.submit(Heartbeat(self._call)).add_done_callback(_swallow)
            return
        if not held:
            # Extending what came by other ways would keep leases alive that never arrived.
            return
        ids, attempts, fences = (list(column) for column in zip(*held, strict=True))
        beat = self._place.replica.submit(Heartbeat(self._call, ids, attempts, fences))
        beat.add_done_callback(lambda done: self._beaten(held, done))

    def _beaten(self, held: list[tuple[int, int, int]], done: "asyncio.Future[Any]") -> None:
        if done.exception() is not None or not isinstance(done.result(), Acked):
            return
        for place, refusal in done.result().refused.items():
            if held[place][2] in self._held:
                self._place.streams.forget(self, [held[place][2]])
                self.lose(held[place][2], refusal)


def _swallow(done: "asyncio.Future[Any]") -> None:
    if done.exception() is not None:
        logger.debug("a heartbeat was lost: %s", done.exception())


async def work(place: Workplace, caller: Caller) -> None:
    """The method Work: reads the opening message, and runs the stream."""
    first: Any = await caller.context.read()
    if first is grpc.aio.EOF:
        return
    if not isinstance(first, v1.WorkRequest):
        raise Refused(Reason.INVALID_ARGUMENT, "bytes that are not a WorkRequest")
    await WorkStream(place, caller, first).run(first)
