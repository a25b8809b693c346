"""Real sockets, a real store, one process: what the simulator leaves out."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.ledger import Ledger
from resourcelease.cli.processes import free_ports
from resourcelease.consensus import Consensus, Machines, NoLeader, NotAllowed, OutcomeUnknown, Settings, TooLarge
from resourcelease.storage import LmdbStore, StoreOptions, WriteBatch

MACHINES = Machines(Ledger, Ledger.load_rows)
QUICK = Settings(heartbeat_s=0.05, election_min_s=0.2, election_max_s=0.4, fallback_s=1.0, retry_s=0.3)
OPTIONS = StoreOptions(ballast_bytes=0, map_size_bytes=16 << 20)


class Cluster:
    """Nodes on loopback that can be stopped and started again."""

    def __init__(
        self,
        directory: Path,
        ports: Sequence[int],
        settings: Settings = QUICK,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        self.tls = tls
        self.directory = directory
        self.settings = settings
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        self.nodes: dict[str, Consensus] = {}
        self.stores: dict[str, LmdbStore] = {}

    async def start(self, name: str, bootstrap: dict[str, str] | None = None) -> Consensus:
        store = LmdbStore(self.directory / name, cluster_id="test", node_id=name, options=OPTIONS)
        node = Consensus(
            store=store,
            machines=MACHINES,
            listen=self.addresses[name],
            bootstrap=self.addresses if bootstrap is None else bootstrap,
            settings=self.settings,
            tls=self.tls,
            # No test here loses a disk.
            founding=True,
        )
        await node.start()
        self.nodes[name], self.stores[name] = node, store
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop()
        await asyncio.to_thread(self.stores.pop(name).close)

    async def leader(self, timeout_s: float = 10.0) -> Consensus:
        async with asyncio.timeout(timeout_s):
            while True:
                for node in self.nodes.values():
                    if node.is_leader:
                        return node
                await asyncio.sleep(0.01)

    async def same_state(self, timeout_s: float = 10.0) -> dict[bytes, int]:
        async with asyncio.timeout(timeout_s):
            while True:
                states = [ledger(node).answers for node in self.nodes.values()]
                if all(state == states[0] for state in states):
                    return states[0]
                await asyncio.sleep(0.01)


def ledger(node: Consensus) -> Ledger:
    assert isinstance(node.machine, Ledger)
    return node.machine


@contextlib.asynccontextmanager
async def cluster(directory: Path, count: int, **options: Any) -> AsyncIterator[Cluster]:
    nodes = Cluster(directory, free_ports(count), **options)
    try:
        for name in nodes.addresses:
            await nodes.start(name)
        yield nodes
    finally:
        for name in list(nodes.nodes):
            await nodes.stop(name)


def test_any_node_takes_a_proposal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            await nodes.leader()
            answers = await asyncio.gather(
                *(
                    nodes.nodes[f"n{1 + number % 3}"].propose([b"op%d" % number, b"more%d" % number], 5.0)
                    for number in range(60)
                )
            )
            assert sorted(answer for pair in answers for answer in pair) == list(range(1, 121))
            state = await nodes.same_state()
            assert len(state) == 120
            again = await nodes.nodes["n2"].propose([b"op7"], 5.0)
            assert list(again) == [answers[7][0]]

    asyncio.run(scenario())


def test_a_stopped_leader_is_succeeded_and_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            first = await nodes.leader()
            await first.propose([b"before"], 5.0)
            other = next(node for node in nodes.nodes.values() if node is not first)
            await nodes.stop(first.node_id)
            await other.propose([b"while away"], 5.0)
            await nodes.start(first.node_id)
            assert set(await nodes.same_state()) == {b"before", b"while away"}

    asyncio.run(scenario())


def test_all_nodes_stop_and_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = Cluster(tmp_path, free_ports(3), replace(QUICK, flush_entries=20, keep_entries=5))
        for _ in range(3):
            for name in nodes.addresses:
                await nodes.start(name)
            leader = await nodes.leader()
            for number in range(30):
                await leader.propose([b"%d-%d" % (leader.status().term, number)], 5.0)
            for name in nodes.addresses:
                await nodes.stop(name)
        for name in nodes.addresses:
            await nodes.start(name)
        leader = await nodes.leader()
        await leader.barrier(5.0)
        assert len(ledger(leader).answers) == 90
        for name in nodes.addresses:
            await nodes.stop(name)

    asyncio.run(scenario())


def test_one_node_grows_to_three_and_shrinks_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = Cluster(tmp_path, free_ports(3), replace(QUICK, flush_entries=20, keep_entries=5))
        first = await nodes.start("n1", {"n1": nodes.addresses["n1"]})
        for number in range(100):
            await first.propose([b"alone-%d" % number], 5.0)
        for name in ("n2", "n3"):
            await nodes.start(name, {})
            await first.add_member(name, nodes.addresses[name], 10.0)
        assert sorted(first.status().members) == ["n1", "n2", "n3"]
        assert len(await nodes.same_state()) == 100
        await nodes.nodes["n2"].transfer_leadership("n3")
        await nodes.nodes["n2"].propose([b"led by another"], 5.0)
        assert nodes.nodes["n3"].is_leader
        await nodes.nodes["n2"].remove_member("n1")
        # It knows by then, and will not stand for election.
        assert set(nodes.nodes["n1"].status().members) == {"n2", "n3"}
        await nodes.stop("n1")
        await nodes.nodes["n2"].propose([b"without the first"], 5.0)
        with pytest.raises(NotAllowed, match="transfer the leadership first"):
            await nodes.nodes["n3"].remove_member("n3")
        for name in ("n2", "n3"):
            await nodes.stop(name)

    asyncio.run(scenario())


def test_without_a_majority_it_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = Cluster(tmp_path, free_ports(3))
        node = await nodes.start("n1")
        with pytest.raises(NoLeader):
            await node.propose([b"op"], 0.3)
        with pytest.raises(TooLarge):
            await node.propose([bytes(5 << 20)], 0.3)
        await nodes.start("n2")
        await nodes.start("n3")
        leader = await nodes.leader()
        await leader.propose([b"op"], 5.0)
        for name in {"n1", "n2", "n3"} - {leader.node_id}:
            await nodes.stop(name)
        with pytest.raises(OutcomeUnknown):
            await leader.propose([b"lost"], 0.3)
        await nodes.stop(leader.node_id)

    asyncio.run(scenario())


def test_strangers_are_turned_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes.leader()
            host, port = nodes.addresses["n1"].split(":")
            for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc0"):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(greeting)
                assert await asyncio.wait_for(reader.read(), 5.0) == b""
                writer.close()
            assert await nodes.nodes["n1"].propose([b"still here"], 5.0)

    asyncio.run(scenario())


def certificates(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's context that trust one certificate, their own."""
    key, certificate = str(directory / "key.pem"), str(directory / "certificate.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=test"]
    subprocess.run(command, check=True, capture_output=True)
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in contexts:
        context.check_hostname = False
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return contexts


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_with_certificates_only_their_owners_get_in(tmp_path: Path) -> None:
    contexts = certificates(tmp_path)

    async def scenario() -> None:
        async with cluster(tmp_path, 3, tls=contexts) as nodes:
            await nodes.leader()
            await asyncio.gather(*(node.propose([name.encode()], 5.0) for name, node in nodes.nodes.items()))
            assert len(await nodes.same_state()) == 3
            host, port = nodes.addresses["n1"].split(":")
            nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            nobody.check_hostname = False
            nobody.verify_mode = ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(host, int(port), ssl=nobody)
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5.0) == b""
            writer.transport.abort()

    asyncio.run(scenario())


def test_a_node_that_has_stopped_acknowledges_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as nodes:
            leader = await nodes.leader()
            await leader.propose([b"before"], 5.0)
            follower = next(node for node in nodes.nodes.values() if node is not leader)
            store = nodes.stores[follower.node_id]
            write, untold, sent = store.write, list[tuple[Future[None], Future[None]]](), list[str]()
            handed_over = asyncio.Event()

            def told_late(batch: WriteBatch) -> "Future[None]":
                untold.append((write(batch), Future()))
                handed_over.set()
                return untold[-1][1]

            monkeypatch.setattr(store, "write_at_once", lambda batch: False)
            monkeypatch.setattr(store, "write", told_late)
            monkeypatch.setattr(follower._peers, "send", lambda peer, frames: sent.append(peer))
            await leader.propose([b"its last"], 5.0)
            async with asyncio.timeout(10):
                await handed_over.wait()
            follower._fail(RuntimeError("it cannot go on"))
            sent.clear()
            for written, told in untold:
                await asyncio.wrap_future(written)
                told.set_result(None)
            await asyncio.sleep(0)
            assert sent == []

    asyncio.run(scenario())
