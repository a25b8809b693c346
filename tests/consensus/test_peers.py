"""Connections: frames come out as they went in, however the bytes were cut, and nothing outlives the node."""

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.consensus.frames import Line, framed
from resourcelease.consensus.wire import WireError

from .test_cluster import cluster


def connected() -> Line:
    line = Line(bytes_max=5000)
    transport = mock.Mock()
    transport.is_closing.return_value = False
    line.connection_made(transport)
    return line


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=12), st.lists(st.integers(1, 40)))
def test_frames_come_out_whole_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    async def scenario() -> None:
        line = connected()
        taken: list[bytes] = []
        data = framed([frames[0], b"", *frames[1:]])
        for size in [*cuts, len(data)]:
            if data:
                line.data_received(data[:size])
                data = data[size:]
            if line.hello.done() and not taken:
                line.attach(taken.extend)
        assert [await line.hello, *taken] == frames

    asyncio.run(scenario())


def test_nothing_is_read_behind_the_hello_before_someone_takes_it() -> None:
    async def scenario() -> None:
        line = connected()
        line.data_received(framed([b"hello", b"one", b"two"]))
        assert await line.hello == b"hello"
        taken: list[list[bytes]] = []
        line.attach(taken.append)
        assert taken == [[b"one", b"two"]]

    asyncio.run(scenario())


@pytest.mark.parametrize(("attached", "size"), [(False, 4097), (True, 5001)])
def test_a_frame_that_is_too_large_ends_the_connection(attached: bool, size: int) -> None:
    async def scenario() -> None:
        line = connected()
        if attached:
            line.data_received(framed([b"hello"]))
            line.attach(lambda frames: None)
        line.data_received(framed([bytes(size)])[:4])
        with pytest.raises(WireError, match="are allowed"):
            await line.ended

    asyncio.run(scenario())


def test_a_node_that_stops_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            await leader.propose([b"op"], 5.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
