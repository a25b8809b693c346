"""Connections: frames come out as they went in, however the bytes were cut, and nothing outlives the node."""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest import mock

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.consensus import Consensus, wire
from resourcelease.consensus import peers as peers_module
from resourcelease.consensus.entries import OLDEST_VERSION
from resourcelease.consensus.frames import AreYouThere, GoAway, Hello, Line, TurnedAway, framed, note_of
from resourcelease.consensus.peers import Peers, TlsContexts, split_address
from resourcelease.consensus.wire import WireError
from resourcelease.storage import LmdbStore

from .test_cluster import MACHINES, OPTIONS, certificates, cluster

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


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


@pytest.mark.skipif(not hasattr(socket, "SO_INCOMING_CPU"), reason="this system does not tell")
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_line_knows_from_which_processor_of_this_machine_it_was_sent_to(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        there = Line(5000)
        server = await asyncio.get_running_loop().create_server(lambda: there, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        heard: asyncio.Queue[list[bytes]] = asyncio.Queue()
        frames = iter([b"hello", *(b"%d" % processor for processor in processors * 2)])
        with socket.create_connection(("127.0.0.1", port)) as here:
            here.sendall(framed([next(frames)]))
            await there.hello
            there.attach(heard.put_nowait)
            for processor, frame in zip(processors * 2, frames, strict=True):
                # From a thread of its own: what is asked for here is not left to it.
                await asyncio.to_thread(_send_from, processor, here, framed([frame]))
                await heard.get()
                assert there.sent_from == processor
            there.abort()
            assert there.sent_from is None
        server.close()

    processors = sorted(os.sched_getaffinity(0))[:2]
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def _send_from(processor: int, connection: socket.socket, data: bytes) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        connection.sendall(data)
    finally:
        os.sched_setaffinity(0, allowed)


def test_nothing_is_said_of_another_machines_processors() -> None:
    async def scenario() -> None:
        line = Line(5000)
        assert line.sent_from is None
        addresses = {"sockname": ("10.0.0.1", 7101), "peername": ("10.0.0.2", 40000)}
        transport = mock.Mock(get_extra_info=addresses.__getitem__)
        transport.is_closing.return_value = False
        line.connection_made(transport)
        assert line.sent_from is None

    asyncio.run(scenario())


@pytest.mark.skipif(not hasattr(socket, "SO_INCOMING_CPU"), reason="this system does not tell")
def test_a_follower_knows_the_processor_of_a_leader_beside_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            await leader.propose([b"op"], 5.0)
            follower = next(node for node in nodes.nodes.values() if not node.is_leader)
            await follower.barrier(5.0)
            assert leader.leaders_processor is None
            assert follower.leaders_processor is not None

    asyncio.run(scenario())


def test_a_node_that_stops_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            await leader.propose([b"op"], 5.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


class Party:
    """One node's connections, and what was told of them."""

    def __init__(self, name: str, incarnation: int, tls: TlsContexts | None = None) -> None:
        self.name = name
        self.address = ""
        self.opened: asyncio.Queue[str] = asyncio.Queue()
        self.turned_away: asyncio.Future[TurnedAway] = asyncio.get_running_loop().create_future()
        self.peers = Peers(
            cluster_id="test",
            node_id=name,
            incarnation=incarnation,
            frame_bytes_max=5000,
            tls=tls,
            opened=lambda peer, epoch: self.opened.put_nowait(peer),
            closed=lambda peer, epoch: None,
            received=lambda peer, epoch, message: None,
            settled=lambda: None,
            gone=lambda peer: None,
            turned_away=self._told,
            reads=OLDEST_VERSION,
        )

    def _told(self, words: TurnedAway) -> None:
        if not self.turned_away.done():
            self.turned_away.set_result(words)


@contextlib.asynccontextmanager
async def parties(*names: str, tls: TlsContexts | None = None) -> AsyncIterator[list[Party]]:
    """Nodes that listen and do not know each other yet; the second of one name is the first one's twin."""
    found = [Party(name, incarnation, tls) for incarnation, name in enumerate(names)]
    try:
        for party in found:
            party.address = await party.peers.listen("127.0.0.1:0")
        async with asyncio.timeout(20):
            yield found
    finally:
        for party in found:
            await party.peers.close()


def want(party: Party, *others: Party) -> None:
    party.peers.want({each.name: each.address for each in (party, *others)}, {})


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=needs_openssl)])
@pytest.mark.parametrize("cloned", ["a", "c"])
def test_a_second_process_under_one_id_is_turned_away(tmp_path: Path, cloned: str, encrypted: bool) -> None:
    """Whether it calls the others ("a") or is called by them ("c")."""

    async def scenario() -> None:
        tls = certificates(tmp_path) if encrypted else None
        async with parties(cloned, "b", cloned, tls=tls) as (first, other, second):
            want(first, other)
            want(other, first)
            assert await other.opened.get() == cloned
            want(second, other)
            words = str(await second.turned_away)
            assert "node b" in words
            assert other.address in words
            assert f"another process that runs as {cloned}" in words
            assert other.opened.empty()
            assert not first.turned_away.done()

    asyncio.run(scenario())


def test_a_second_process_asks_all_others_before_it_calls_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one that has lost the first for a moment would take the second's word for the first's."""
    monkeypatch.setattr(peers_module, "_ASK_AROUND_S", 20.0)

    async def scenario() -> None:
        async with parties("a", "b", "c", "a") as (first, near, lonely, second):
            want(first, near)
            assert await near.opened.get() == "a"
            want(second, near, lonely)
            assert "node b" in str(await second.turned_away)
            await second.peers.close()
            assert lonely.opened.empty()

    asyncio.run(scenario())


async def silent_caller(address: str, name: str, wanted: str, incarnation: int) -> Line:
    """A connection of a process that says who it is, and then nothing."""
    host, port = split_address(address)
    line = Line(5000)
    await asyncio.get_running_loop().create_connection(lambda: line, host, port)
    line.send([Hello("test", name, wanted, incarnation).to_frame()])
    await line.hello
    line.attach(lambda frames: None)
    return line


def test_a_node_that_was_started_again_waits_until_its_old_connection_is_closed() -> None:
    """What a dead process left on its way is no sign of life."""

    async def scenario() -> None:
        async with parties("b", "a") as (other, restarted):
            before = await silent_caller(other.address, "a", "b", 77)
            assert await other.opened.get() == "a"
            asked: asyncio.Queue[list[bytes]] = asyncio.Queue()
            before.attach(asked.put_nowait)
            want(restarted, other)
            (question,) = await asked.get()
            assert isinstance(note_of(question), AreYouThere)
            before.send([wire.encode({"type": "response_vote", "term": 1}), b"", AreYouThere(1, True).to_frame()])
            before.finish()
            assert await restarted.opened.get() == "b"
            assert await other.opened.get() == "a"
            assert not restarted.turned_away.done()

    asyncio.run(scenario())


def test_a_node_that_was_started_again_waits_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is lost, or the first process stands still: nothing closes the old connection."""
    monkeypatch.setattr(peers_module, "_ALIVE_S", 0.05)
    monkeypatch.setattr(peers_module, "_SILENCE_S", 0.2)

    async def scenario() -> None:
        async with parties("b", "a") as (other, restarted):
            before = await silent_caller(other.address, "a", "b", 77)
            assert await other.opened.get() == "a"
            want(restarted, other)
            assert await restarted.opened.get() == "b"
            assert await other.opened.get() == "a"
            assert not restarted.turned_away.done()
            before.abort()

    asyncio.run(scenario())


def test_one_process_may_connect_again_at_any_time() -> None:
    async def scenario() -> None:
        async with parties("b") as (other,):
            first = await silent_caller(other.address, "a", "b", 77)
            assert await other.opened.get() == "a"
            again = await silent_caller(other.address, "a", "b", 77)
            assert await other.opened.get() == "a"
            with pytest.raises(OSError, match=r"closed|reset"):
                await first.ended
            again.abort()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "frame", [b"\xc1", b"\xc1\x93\x00\x01\x02", b"\xc1\x92\x09\x01", GoAway("leave").to_frame()], ids=repr
)
def test_a_note_that_has_no_place_here_ends_the_connection(frame: bytes) -> None:
    async def scenario() -> None:
        async with parties("b") as (other,):
            line = await silent_caller(other.address, "a", "b", 77)
            line.send([frame])
            with pytest.raises(OSError, match=r"closed|reset"):
                await line.ended

    asyncio.run(scenario())


def test_a_cloned_node_ends_and_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            await leader.propose([b"op"], 5.0)
            for name in ("n1", "n3"):
                copy = tmp_path / f"{name}-copy"
                await asyncio.to_thread(shutil.copytree, tmp_path / name, copy)
                store = LmdbStore(copy, cluster_id="test", node_id=name, options=OPTIONS)
                failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
                clone = Consensus(
                    store=store,
                    machines=MACHINES,
                    listen="127.0.0.1:0",
                    bootstrap=nodes.addresses,
                    settings=nodes.settings,
                    on_failure=failed.set_result,
                )
                try:
                    await clone.start()
                    async with asyncio.timeout(10):
                        assert "is connected with another process" in str(await failed)
                finally:
                    await clone.stop()
                    await asyncio.to_thread(store.close)
            assert list(await leader.propose([b"more"], 5.0)) == [2]

    asyncio.run(scenario())
