"""Conversations: many calls on one stream, each served as if it had come by itself."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from resourcelease import v1
from resourcelease.errands import Errand, Errands
from resourcelease.frontdoor.callers import Caller, Speaker
from resourcelease.frontdoor.departures import Leaving
from resourcelease.frontdoor.direct import attend
from resourcelease.frontdoor.dispatch import NoMessage, Unary, plain_status, reader, status_text
from resourcelease.frontdoor.duplex import Duplex
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.replies import Replies
from resourcelease.model.errors import Reason

__all__ = ["Conversations"]

# Calls, or cancellations, in one message.
_CALLS_MAX = 2_000
# No deadline is counted beyond this.
_LONGEST_S = 366 * 24 * 3600.0


class _Method(NamedTuple):
    read: Callable[[bytes], Any]
    run: Unary


class Conversations:
    """The conversations of a node, and the methods that can be called in them."""

    def __init__(
        self,
        service: ServiceDescriptor,
        methods: Mapping[str, Unary],
        gate: Gate,
        leaving: Leaving,
        answer_bytes: int,
    ) -> None:
        """``methods`` by name; each needs a value of ``ConverseMethod``. ``answer_bytes``: the longest answer."""
        self.gate = gate
        self.leaving = leaving
        self.answer_bytes = answer_bytes
        named = {_name_of(number): number for number in v1.ConverseMethod.values()}
        self.methods = {
            named[name]: _Method(reader(service.methods_by_name[name]), run) for name, run in methods.items()
        }
        self._open: dict[_Conversation, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    async def converse(self, caller: Caller) -> None:
        """Serves one conversation until its client ends it."""
        conversation = _Conversation(self, caller)
        self._open[conversation] = None
        self._empty.clear()
        try:
            await conversation.run()
        finally:
            del self._open[conversation]
            if not self._open:
                self._empty.set()

    def go_away(self, message: str) -> None:
        """Asks all clients to call another node from now on."""
        for conversation in list(self._open):
            conversation.go_away(message)

    async def emptied(self, timeout_s: float) -> None:
        """Waits until none is open, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    def end(self, refused: Refused) -> None:
        """Ends those in which nothing is under way."""
        for conversation in list(self._open):
            conversation.end(refused)


class _Call:
    """One call under way."""

    __slots__ = ("errand", "number", "timer")

    def __init__(self, number: int) -> None:
        self.number = number
        self.errand: Errand | None = None
        self.timer: asyncio.TimerHandle | None = None


class _Conversation(Duplex):
    """One stream of calls and answers."""

    def __init__(self, place: Conversations, caller: Caller) -> None:
        super().__init__()
        self._place = place
        self._caller = caller
        self._key: str = caller.context.peer()
        self._loop = asyncio.get_running_loop()
        self._replies = Replies(place.leaving)
        # Those whose answer is wanted, by number; and every call that runs, also those that were dropped.
        self._wanted: dict[int, _Call] = {}
        self._errands = Errands()

    async def run(self) -> None:
        """Serves until the client has closed its side and has its answers, or something breaks."""
        replies = self._replies
        try:
            await self._until_over(replies, replies.write(self._caller.context), self._read())
        finally:
            for call in list(self._wanted.values()):
                self._drop(call)

    def go_away(self, message: str) -> None:
        """Tells the client to make no more calls here."""
        self._replies.go_away(message)

    def end(self, refused: Refused) -> None:
        """Ends the stream with a status, unless a call is under way: that one is let finish."""
        if not self._wanted and not self._ended.done():
            self._ended.set_exception(refused)

    async def _read(self) -> None:
        read, replies = self._caller.context.read, self._replies
        attend(self._caller.context, self._take_now)
        while (frame := await read()) is not grpc.aio.EOF:
            self._take(frame)
            if replies.full:
                await replies.room()
        await self._errands.over()
        await replies.drained()

    def _take_now(self, frame: Any) -> bool:
        if self._replies.full:
            return False
        self._take(frame)
        return True

    def _take(self, frame: Any) -> None:
        """One message of the client; raises ``Refused`` before any of it has been begun."""
        if type(frame) is NoMessage:
            refuse(frame.why)
        for field, entries in (("calls", frame.calls), ("cancelled", frame.cancelled)):
            if len(entries) > _CALLS_MAX:
                refuse(f"has {len(entries)} entries; {_CALLS_MAX} are allowed", field)
        numbers: set[int] = set()
        for place, call in enumerate(frame.calls):
            number = call.number
            if number < 1:
                refuse(f"must be from 1, not {number}", f"calls[{place}].number")
            if number in self._wanted or number in numbers:
                refuse(f"{number} is under way already", f"calls[{place}].number")
            numbers.add(number)
        cancelled = set(frame.cancelled)
        for call in frame.calls:
            if call.number not in cancelled:
                self._begin(call)
        for number in frame.cancelled:
            if (dropped := self._wanted.get(number)) is not None:
                self._drop(dropped)

    def _begin(self, asked: v1.ConverseCall) -> None:
        """Sets a call going, or answers it if it cannot be."""
        number = asked.number
        method = self._place.methods.get(asked.method)
        if method is None:
            self._say(number, grpc.StatusCode.UNIMPLEMENTED, f"this node knows no method {asked.method}")
            return
        left_s = min(asked.timeout_ms / 1000.0, _LONGEST_S) if asked.HasField("timeout_ms") else None
        if left_s is not None and left_s <= 0.0:
            self._say(number, grpc.StatusCode.DEADLINE_EXCEEDED, "the time for this call is over")
            return
        try:
            self._place.gate.enter(self._key)
        except Refused as refused:
            self._replies.add_status(number, status_text(refused))
            return
        call = self._wanted[number] = _Call(number)
        until = None if left_s is None else self._loop.time() + left_s
        if left_s is not None:
            call.timer = self._loop.call_later(left_s, self._overdue, call)
        speaker = Speaker(self._caller, until, asked.traceparent)
        work = self._serve(call, method, speaker, asked.request)
        call.errand = self._errands.begin(work, lambda _: self._over(call))

    async def _serve(self, call: _Call, method: _Method, speaker: Speaker, data: bytes) -> None:
        try:
            request = method.read(data)
            if type(request) is NoMessage:
                raise Refused(Reason.INVALID_ARGUMENT, request.why)
            answer = (await method.run(speaker, request)).SerializeToString()
        except Exception as error:
            if self._forget(call):
                self._replies.add_status(call.number, status_text(error))
            return
        if self._forget(call):
            if len(answer) > self._place.answer_bytes:
                why = f"the answer has {len(answer)} bytes; {self._place.answer_bytes} can be sent"
                self._say(call.number, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            else:
                self._replies.add(call.number, answer)

    def _over(self, call: _Call) -> None:
        self._place.gate.leave(self._key)
        if self._forget(call):
            # It was not we who cancelled it: the node comes to its end.
            self._say(call.number, grpc.StatusCode.CANCELLED, "the call was given up")

    def _forget(self, call: _Call) -> bool:
        """Whether the call's answer is still wanted; asked once."""
        if call.timer is not None:
            call.timer.cancel()
        return self._wanted.get(call.number) is call and self._wanted.pop(call.number) is call

    def _drop(self, call: _Call) -> None:
        """Nobody waits for the call any more."""
        self._forget(call)
        assert call.errand is not None
        call.errand.cancel()

    def _overdue(self, call: _Call) -> None:
        self._drop(call)
        self._say(call.number, grpc.StatusCode.DEADLINE_EXCEEDED, "the time for this call is over")

    def _say(self, number: int, code: grpc.StatusCode, message: str) -> None:
        self._replies.add_status(number, plain_status(code, message))


def _name_of(number: int) -> str:
    """CONVERSE_METHOD_BEGIN_EFFECT is BeginEffect."""
    words = v1.ConverseMethod.Name(number).removeprefix("CONVERSE_METHOD_").split("_")  # type: ignore[arg-type]
    return "".join(word.capitalize() for word in words)
