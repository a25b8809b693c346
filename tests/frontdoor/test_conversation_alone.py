"""A conversation by itself, with a make-believe connection: frames that are wrong, readers that do not read, ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from frontdoor.cluster_fixture import items, until
from resourcelease import v1
from resourcelease.frontdoor.callers import Caller, Callers
from resourcelease.frontdoor.conversation import Conversations
from resourcelease.frontdoor.departures import Leaving
from resourcelease.frontdoor.dispatch import NoMessage
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.replies import Replies
from resourcelease.model.errors import Reason
from resourcelease.v1 import lease_service_pb2

SERVICE = lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"]
ENQUEUE = v1.ConverseMethod.CONVERSE_METHOD_ENQUEUE
PUT = v1.EnqueueRequest(items=items("a")).SerializeToString()
Run = Callable[[Caller, Any], Awaitable[Any]]


class Line:
    """The node's end of a connection: what the client sent, and what it has taken."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self.came: asyncio.Queue[Any] = asyncio.Queue()
        self.taken: list[v1.ConverseResponse] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self._headers = tuple((headers or {}).items())

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._headers

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def read(self) -> Any:
        return await self.came.get()

    async def write(self, message: v1.ConverseResponse) -> None:
        await self.taking.wait()
        self.taken.append(message)

    def say(self, *calls: v1.ConverseCall, cancelled: tuple[int, ...] = ()) -> None:
        self.came.put_nowait(v1.ConverseRequest(calls=calls, cancelled=cancelled))

    @property
    def answers(self) -> dict[int, v1.ConverseAnswer]:
        return {answer.number: answer for message in self.taken for answer in message.answers}

    def status(self, number: int) -> tuple[int, str]:
        told = status_pb2.Status.FromString(self.answers[number].status)
        return told.code, told.message


def call(number: int, request: bytes = PUT, method: Any = ENQUEUE, **fields: Any) -> v1.ConverseCall:
    return v1.ConverseCall(number=number, method=method, request=request, **fields)


async def nothing(caller: Caller, request: Any) -> Any:
    return v1.EnqueueResponse(results=[v1.EnqueueResult() for _ in request.items])


class Talk:
    """A conversation that runs, whose Enqueue is ``run``."""

    def __init__(self, run: Run = nothing, *, answer_bytes: int = 1 << 20, calls: int = 5_000, **headers: str) -> None:
        unary = {method.name: run for method in SERVICE.methods if not method.client_streaming}
        self.gate = Gate(calls=calls, calls_per_peer=calls, streams_per_peer=4)
        self.conversations = Conversations(SERVICE, unary, self.gate, Leaving(), answer_bytes)
        self.line = Line({name.replace("_", "-"): value for name, value in headers.items()})
        context: Any = self.line
        caller = Caller(Callers(run="t", trust_principal_header=True), context)
        self.task = asyncio.ensure_future(self.conversations.converse(caller))

    async def answered(self, number: int) -> v1.ConverseAnswer:
        await until(lambda: number in self.line.answers)
        return self.line.answers[number]

    async def end(self) -> None:
        self.line.came.put_nowait(grpc.aio.EOF)
        await self.task
        assert not len(self.conversations)
        assert self.gate.inside == 0


class Stuck:
    """A method that waits until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = 0
        self.cancelled = 0

    async def __call__(self, caller: Caller, request: Any) -> Any:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return v1.EnqueueResponse()


def test_calls_of_one_message_are_answered_in_one() -> None:
    async def scenario() -> None:
        talk = Talk()
        talk.line.say(*(call(number) for number in range(1, 101)))
        await talk.answered(100)
        assert [len(message.answers) for message in talk.line.taken] == [100]
        told = v1.EnqueueResponse.FromString(talk.line.answers[7].response)
        assert len(told.results) == 1
        await talk.end()

    asyncio.run(scenario())


def test_an_answer_does_not_wait_for_a_call_that_takes_long() -> None:
    async def scenario() -> None:
        stuck = Stuck()

        async def either(caller: Caller, request: Any) -> Any:
            return await (stuck if request.operation_id else nothing)(caller, request)

        talk = Talk(either)
        talk.line.say(call(1, v1.EnqueueRequest(operation_id="long").SerializeToString()), call(2))
        await talk.answered(2)
        assert 1 not in talk.line.answers
        stuck.go.set()
        await talk.answered(1)
        await talk.end()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (call(1, b"\xff" * 40), grpc.StatusCode.INVALID_ARGUMENT, "not a EnqueueRequest"),
        (call(1, b"\x22\x00" * 200_000), grpc.StatusCode.INVALID_ARGUMENT, "more entries"),
        (call(1, method=0), grpc.StatusCode.UNIMPLEMENTED, "knows no method 0"),
        (call(1, method=99), grpc.StatusCode.UNIMPLEMENTED, "knows no method 99"),
        (call(1, timeout_ms=0), grpc.StatusCode.DEADLINE_EXCEEDED, "over"),
        (call(1, timeout_ms=-5), grpc.StatusCode.DEADLINE_EXCEEDED, "over"),
    ],
)
def test_a_call_that_is_wrong_is_refused_alone(asked: v1.ConverseCall, code: grpc.StatusCode, said: str) -> None:
    async def scenario() -> None:
        talk = Talk()
        talk.line.say(asked, call(2))
        assert (await talk.answered(2)).HasField("response")
        found, message = talk.line.status(1)
        assert found == code.value[0]
        assert said in message
        await talk.end()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (NoMessage("no message"), ""),
        (v1.ConverseRequest(calls=[call(0)]), "calls[0].number"),
        (v1.ConverseRequest(calls=[call(2), call(-3)]), "calls[1].number"),
        (v1.ConverseRequest(calls=[call(2), call(3), call(2)]), "calls[2].number"),
        (v1.ConverseRequest(calls=[call(1)]), "calls[0].number"),
        (v1.ConverseRequest(calls=[call(number) for number in range(2, 2003)]), "calls"),
        (v1.ConverseRequest(cancelled=range(2, 2003)), "cancelled"),
    ],
)
def test_a_message_that_is_wrong_ends_the_stream_before_any_of_it_is_done(frame: Any, field: str) -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1))
        await until(lambda: stuck.begun == 1)
        talk.line.came.put_nowait(frame)
        with pytest.raises(Refused) as met:
            await talk.task
        assert met.value.refusal.field == field
        await until(lambda: stuck.cancelled == 1)
        assert stuck.begun == 1
        await until(lambda: talk.gate.inside == 0)

    asyncio.run(scenario())


def test_a_cancelled_call_is_ended_and_not_answered_and_its_number_is_free() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1), call(2))
        await until(lambda: stuck.begun == 2)
        talk.line.say(cancelled=(1, 77))
        await until(lambda: stuck.cancelled == 1)
        talk.line.say(call(1))
        await until(lambda: stuck.begun == 3)
        stuck.go.set()
        await talk.answered(1)
        await talk.answered(2)
        assert sum(len(message.answers) for message in talk.line.taken) == 2
        await talk.end()

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_in_its_own_message_never_begins() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1), call(2), cancelled=(1,))
        await until(lambda: stuck.begun == 1)
        stuck.go.set()
        await talk.answered(2)
        await talk.end()
        assert (stuck.begun, list(talk.line.answers)) == (1, [2])

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_in_the_next_message_is_ended_in_order() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        # Both are there before the first has had a turn of its own.
        talk.line.say(call(1), call(2))
        talk.line.say(cancelled=(1,))
        await until(lambda: stuck.begun == 2)
        await until(lambda: stuck.cancelled == 1)
        await until(lambda: talk.gate.inside == 1)
        stuck.go.set()
        await talk.end()
        assert list(talk.line.answers) == [2]

    asyncio.run(scenario())


def test_a_call_that_shrugs_off_its_cancellation_is_not_answered_either() -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        async def stubborn(caller: Caller, request: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return v1.EnqueueResponse()

        talk = Talk(stubborn)
        talk.line.say(call(1))
        await begun.wait()
        talk.line.say(cancelled=(1,))
        await talk.end()
        assert not talk.line.answers

    asyncio.run(scenario())


def test_a_deadline_ends_the_call_and_says_so() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1, timeout_ms=20))
        await talk.answered(1)
        assert talk.line.status(1)[0] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert stuck.cancelled == 1
        await talk.end()

    asyncio.run(scenario())


def test_a_call_knows_its_own_deadline_and_trace_and_the_headers_of_the_stream() -> None:
    async def scenario() -> None:
        seen: dict[str, Any] = {}

        async def look(caller: Caller, request: Any) -> Any:
            told = caller.call(request)
            seen[request.operation_id] = (caller.remaining_s(), caller.header("traceparent"), told.peer, told.principal)
            return v1.EnqueueResponse()

        talk = Talk(look, x_client_principal="alice", x_peer_id="alice/7", traceparent="stream")
        plain, other = (v1.EnqueueRequest(operation_id=name).SerializeToString() for name in ("plain", "other"))
        talk.line.say(call(1, plain), call(2, other, timeout_ms=1 << 60, traceparent="own"))
        await talk.answered(2)
        assert seen["plain"] == (None, "stream", "alice/7", "alice")
        left, *rest = seen["other"]
        assert rest == ["own", "alice/7", "alice"]
        assert left > 3600
        bob = v1.EnqueueRequest(peer_id="bob").SerializeToString()
        talk.line.say(call(3, bob))
        await talk.answered(3)
        assert talk.line.status(3)[0] == grpc.StatusCode.PERMISSION_DENIED.value[0]
        await talk.end()

    asyncio.run(scenario())


def test_an_error_that_nobody_foresaw_is_the_end_of_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def broken(caller: Caller, request: Any) -> Any:
            raise ZeroDivisionError("secret")

        talk = Talk(broken)
        talk.line.say(call(1), call(2))
        await talk.answered(2)
        assert talk.line.status(1) == (13, "an error of this node: ZeroDivisionError; see its log")
        await talk.end()

    asyncio.run(scenario())
    assert "nobody foresaw" in caplog.text


def test_a_call_that_the_node_gives_up_is_answered() -> None:
    async def scenario() -> None:
        async def given_up(caller: Caller, request: Any) -> Any:
            raise asyncio.CancelledError

        talk = Talk(given_up)
        talk.line.say(call(1))
        await talk.answered(1)
        assert talk.line.status(1)[0] == grpc.StatusCode.CANCELLED.value[0]
        await talk.end()

    asyncio.run(scenario())


def test_an_answer_that_is_too_long_to_send_is_said_to_be() -> None:
    async def scenario() -> None:
        talk = Talk(answer_bytes=50)
        talk.line.say(call(1, v1.EnqueueRequest(items=items("a") * 40).SerializeToString()), call(2))
        await talk.answered(1)
        assert talk.line.status(1)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert talk.line.answers[2].HasField("response")
        await talk.end()

    asyncio.run(scenario())


def test_calls_pass_the_gate_one_by_one() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck, calls=2)
        talk.line.say(call(1), call(2), call(3))
        await talk.answered(3)
        assert talk.line.status(3)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        stuck.go.set()
        await talk.answered(2)
        talk.line.say(call(3))
        await until(lambda: talk.line.answers[3].HasField("response"))
        await talk.end()

    asyncio.run(scenario())


def test_a_client_that_does_not_read_is_not_read() -> None:
    async def scenario() -> None:
        talk = Talk()
        talk.line.taking.clear()
        for frame in range(200):
            talk.line.say(*(call(frame * 100 + place + 1) for place in range(100)))
        left = 0
        while talk.line.came.qsize() != left:
            left = talk.line.came.qsize()
            for _ in range(50):
                await asyncio.sleep(0)
        assert left > 50
        talk.line.taking.set()
        await talk.answered(20_000)
        assert len(talk.line.answers) == 20_000
        await talk.end()

    asyncio.run(scenario())


def test_the_end_waits_for_the_answers() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1))
        await until(lambda: stuck.begun == 1)
        talk.conversations.go_away("the node stops")
        ending = asyncio.ensure_future(talk.end())
        await until(lambda: bool(talk.line.taken))
        assert talk.line.taken[0].go_away.message == "the node stops"
        assert not ending.done()
        stuck.go.set()
        await ending
        assert talk.line.answers[1].HasField("response")

    asyncio.run(scenario())


def test_a_client_that_does_not_go_away_is_sent_away_once_it_has_its_answers() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1))
        await until(lambda: stuck.begun == 1)
        refused = Refused(Reason.NO_LEADER, "this node is stopping")
        talk.conversations.end(refused)
        await talk.conversations.emptied(0.01)
        assert not talk.task.done()
        stuck.go.set()
        await talk.answered(1)
        talk.conversations.end(refused)
        with pytest.raises(Refused, match="stopping"):
            await talk.task
        await talk.conversations.emptied(10)
        assert talk.gate.inside == 0

    asyncio.run(scenario())


def test_a_broken_stream_ends_its_calls() -> None:
    async def scenario() -> None:
        stuck = Stuck()
        talk = Talk(stuck)
        talk.line.say(call(1), call(2))
        await until(lambda: stuck.begun == 2)
        talk.task.cancel()
        await until(lambda: stuck.cancelled == 2)
        await until(lambda: talk.gate.inside == 0)
        assert not len(talk.conversations)

    asyncio.run(scenario())


def test_messages_of_answers_have_a_bound() -> None:
    async def scenario() -> None:
        replies, line = Replies(Leaving()), Line()
        for number in range(1, 5):
            replies.add(number, bytes(50 * 1024))
        replies.add(5, bytes(300 * 1024))
        replies.add_status(6, b"status")
        writer = asyncio.ensure_future(replies.write(line))
        await replies.drained()
        assert [[answer.number for answer in message.answers] for message in line.taken] == [[1, 2], [3, 4], [5], [6]]
        await replies.settled()
        replies.add(7, b"")
        await writer
        assert len(line.taken) == 4

    asyncio.run(scenario())
