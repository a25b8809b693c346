"""A client's conversation with a node: its calls on one stream, which costs both sides less than a stream for each."""

import asyncio
import copy
import itertools
from collections import deque
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from resourcelease import v1
from resourcelease.client import watch
from resourcelease.client.direct import attend, is_ready
from resourcelease.client.errors import (
    OutcomeUnknown,
    Unreachable,
    error_of_answer,
    error_of_status,
)
from resourcelease.client.lane import Runway
from resourcelease.client.nodes import Node, Nodes
from resourcelease.client.packing import WORTH_PACKING, List
from resourcelease.errands import Told

__all__ = ["METHODS", "Conversation", "Conversations", "NotSpoken"]

# A request that is larger goes alone: what comes after it would wait for it.
MOST_REQUEST_BYTES = 256 * 1024
# A message carries no more, in bytes and in calls.
MOST_MESSAGE_BYTES = 128 * 1024
MOST_CALLS = 1_000
# A conversation in which nothing is said for so long is ended.
IDLE_SECONDS = 60.0
# A node that does not end a conversation that we have ended is given so long.
END_SECONDS = 3.0
# A node that takes no conversation is asked for one again after so long.
SILENT_SECONDS = 60.0
# With one of these a node declines the conversation, not the calls in it.
_DECLINES = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Method(NamedTuple):
    """A method that can be called in a conversation."""

    kind: v1.ConverseMethod.ValueType
    answer: type[Message]


METHODS = {
    "Enqueue": Method(v1.ConverseMethod.CONVERSE_METHOD_ENQUEUE, v1.EnqueueResponse),
    "Lease": Method(v1.ConverseMethod.CONVERSE_METHOD_LEASE, v1.LeaseResponse),
    "Heartbeat": Method(v1.ConverseMethod.CONVERSE_METHOD_HEARTBEAT, v1.HeartbeatResponse),
    "Complete": Method(v1.ConverseMethod.CONVERSE_METHOD_COMPLETE, v1.CompleteResponse),
    "Fail": Method(v1.ConverseMethod.CONVERSE_METHOD_FAIL, v1.FailResponse),
    "Drain": Method(v1.ConverseMethod.CONVERSE_METHOD_DRAIN, v1.DrainResponse),
    "Restore": Method(v1.ConverseMethod.CONVERSE_METHOD_RESTORE, v1.RestoreResponse),
    "RequireVersion": Method(v1.ConverseMethod.CONVERSE_METHOD_REQUIRE_VERSION, v1.RequireVersionResponse),
    "BeginEffect": Method(v1.ConverseMethod.CONVERSE_METHOD_BEGIN_EFFECT, v1.BeginEffectResponse),
    "FinishEffect": Method(v1.ConverseMethod.CONVERSE_METHOD_FINISH_EFFECT, v1.FinishEffectResponse),
}
# Callers are answered some at a time: so many bytes, of which an answer counts for no less than the second.
SLICE_BYTES = 512 * 1024
_AN_ANSWER_BYTES = 4 * 1024


class NotSpoken(Exception):
    """The call is to be made by itself: the node takes no conversation, or it is too large for one."""


class Conversations:
    """The conversations of a client, one with each node that it calls."""

    def __init__(self, nodes: Nodes, runway: Runway) -> None:
        self._nodes = nodes
        self._runway = runway
        self._current: dict[str, Conversation] = {}
        # Also those that are coming to their end.
        self._open: dict[Conversation, None] = {}
        self._silent_until: dict[str, float] = {}

    async def ask(
        self, node: Node, method: Method, request: Message, timeout: float, entries: List | None = None
    ) -> Any:
        """Makes a call; raises ``NotSpoken`` if it has to be made by itself. ``entries``: the rest of the request."""
        conversation = self._current.get(node.address)
        packed = conversation is not None and conversation.reads_packed
        data = _encoded(request, entries, packed=packed)
        if len(data) > MOST_REQUEST_BYTES:
            raise NotSpoken
        if conversation is None or not conversation.open:
            conversation = self._begin(node)
        elif node.goes_direct and not conversation.direct:
            # It was begun before this could be known.
            conversation.leave()
            conversation = self._begin(node)
        if packed and not conversation.reads_packed:
            data = _encoded(request, entries, packed=False)
        return await conversation.ask(method, data, timeout)

    async def close(self) -> None:
        """Ends all of them; who waits is told that the client is closed."""
        for conversation in list(self._open):
            await conversation.close()

    def _begin(self, node: Node) -> "Conversation":
        if self._silent_until.get(node.address, 0.0) > asyncio.get_running_loop().time():
            raise NotSpoken
        conversation = self._current[node.address] = Conversation(self._nodes, node, self._over, self._runway)
        self._open[conversation] = None
        return conversation

    def _over(self, conversation: "Conversation", declined: bool) -> None:
        self._open.pop(conversation, None)
        address = conversation.node.address
        if declined:
            self._silent_until[address] = asyncio.get_running_loop().time() + SILENT_SECONDS
        if self._current.get(address) is conversation:
            del self._current[address]


def _encoded(request: Message, entries: List | None, *, packed: bool) -> bytes:
    data = request.SerializeToString()
    if entries is None:
        return data
    # Of two encoded parts of a message, one behind the other is the whole.
    return data + (entries.packed() if packed and len(entries) >= WORTH_PACKING else entries.spelled())


def _weight(answer: v1.ConverseAnswer) -> int:
    return len(answer.response) + _AN_ANSWER_BYTES


class _Asked:
    """A call that waits for its answer."""

    __slots__ = ("answer", "timer", "told")

    def __init__(self, answer: type[Message], told: Told, timer: asyncio.TimerHandle) -> None:
        self.answer = answer
        self.told = told
        self.timer = timer


class Conversation:
    """One stream to one node, from the first call on it until either side ends it.

    ``over`` is told when it is at its end, and whether the node declined to hold it at all. ``runway`` knows whether
    there is more to come in this turn of the loop.
    """

    def __init__(self, nodes: Nodes, node: Node, over: Any, runway: Runway) -> None:
        self.node = node
        # Whether it takes further calls; whether it was to go without gRPC.
        self.open = True
        # Whether the node has said that it does.
        self.reads_packed = False
        self._nodes = nodes
        self._tell_over = over
        self._runway = runway
        self._loop = asyncio.get_running_loop()
        self.direct = node.goes_direct
        try:
            self._stream: Any = node.stream("Converse", nodes.metadata)
        except aio.UsageError as error:
            raise RuntimeError("the client is closed") from error
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count(1)
        # The last number that was written, or was about to be; whether any message went out.
        self._written = 0
        self._begun = False
        self._frames: deque[v1.ConverseRequest] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self._gave_up: Exception | None = None
        # When the node was last heard, or the first call was made after it had answered all.
        self._quiet_since = self._loop.time()
        self._pause = watch.PROBE_AFTER
        self._look_at = self._quiet_since + IDLE_SECONDS
        self._timer = self._loop.call_at(self._look_at, self._look)
        self._tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._write())]

    async def ask(self, method: Method, data: bytes, timeout: float) -> Any:
        """Makes a call, whose deadline is so many seconds away."""
        now = self._loop.time()
        number = next(self._numbers)
        told = Told()
        timer = self._loop.call_at(now + timeout, self._overdue, told)
        self._watch(now)
        self._asked[number] = _Asked(method.answer, told, timer)
        frame = self._frame(len(data))
        frame.calls.add(number=number, method=method.kind, request=data, timeout_ms=max(1, int(timeout * 1000)))
        # Before the first message has gone the writer may hold one that is to go before this.
        if self._begun and len(self._frames) == 1 and self._runway.last_to_leave() and is_ready(self._stream):
            self._stream.write_now(self._next_frame())
        else:
            self._filled.set()
        try:
            return await told
        finally:
            timer.cancel()
            if self._asked.pop(number, None) is not None:
                self._frame(0).cancelled.append(number)
                self._filled.set()

    def leave(self) -> None:
        """Takes no more calls, and ends when those under way are answered."""
        self.open = False
        self._filled.set()
        self._look_in(END_SECONDS)

    async def close(self) -> None:
        """Ends it at once."""
        self._give_up(RuntimeError("the client is closed"))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What is written.

    def _frame(self, size: int) -> v1.ConverseRequest:
        """The message that takes the next call, or cancellation: all that one turn of the loop brings is in one."""
        frames = self._frames
        self._size += size
        if (
            not frames
            or self._size > MOST_MESSAGE_BYTES
            or len(frames[-1].calls) + len(frames[-1].cancelled) >= MOST_CALLS
        ):
            frames.append(v1.ConverseRequest())
            self._size = size
        return frames[-1]

    def _next_frame(self) -> v1.ConverseRequest:
        frame = self._frames.popleft()
        if frame.calls:
            self._written = frame.calls[-1].number
        return frame

    async def _write(self) -> None:
        # A stream that breaks is the reader's to tell.
        try:
            while self.open or self._frames:
                if not self._frames:
                    self._filled.clear()
                    await self._filled.wait()
                    continue
                await self._stream.write(self._next_frame())
                self._begun = True
            await self._stream.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return

    # What is read.

    async def _read(self) -> None:
        attend(self._stream, self._take)
        error: Exception = OutcomeUnknown(f"{self.node.address} ended the conversation without an answer")
        declined = False
        try:
            while (message := await self._stream.read()) is not aio.EOF:
                if message is None:
                    # What gRPC makes of bytes that are no message.
                    error = OutcomeUnknown(f"{self.node.address} sent what cannot be read")
                    break
                await self._receive(message)
        except aio.AioRpcError as met:
            declined = met.code() in _DECLINES
            # A stream that the node ends while its first message is on the way: gRPC does not tell with what status.
            unheard = met.code() is grpc.StatusCode.INTERNAL and not self._begun
            error = NotSpoken() if declined or unheard else error_of_status(met, self.node.address)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # The loop comes to its end: nothing is begun any more.
                error = RuntimeError("the client is closed")
                raise
        finally:
            self._end(self._gave_up or error, declined)

    def _take(self, message: v1.ConverseResponse) -> bool:
        """Tells the callers, unless they are to be told some at a time."""
        if sum(map(_weight, message.answers)) > SLICE_BYTES:
            return False
        self._heed(message)
        for answer in message.answers:
            self._tell(answer)
        self._part(message)
        return True

    async def _receive(self, message: v1.ConverseResponse) -> None:
        self._heed(message)
        size = 0
        for answer in message.answers:
            size += _weight(answer)
            if size > SLICE_BYTES:
                # What the first callers ask next is on its way before the last have their answers.
                size = 0
                await asyncio.sleep(0)
            self._tell(answer)
        self._part(message)

    def _heed(self, message: v1.ConverseResponse) -> None:
        self._quiet_since = self._loop.time()
        self.reads_packed = message.reads_packed

    def _part(self, message: v1.ConverseResponse) -> None:
        if message.HasField("go_away") and self.open:
            self._nodes.failed(self.node)
            self.leave()

    def _tell(self, answer: v1.ConverseAnswer) -> None:
        asked = self._asked.pop(answer.number, None)
        if asked is None or asked.told.done():
            return
        if answer.HasField("response"):
            try:
                response = asked.answer.FromString(answer.response)
            except DecodeError:
                asked.told.set_exception(OutcomeUnknown(f"{self.node.address} answered what cannot be read"))
            else:
                asked.told.set_result(response)
        else:
            asked.told.set_exception(error_of_answer(answer.status, self.node.address))

    def _end(self, error: Exception, declined: bool) -> None:
        """Nothing more is heard: every call that waits is told why."""
        self.open = False
        self._timer.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._stream.cancel()
        self._tell_over(self, declined)
        waiting, self._asked = self._asked, {}
        for number, asked in waiting.items():
            if asked.told.done():
                continue
            if number > self._written and isinstance(error, OutcomeUnknown):
                unsent = f"{self.node.address}: the connection was lost before the call was sent"
                asked.told.set_exception(Unreachable(unsent))
            else:
                # Each caller gets an error of its own: raising one adds to its traceback.
                asked.told.set_exception(copy.copy(error))

    def _give_up(self, error: Exception) -> None:
        self._gave_up = error
        self.open = False
        self._stream.cancel()

    # Time.

    def _overdue(self, told: Told) -> None:
        if not told.done():
            told.set_exception(OutcomeUnknown(f"{self.node.address} did not answer in time"))

    def _watch(self, now: float) -> None:
        """A call is made: the node is to be heard within a second, or asked how it is."""
        if not self._asked:
            self._quiet_since = now
        self._pause = watch.PROBE_AFTER
        if self._look_at > now + self._pause:
            self._look_in(self._pause)

    def _look_in(self, seconds: float) -> None:
        self._timer.cancel()
        self._look_at = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        quiet = self._loop.time() - self._quiet_since
        if not self._asked:
            if not self.open:
                self._stream.cancel()
            elif quiet >= IDLE_SECONDS:
                self.leave()
            else:
                self._look_in(IDLE_SECONDS - quiet)
        elif quiet < watch.PROBE_AFTER:
            self._look_in(watch.PROBE_AFTER - quiet)
        else:
            self._tasks[2:] = [self._loop.create_task(self._probe())]

    async def _probe(self) -> None:
        """Gives the node up if it is found dead or frozen, and leaves it be when it is only slow."""
        if await self._nodes.is_alive(self.node, watch.PROBE_SECONDS):
            self._look_in(self._pause)
            # Many clients may wait long for work; their nodes are not to be kept busy by being asked how they are.
            self._pause = min(2 * self._pause, watch.MOST_PAUSE)
        else:
            self._give_up(OutcomeUnknown(f"{self.node.address} does not answer"))
