"""Messages of a direct stream are taken where they come, and read where they are not taken."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from resourcelease import v1
from resourcelease.client.conversation import METHODS, Conversation
from resourcelease.client.direct import DirectStream, Place, attend, is_ready
from resourcelease.client.errors import OutcomeUnknown
from resourcelease.client.lane import Lane, Runway
from resourcelease.client.ride import Frames, Ride
from resourcelease.model.direct import CLOSE, MAGIC, MESSAGE, STATUS, frame
from resourcelease.model.direct import Frames as Cutter

Said = list[tuple[str, int]]


def message(number: int) -> bytes:
    told = v1.ConverseResponse()
    told.answers.add(number=number, response=b"x" * (number % 50))
    return frame(MESSAGE, told.SerializeToString())


def number_of(told: v1.ConverseResponse) -> int:
    return told.answers[0].number


@asynccontextmanager
async def stream_of(say: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[DirectStream]:
    """A stream to somebody who says this as soon as anybody comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await say(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield DirectStream(Place("127.0.0.1", port, "key"), "Converse", None, None, lambda: None, lambda: None)


def taking(said: Said) -> Callable[[v1.ConverseResponse], bool]:
    """Takes all that comes."""

    def take(told: v1.ConverseResponse) -> bool:
        said.append(("taken", number_of(told)))
        return True

    return take


async def hear(stream: DirectStream, said: Said) -> None:
    while (told := await stream.read()) is not aio.EOF:
        said.append(("read", number_of(told) if told is not None else -1))


class ANode:
    """The one node there is, for whoever wants a stream to it."""

    address = "here"
    goes_direct = True
    metadata = None

    def __init__(self, port: int) -> None:
        self._place = Place("127.0.0.1", port, "key")

    def stream(self, name: str, metadata: object) -> DirectStream:
        return DirectStream(self._place, name, None, None, lambda: None, lambda: None)

    def answered(self, node: object) -> None:
        pass

    async def is_alive(self, node: object, within: float) -> bool:
        return True


@asynccontextmanager
async def node_that(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Any]:
    """A node that does this with each connection, from behind what opens it."""
    ends: list[asyncio.Event] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(asyncio.Event())
        end = ends[-1]
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(len(MAGIC))
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        end.set()

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server:
        yield ANode(server.sockets[0].getsockname()[1])
        for end in ends:
            await end.wait()


async def requests_from(reader: asyncio.StreamReader) -> AsyncIterator[v1.ConverseRequest]:
    """What a client says in a conversation."""
    cutter = Cutter(1 << 20)
    while data := await reader.read(1 << 16):
        for kind, content in cutter.cut(data):
            if kind == MESSAGE:
                yield v1.ConverseRequest.FromString(content)


@pytest.mark.parametrize("seed", range(8))
def test_each_message_is_taken_or_read_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    told = b"".join(message(number) for number in range(2_000)) + frame(STATUS)

    async def say(writer: asyncio.StreamWriter) -> None:
        at = 0
        while at < len(told):
            size = chance.choice([1, 7, 60, 61, 4_000])
            writer.write(told[at : at + size])
            at += size
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        await writer.drain()

    async def scenario() -> None:
        said: Said = []

        def take(told: v1.ConverseResponse) -> bool:
            if chance.random() < 0.2:
                return False
            said.append(("taken", number_of(told)))
            return True

        async with stream_of(say) as stream:
            attend(stream, take)
            await hear(stream, said)
        assert [number for _, number in said] == list(range(2_000))
        assert {how for how, _ in said} == {"taken", "read"}

    asyncio.run(scenario())


def test_nothing_is_taken_while_nobody_reads() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(message(1) + message(2))
        await writer.drain()
        await turn.wait()
        writer.write(message(3) + frame(STATUS))
        await writer.drain()

    async def scenario() -> None:
        said: Said = []

        async with stream_of(say) as stream:
            said.append(("read", number_of(await stream.read())))
            attend(stream, taking(said))
            while not stream._call._unread:  # noqa: ASYNC110 - a stream sets no event for what is not read
                await asyncio.sleep(0)
            assert said == [("read", 1)]
            said.append(("read", number_of(await stream.read())))
            turn.set()
            await hear(stream, said)
        assert said == [("read", 1), ("read", 2), ("taken", 3)]

    turn = asyncio.Event()
    asyncio.run(scenario())


def test_what_the_attendant_raises_is_raised_where_it_is_read() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(message(1) + message(2) + frame(STATUS))
        await writer.drain()

    async def scenario() -> None:
        said: Said = []

        def take(told: v1.ConverseResponse) -> bool:
            raise LookupError("nobody asked for that")

        async with stream_of(say) as stream:
            attend(stream, take)
            with pytest.raises(LookupError, match="nobody asked"):
                await stream.read()
            await hear(stream, said)
        assert said == [("read", 2)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("end", "code"), [(b"", StatusCode.UNAVAILABLE), (frame(CLOSE), StatusCode.UNKNOWN), (frame(STATUS), None)]
)
def test_the_end_is_read_behind_what_was_taken(end: bytes, code: StatusCode | None) -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(message(1) + frame(MESSAGE, b"\xff\xff") + message(2) + end)
        await writer.drain()

    async def scenario() -> None:
        said: Said = []

        async with stream_of(say) as stream:
            attend(stream, taking(said))
            if code is None:
                await hear(stream, said)
            else:
                with pytest.raises(aio.AioRpcError) as met:
                    await hear(stream, said)
                assert met.value.code() is code
        assert said == [("taken", 1), ("read", -1), ("read", 2)]

    asyncio.run(scenario())


def test_what_is_written_at_once_comes_behind_what_was_written_before() -> None:
    got: list[int] = []

    async def scenario() -> None:
        whole = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for told in requests_from(reader):
                got.append(told.calls[0].number)
                if len(got) == 3:
                    whole.set()

        async with node_that(serve) as node:
            stream = node.stream("Converse", None)
            # Not open yet.
            assert not is_ready(stream)
            asked = [v1.ConverseRequest(calls=[v1.ConverseCall(number=number)]) for number in (1, 2, 3)]
            await stream.write(asked[0])
            assert is_ready(stream)
            stream.write_now(asked[1])
            await stream.write(asked[2])
            await whole.wait()
            # Nor while the other side does not read, nor at its end.
            stream._call.pause_writing()
            assert not is_ready(stream)
            stream._call.resume_writing()
            assert is_ready(stream)
            stream.cancel()
            assert not is_ready(stream)

    asyncio.run(scenario())
    assert got == [1, 2, 3]


def test_a_stream_of_grpc_is_written_by_its_task() -> None:
    assert not is_ready(object())


def test_frames_are_written_at_once_only_where_none_waits() -> None:
    async def scenario() -> None:
        frames = Frames()
        written: list[str] = []
        ready = True

        def write_now(request: v1.WorkRequest) -> bool:
            if ready:
                written.append(request.operation_id)
            return ready

        def add(name: str) -> None:
            frames.add(v1.WorkRequest(operation_id=name))

        add("before the stream is open")
        frames.write_now = write_now
        add("behind it")
        assert [frame.operation_id for frame in frames.outbox] == ["before the stream is open", "behind it"]
        assert frames.wake.is_set()
        frames.outbox.clear()
        frames.wake.clear()
        add("at once")
        assert not frames.wake.is_set()
        ready = False
        add("not now")
        ready = True
        add("nor this")
        assert written == ["at once"]
        assert [frame.operation_id for frame in frames.outbox] == ["not now", "nor this"]
        assert list(frames.unanswered) == ["before the stream is open", "behind it", "at once", "not now", "nor this"]

    asyncio.run(scenario())


@pytest.mark.parametrize("cancelled", [False, True])
def test_nothing_overtakes_the_first_message_of_a_conversation(cancelled: bool) -> None:
    """It may be in its writer's hands while the stream opens."""

    async def scenario() -> None:
        got: list[int] = []
        whole = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for told in requests_from(reader):
                got.extend(call.number for call in told.calls)
                got.extend(-number for number in told.cancelled)
                if len(got) == 2 + cancelled:
                    whole.set()

        async with node_that(serve) as node:
            runway = Runway()
            talk = Conversation(node, node, lambda *_: None, runway)

            async def send(entries: list[bytes], oldest: float) -> list[None]:
                await talk.ask(METHODS["Enqueue"], entries[0], 10)
                return [None]

            lane: Lane[bytes, None] = Lane(send, runway)
            first = asyncio.create_task(talk.ask(METHODS["Lease"], b"", 10))
            for _ in range(3):
                await asyncio.sleep(0)
            if cancelled:
                first.cancel()
            while not is_ready(talk._stream):  # noqa: ASYNC110 - a stream sets no event for that
                await asyncio.sleep(0)
            second = lane.put(b"")
            await whole.wait()
            await talk.close()
            await asyncio.gather(first, second, return_exceptions=True)
            await lane.close()
        # A node knows nothing of a cancelled call that has yet to come, and would begin it.
        assert got in ([1, 2], [1, 2, -1], [1, -1, 2])

    asyncio.run(scenario())


def test_what_follows_a_refusal_is_heard_before_its_node_is_left() -> None:
    async def scenario() -> None:
        heard: list[str] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1 << 16)
            messages = [
                v1.WorkResponse(opened=v1.WorkOpened()),
                v1.WorkResponse(done=v1.WorkDone(operation_id="refused")),
                v1.WorkResponse(leases=v1.WorkLeases()),
            ]
            writer.write(frame(MESSAGE, messages[0].SerializeToString()))
            await opened.wait()
            writer.write(b"".join(frame(MESSAGE, message.SerializeToString()) for message in messages[1:]))
            await reader.read()

        def receive(message: v1.WorkResponse) -> None:
            heard.append(str(message.WhichOneof("frame")))
            if heard[-1] == "opened":
                opened.set()
            if heard[-1] == "done":
                ride.give_up("it has refused too often")

        async with node_that(serve) as node:
            opened = asyncio.Event()
            ride = Ride(node, node, Frames(), lambda: 0, receive)
            with pytest.raises(OutcomeUnknown, match="too often"):
                await ride.run(v1.WorkRequest(open=v1.WorkOpen()))
        assert heard == ["opened", "done", "leases"]

    asyncio.run(scenario())


def test_who_cancels_the_stream_and_fails_ends_it_all_the_same() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(message(1))
        await writer.drain()

    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        async with stream_of(say) as stream:

            def take(told: v1.ConverseResponse) -> bool:
                stream.cancel()
                raise LookupError("nobody asked for that")

            attend(stream, take)
            with pytest.raises(asyncio.CancelledError):
                await stream.read()
        assert problems == []

    asyncio.run(scenario())


def test_a_program_that_ends_with_a_call_under_way_ends_in_silence() -> None:
    program = Path(__file__).with_name("program_that_ends.py")
    ended = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
