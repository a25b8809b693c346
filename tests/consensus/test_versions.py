"""Nodes of several releases in one cluster: entries of a newer version wait for all, and who cannot read them stops."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from resourcelease.cli.processes import free_ports
from resourcelease.consensus import Consensus
from resourcelease.consensus.entries import KIND_OPS, decode_ops, encode_ops, version_of
from resourcelease.consensus.frames import Hello, TurnedAway, check_hello
from resourcelease.consensus.versions import EntryVersions
from resourcelease.consensus.wire import WireError
from resourcelease.storage import LmdbStore, NewerFormat

from .test_cluster import MACHINES, OPTIONS, QUICK, Cluster, cluster


def hello(*more: Any) -> bytes:
    return bytes(msgpack.packb(["resourcelease", 1, "c", "a", "b", 7, *more]))


def test_a_release_that_reads_the_oldest_version_says_hello_as_the_first_one_did() -> None:
    assert Hello("c", "a", "b", 7).to_frame() == hello()
    assert Hello("c", "a", "b", 7, asks=True).to_frame() == hello(True)


@pytest.mark.parametrize("asks", [False, True])
def test_a_newer_release_says_what_it_reads_and_is_understood(asks: bool) -> None:
    said = Hello("c", "a", "b", 7, asks, reads=3)
    assert check_hello(said.to_frame(), "c", "b") == said


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert check_hello(hello(False, 2, "whatever", {"comes": 1}), "c", "b") == Hello("c", "a", "b", 7, reads=2)


@pytest.mark.parametrize("more", [(1,), (False, 0), (False, True), (False, "2"), (False, 2.0), (None,)])
def test_a_hello_that_makes_no_sense_is_refused(more: tuple[Any, ...]) -> None:
    with pytest.raises(WireError, match="ends in something else"):
        check_hello(hello(*more), "c", "b")


def test_a_newer_version_is_written_when_all_are_there_and_read_it() -> None:
    read_by = {"b": 3, "c": 2}
    versions = EntryVersions(3, lambda node: read_by.get(node, 0))
    assert versions.to_write(["b", "c"]) == 2
    assert versions.to_write(["b", "c", "away"]) == 1, "who is not connected may come back with an older release"
    read_by["c"] = 3
    assert versions.to_write(["b", "c"]) == 3
    assert versions.to_write([]) == 3


def test_what_was_committed_is_written_for_good() -> None:
    versions = EntryVersions(3, lambda node: 0)
    versions.met(7, decode_ops(encode_ops([], 0, 0, [], 2))[1])
    versions.met(8, decode_ops(encode_ops([], 0, 0, [], 1))[1])
    assert (versions.written, versions.to_write(["away"])) == (2, 2)


def test_entries_beyond_what_was_applied_decide_nothing() -> None:
    log = [(encode_ops([], 0, 0, [], version), index, 1) for index, version in ((1, 1), (2, 2), (3, 3))]
    assert EntryVersions(3, lambda node: 0, log, 2).written == 2
    with pytest.raises(NewerFormat, match=r"entry 3 is of version 3.*up to 2.*install a release"):
        EntryVersions(2, lambda node: 0, log, 3)


def written(nodes: Cluster, name: str) -> list[int]:
    """The version of each entry of ops in a node's log."""
    log = nodes.nodes[name]._host.journal[:]
    return [version_of(decode_ops(command)[1]) for command, _, _ in log if command[0] == KIND_OPS]


async def start(nodes: Cluster, name: str, reads: int, failed: "asyncio.Future[BaseException] | None" = None) -> None:
    """A node of a release that reads so much."""
    store = LmdbStore(nodes.directory / name, cluster_id="test", node_id=name, options=OPTIONS)
    node = Consensus(
        store=store,
        machines=MACHINES,
        listen=nodes.addresses[name],
        bootstrap=nodes.addresses,
        settings=nodes.settings,
        founding=True,
        reads=reads,
        on_failure=None if failed is None else failed.set_result,
    )
    await node.start()
    nodes.nodes[name], nodes.stores[name] = node, store


async def propose(nodes: Cluster) -> None:
    leader = await nodes.leader()
    await leader.propose([b"op"], 10.0)


async def all_connected(nodes: Cluster) -> None:
    async with asyncio.timeout(10):
        while any(len(node.status().connected) < len(nodes.nodes) - 1 for node in nodes.nodes.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_cluster_is_upgraded_node_by_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            for name in nodes.addresses:
                await nodes.stop(name)
            for name, reads in (("n1", 2), ("n2", 2), ("n3", 1)):
                await start(nodes, name, reads)
            await propose(nodes)
            await all_connected(nodes)
            await propose(nodes)
            await nodes.stop("n3")
            await propose(nodes)
            assert set(written(nodes, "n1")) == {1}, "the third node is away, and may come back as it was"
            await start(nodes, "n3", 2)
            await all_connected(nodes)
            await propose(nodes)
            # The follower that nobody waits for is told a moment later.
            async with asyncio.timeout(10):
                while any(written(nodes, name)[-1:] != [2] for name in nodes.nodes):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await too_late(nodes, "n3")
            await too_late(nodes, "n1")
            await propose(nodes)
            assert written(nodes, "n2")[-1] == 2, "it is so for good"

    asyncio.run(scenario())


async def too_late(nodes: Cluster, name: str) -> None:
    """A node comes back with the old release, is told so, and ends; then with the new one."""
    await nodes.stop(name)
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    await start(nodes, name, 1, failed)
    async with asyncio.timeout(10):
        words = await failed
    # The others say so, or its own log does, whichever is heard first.
    assert isinstance(words, (TurnedAway, NewerFormat))
    assert "version 2" in str(words)
    assert "install" in str(words)
    await nodes.stop(name)
    await start(nodes, name, 2)
    await all_connected(nodes)


def test_a_node_that_has_stored_what_newer_entries_did_does_not_start_with_an_older_release(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = Cluster(tmp_path, free_ports(1), replace(QUICK, flush_entries=1))
        await start(nodes, "n1", 2)
        node = await nodes.leader()
        goal = await node.barrier(10.0)
        async with asyncio.timeout(10):
            # Each entry has the rows written that stand for the one before it.
            while nodes.stores["n1"].load().rows_index < goal:
                await node.propose([b"op"], 5.0)
        assert set(written(nodes, "n1")) == {2}, "nobody else has to be waited for"
        await nodes.stop("n1")
        store = LmdbStore(tmp_path / "n1", cluster_id="test", node_id="n1", options=OPTIONS)
        try:
            with pytest.raises(NewerFormat, match=r"version 2.*up to 1.*upgraded"):
                Consensus(store=store, machines=MACHINES, listen="127.0.0.1:0", bootstrap=nodes.addresses, reads=1)
        finally:
            await asyncio.to_thread(store.close)

    asyncio.run(scenario())
