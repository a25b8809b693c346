"""A node's life: it starts, stops, comes back, and refuses what it must."""

import asyncio
import contextlib
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from frontdoor.cluster_fixture import Cluster, Runner, ended, fresh, info_of, items, refusal, until

from resourcelease import v1
from resourcelease.node.config import load
from resourcelease.node.logs import set_up
from resourcelease.node.process import Node
from resourcelease.node.schema import LogSection
from resourcelease.storage import DirectoryInUse, StoreStopped, WrongIdentity


def config(directory: Path, **overrides: Any) -> Any:
    base = {"node.id": "n1", "node.dir": directory, "cluster.id": "c"}
    return load(None, {}, base | {"grpc.listen": "127.0.0.1:0", "peers.listen": "127.0.0.1:0"} | overrides)


def test_what_was_acknowledged_is_there_after_a_restart(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, 1)
        await cluster.start("n1")
        put = v1.EnqueueRequest(operation_id="o", items=items("a"))
        await cluster.stubs["n1"].lease.Enqueue(put, timeout=10)
        await cluster.stop("n1")
        await cluster.start("n1")
        again = await cluster.stubs["n1"].lease.Enqueue(put, timeout=10)
        assert again.results[0].enqueued.sequence_id == 1
        assert again.depth.pending == 1
        await cluster.stop_all()

    run(scenario())


def test_a_node_refuses_what_is_not_its_own(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(config(tmp_path / "d")) as node:
            with pytest.raises(DirectoryInUse):
                await Node(config(tmp_path / "d")).start()
            with pytest.raises(OSError, match="is the port taken"):
                await Node(config(tmp_path / "e", **{"grpc.listen": node.grpc_address})).start()
        for key, value in (("node.id", "n2"), ("cluster.id", "other")):
            with pytest.raises(WrongIdentity, match="belongs to"):
                await Node(config(tmp_path / "d", **{key: value})).start()

    run(scenario())


def test_a_stopping_node_hands_over_and_sends_everybody_on(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, 3)
        await cluster.start_all()
        leader = await cluster.leader()
        stubs, namespace = cluster.stubs[leader], fresh()
        lease = asyncio.ensure_future(
            stubs.lease.Lease(v1.LeaseRequest(namespace=namespace, peer_id="w", wait_ms=60_000), timeout=60)
        )
        follow = stubs.event.Subscribe(v1.SubscribeRequest())
        await follow.read()
        work: Any = stubs.lease.Work()
        await work.write(v1.WorkRequest(peer_id="s", namespace=namespace, credit=1, open=v1.WorkOpen()))
        await until(lambda: cluster.nodes[leader].door.waiting == 2)
        began = time.monotonic()
        stopping = asyncio.ensure_future(cluster.nodes.pop(leader).stop())

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lease
        assert info_of(caught.value) == (grpc.StatusCode.UNAVAILABLE, "NO_LEADER", "", True)
        kinds = []
        while (frame := await work.read()) is not grpc.aio.EOF:
            kinds.append(frame.WhichOneof("frame"))
            if kinds[-1] == "go_away":
                await work.done_writing()
        assert kinds == ["opened", "go_away"]
        assert await work.code() is grpc.StatusCode.OK
        assert info_of(await ended(follow))[:2] == (grpc.StatusCode.UNAVAILABLE, "NO_LEADER")
        await stopping
        assert time.monotonic() - began < 8
        # Another leads at once, and the work goes on there.
        put = v1.EnqueueRequest(namespace=namespace, items=items("a"))
        other = next(each for name, each in cluster.stubs.items() if name in cluster.nodes)
        assert (await other.lease.Enqueue(put, timeout=5)).results[0].enqueued.sequence_id == 1
        assert await cluster.leader() != leader
        await cluster.stubs.pop(leader).channel.close()
        await cluster.stop_all()

    run(scenario())


def test_a_node_comes_in_and_another_goes(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, 3)
        joining = cluster.members.pop("n3")
        await cluster.start_all()
        stubs = await cluster.via("follower")
        await stubs.lease.Enqueue(v1.EnqueueRequest(items=items("a", "b")), timeout=10)
        cluster.members["n3"] = joining
        await cluster.start("n3", **{"cluster.members": None, "cluster.join": True})
        add = v1.AddMember(node_id="n3", raft_address=joining, client_address=cluster.nodes["n3"].grpc_address)
        told = await stubs.admin.Members(v1.MembersRequest(add=add), timeout=20)
        assert [each.node_id for each in told.members] == ["n1", "n2", "n3"]
        status = await cluster.stubs["n3"].admin.Status(v1.StatusRequest(linearizable=True), timeout=10)
        assert status.namespaces[0].depth.pending == 2

        leader = await cluster.leader()
        remover = next(each for name, each in cluster.stubs.items() if name != leader)
        remove = v1.MembersRequest(remove=v1.RemoveMember(node_id=leader))
        left = [each.node_id for each in (await remover.admin.Members(remove, timeout=20)).members]
        assert left == sorted({"n1", "n2", "n3"} - {leader})
        gone = next(name for name in left if cluster.stubs[name] is not remover)
        last = next(name for name in left if name != gone)
        await cluster.stop(gone)
        await until(lambda: gone not in cluster.nodes[last].consensus.status().connected)
        alone = v1.MembersRequest(remove=v1.RemoveMember(node_id=last))
        assert (await refusal(remover.admin.Members(alone, timeout=10)))[1] == "CONFLICT"
        await cluster.stop_all()

    run(scenario())


def test_a_node_that_cannot_go_on_says_so(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(config(tmp_path / "d")) as node:
            assert node._store is not None
            node._store._committer.halt(StoreStopped("the disk is gone"))
            async with asyncio.timeout(5):
                assert "the disk is gone" in str(await node.failed)

    run(scenario())


def test_a_node_says_whenever_entries_were_applied(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        stirred: list[int] = []
        node = Node(config(tmp_path / "d"), stirred=lambda: stirred.append(node.consensus.status().applied_index))
        async with node:
            await node.consensus.barrier(5.0)
            before = len(stirred)
            await node.consensus.barrier(5.0)
            assert stirred[before:] == [node.consensus.status().applied_index]

    run(scenario())


def test_logs_for_people_and_for_programs() -> None:
    logger = logging.getLogger("resourcelease.test")
    for format in ("text", "json"):
        stream = io.StringIO()
        handler = set_up(LogSection(format=format, level="info"), "n1", stream)
        try:
            logger.info("hello %s", "you", extra={"peer": "p"})
            try:
                raise ValueError("bad")
            except ValueError:
                logger.exception("oh")
        finally:
            logging.getLogger().removeHandler(handler)
            logging.getLogger().setLevel(logging.WARNING)
        lines = stream.getvalue().splitlines()
        assert len(lines) == 2 if format == "json" else "ValueError: bad" in lines[-1]
        if format == "json":
            first = json.loads(lines[0])
            assert (first["message"], first["level"], first["node"], first["peer"]) == ("hello you", "info", "n1", "p")
            assert "ValueError: bad" in json.loads(lines[1])["error"]
        else:
            assert "INFO    n1 resourcelease.test: hello you" in lines[0]


SCRIPT = """
import sys
from resourcelease.node.config import load
from resourcelease.node.run import run
overrides = dict(pair.split("=", 1) for pair in sys.argv[1:])
sys.exit(run(load(None, {}, overrides)))
"""


@contextlib.contextmanager
def spawned(directory: Path, *settings: str) -> "Iterator[subprocess.Popen[str]]":
    base = (
        "node.id=n1",
        f"node.dir={directory}",
        "cluster.id=c",
        "grpc.listen=127.0.0.1:0",
        "peers.listen=127.0.0.1:0",
    )
    command = [sys.executable, "-c", SCRIPT, *base, "log.format=json", *settings]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        killer = threading.Timer(20, process.kill)
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()


def test_a_process_stops_on_a_signal(tmp_path: Path) -> None:
    with spawned(tmp_path / "d") as process:
        assert process.stderr is not None
        assert "serves clients at" in json.loads(process.stderr.readline())["message"]
        os.kill(process.pid, signal.SIGTERM)
        rest = [json.loads(line)["message"] for line in process.stderr]
        assert process.wait(10) == 0
    assert "SIGTERM" in rest[0]
    assert rest[-1] == "node n1 has stopped"


def test_a_process_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with spawned(tmp_path / "d", f"grpc.listen={address}") as process:
            assert process.stderr is not None
            lines = process.stderr.read().splitlines()
            assert process.wait(10) == 1
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line["level"] for line in told] == ["error"]
    assert f"cannot start: cannot listen for clients at {address}" in told[0]["message"]
