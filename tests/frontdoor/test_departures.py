"""Messages on their way out: at once where there is room, and by the writer where there is none."""

import asyncio
import random
from collections import deque
from contextlib import suppress
from typing import Any

import pytest

from frontdoor.trips import passes
from resourcelease.frontdoor.departures import Departures, Leaving


class Line:
    """A stream that has room for so many messages until its reader takes them."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.most = room
        self.sent: list[Any] = []
        self.taken = 0
        self._event = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return len(self.sent) - self.taken < self.most

    def write_now(self, message: Any) -> None:
        assert message != "broken"
        self.sent.append(message)

    async def write(self, message: Any) -> None:
        self.write_now(message)
        await self.room()

    async def room(self) -> None:
        while not self.has_room:
            self._event.clear()
            await self._event.wait()

    def take(self) -> None:
        """The reader takes all that there is."""
        self.taken = len(self.sent)
        self._event.set()


class Plain:
    """A stream that does not say whether it has room."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def write(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)


class Post(Departures):
    """Messages as they are; None has come to nothing, and an error is met as it is taken out."""

    def __init__(self, leaving: Leaving) -> None:
        super().__init__(leaving)
        self.waiting: deque[Any] = deque()
        self.gone = 0

    @property
    def full(self) -> bool:
        return len(self.waiting) >= 3

    def put(self, *messages: Any) -> None:
        for message in messages:
            self.waiting.append(message)
            self._came()

    def _waits(self) -> bool:
        return bool(self.waiting)

    def _take(self) -> Any:
        message = self.waiting.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def _gone(self) -> None:
        self.gone += 1


class Stream:
    """A post whose writer runs on a line."""

    def __init__(self, leaving: Leaving, line: Any = None) -> None:
        self.line = Line() if line is None else line
        self.post = Post(leaving)
        self.writer = asyncio.ensure_future(self.post.write(self.line))

    async def end(self) -> None:
        self.writer.cancel()
        with suppress(asyncio.CancelledError):
            await self.writer


async def drained(post: Post) -> None:
    async with asyncio.timeout(1):
        await post.drained()


def test_where_there_is_room_messages_leave_at_once_and_in_order() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        streams = [Stream(leaving), Stream(leaving)]
        await passes()
        streams[0].post.put(1, None, 2)
        streams[1].post.put("a")
        streams[0].post.put(3)
        assert not streams[0].line.sent
        leaving.leave()
        assert [stream.line.sent for stream in streams] == [[1, 2, 3], ["a"]]
        assert [stream.post.gone for stream in streams] == [4, 1]
        # And then nothing is left for later.
        leaving.leave()
        await passes()
        assert [stream.line.sent for stream in streams] == [[1, 2, 3], ["a"]]
        for stream in streams:
            await drained(stream.post)
            await stream.end()

    asyncio.run(scenario())


def test_they_leave_by_themselves_soon() -> None:
    async def scenario() -> None:
        stream = Stream(Leaving())
        await passes()
        for number in range(3):
            stream.post.put(number)
            await asyncio.sleep(0)
            assert stream.line.sent == list(range(number + 1))
        await stream.end()

    asyncio.run(scenario())


def test_what_came_before_the_writer_is_written_first() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        post, line = Post(leaving), Line(room=1)
        post.put(1, 2)
        leaving.leave()
        writer = asyncio.ensure_future(post.write(line))
        await passes()
        post.put(3)
        leaving.leave()
        assert line.sent == [1]
        for count in (2, 3):
            line.take()
            await passes()
            assert line.sent == [1, 2, 3][:count]
        line.take()
        await drained(post)
        post.put(4)
        leaving.leave()
        assert line.sent == [1, 2, 3, 4]
        writer.cancel()

    asyncio.run(scenario())


def test_without_room_the_writer_takes_over_and_gives_back() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        stream = Stream(leaving, Line(room=2))
        post, line = stream.post, stream.line
        await passes()
        post.put(1, 2, 3, 4)
        leaving.leave()
        assert line.sent == [1, 2]
        await passes()
        # What comes now must not overtake.
        post.put(5)
        leaving.leave()
        assert line.sent == [1, 2]
        line.take()
        await passes()
        post.put(6)
        leaving.leave()
        assert line.sent == [1, 2, 3, 4]
        line.take()
        await passes()
        line.take()
        await drained(post)
        assert line.sent == [1, 2, 3, 4, 5, 6]
        assert post.blocked_since is None
        post.put(7)
        leaving.leave()
        assert line.sent[-1] == 7
        await stream.end()

    asyncio.run(scenario())


def test_a_reader_that_stops_is_known_though_nothing_more_comes() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        stream = Stream(leaving, Line(room=1))
        post, line = stream.post, stream.line
        await passes()
        assert post.blocked_since is None
        post.put(1)
        leaving.leave()
        assert line.sent == [1]
        assert post.blocked_since is not None
        waiting = asyncio.ensure_future(post.drained())
        await passes()
        assert post.blocked_since is not None
        assert not waiting.done()
        line.take()
        await asyncio.wait_for(waiting, 1)
        assert post.blocked_since is None
        await stream.end()

    asyncio.run(scenario())


def test_where_the_room_is_gone_by_then_the_writer_has_them() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        stream = Stream(leaving)
        await passes()
        stream.post.put(1, 2)
        stream.line.most = 0
        leaving.leave()
        assert stream.line.sent == []
        await passes()
        assert stream.line.sent == [1]
        assert stream.post.blocked_since is not None
        stream.line.most = 5
        stream.line.take()
        await drained(stream.post)
        assert stream.line.sent == [1, 2]
        await stream.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("broken", [ZeroDivisionError("broken"), "broken"])
def test_an_error_ends_its_stream_and_no_other(broken: Any) -> None:
    async def scenario() -> None:
        leaving = Leaving()
        streams = [Stream(leaving) for _ in range(3)]
        await passes()
        for stream in streams:
            stream.post.put(1)
        streams[1].post.put(broken, 2)
        streams[2].post.put(2)
        leaving.leave()
        assert [stream.line.sent for stream in streams] == [[1], [1], [1, 2]]
        streams[1].post.put(3)
        leaving.leave()
        with pytest.raises((ZeroDivisionError, AssertionError)):
            await asyncio.wait_for(streams[1].writer, 1)
        streams[0].post.put(2)
        leaving.leave()
        assert [stream.line.sent for stream in streams] == [[1, 2], [1], [1, 2]]
        assert not streams[0].writer.done()
        assert not streams[2].writer.done()
        for stream in (streams[0], streams[2]):
            await stream.end()

    asyncio.run(scenario())


def test_a_stream_that_is_settled_sends_nothing_more() -> None:
    async def scenario() -> None:
        leaving = Leaving()
        stream = Stream(leaving)
        await passes()
        stream.post.put(1)
        leaving.leave()
        stream.post.put(2)
        await stream.post.settled()
        leaving.leave()
        stream.post.put(3)
        await passes()
        assert stream.line.sent == [1]
        await stream.end()

    asyncio.run(scenario())


def test_settled_waits_for_the_message_that_is_being_written() -> None:
    async def scenario() -> None:
        line = Line(room=1)
        post = Post(Leaving())
        post.put(1, 2)
        writer = asyncio.ensure_future(post.write(line))
        await passes()
        settled = asyncio.ensure_future(post.settled())
        await passes()
        assert not settled.done()
        line.take()
        await asyncio.wait_for(settled, 1)
        await asyncio.wait_for(writer, 1)
        assert line.sent == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_doubled_or_overtaken(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        leaving = Leaving()
        lines: list[Any] = [Line(room=dice.choice((1, 2, 5))), Line(), Plain()]
        streams = [Stream(leaving, line) for line in lines]
        counts = [0, 0, 0]
        for _ in range(500):
            match dice.randrange(5):
                case 0 | 1:
                    which = dice.randrange(3)
                    if not streams[which].post.full:
                        streams[which].post.put(counts[which])
                        counts[which] += 1
                case 2:
                    leaving.leave()
                case 3:
                    lines[0].take()
                case 4:
                    await asyncio.sleep(0)
        for stream, count in zip(streams, counts, strict=True):
            ending = asyncio.ensure_future(drained(stream.post))
            while not ending.done():
                lines[0].take()
                await asyncio.sleep(0)
            await ending
            assert stream.line.sent == list(range(count))
            assert stream.post.gone == count
            await stream.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("tells", [True, False])
def test_whoever_waits_for_room_is_woken_both_ways(tells: bool) -> None:
    async def scenario() -> None:
        leaving = Leaving()
        stream = Stream(leaving, Line() if tells else Plain())
        await passes()

        async def wait() -> None:
            stream.post.put(1, 2, 3)
            assert stream.post.full
            await stream.post.room()

        await asyncio.wait_for(wait(), 1)
        assert not stream.post.full
        await drained(stream.post)
        assert stream.line.sent == [1, 2, 3]
        await stream.end()

    asyncio.run(scenario())
