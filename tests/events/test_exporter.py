"""The exporter as an option of nodes: one of them works, another goes on, and retention waits for the copy on all."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from frontdoor.cluster_fixture import Cluster, Runner, eventually, until

from resourcelease import Client, v1
from resourcelease.cli import main
from resourcelease.cli.export import _source, _under_lease
from resourcelease.cli.output import Output
from resourcelease.cli.session import Session
from resourcelease.events.exporter import Exporter, export_name
from resourcelease.events.readers import EXPORTS, Readers, standing_item
from resourcelease.events.runner import Runner as ByHand
from resourcelease.events.sink import Checkpoint, SinkError
from resourcelease.events.stores import sink_at
from resourcelease.storage.segments import Log

from .load import put, segments_of


def exporting(cluster: Cluster) -> list[str]:
    """The nodes that copy now."""
    running = {name: node.exporter for name, node in cluster.nodes.items()}
    return [name for name, exporter in running.items() if exporter is not None and exporter.runner is not None]


def position(path: Path) -> int:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT position FROM checkpoint").fetchone()
    return int(found[0]) if found else -1


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as db:
        return [number for (number,) in db.execute("SELECT sequence_number FROM events ORDER BY rowid")]


def copied(path: Path, through: int) -> bool:
    try:
        return path.exists() and position(path) >= through
    except sqlite3.OperationalError:  # its tables are being made
        return False


def head(cluster: Cluster, name: str) -> int:
    machine: Any = cluster.nodes[name].consensus.machine
    return int(machine.sequence_number)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exporter, "look_s", 0.05)
    monkeypatch.setattr(Exporter, "lease_s", 0.6)
    monkeypatch.setattr(Exporter, "rest_s", 0.2)
    monkeypatch.setattr(Readers, "release_after_s", 0.3)


def cluster_with_sink(tmp_path: Path, url: str, without: str = "") -> Cluster:
    return Cluster(
        tmp_path / "nodes", 3,
        {"limits.tail_events": 200, "events.flush_ms": 20, "export.gather_ms": 20, "export.sink": url},
    )  # fmt: skip


def test_one_node_exports_and_another_goes_on(tmp_path: Path, run: Runner) -> None:
    path = tmp_path / "history.db"

    async def scenario() -> None:
        cluster = cluster_with_sink(tmp_path, f"sqlite://{path}")
        await cluster.start_all()
        try:
            await put(cluster, 50)
            await until(lambda: copied(path, 100))
            (first,) = exporting(cluster)
            await cluster.stop(first)
            rest = next(iter(cluster.nodes))
            await put(cluster, 50, rest)
            goal = head(cluster, rest)
            await until(lambda: copied(path, goal), 20)
            (second,) = exporting(cluster)
            assert second != first
            numbers = rows(path)
            assert numbers == list(range(1, len(numbers) + 1))
        finally:
            await cluster.stop_all()

    run(scenario())


def test_status_on_every_node_says_how_far_the_copy_is(tmp_path: Path, run: Runner) -> None:
    path = tmp_path / "history.db"

    async def scenario() -> None:
        cluster = cluster_with_sink(tmp_path, f"sqlite://{path}")
        await cluster.start("n1", **{"cluster.members": {"n1": cluster.members["n1"]}})
        try:
            await put(cluster, 30)

            async def told() -> v1.HistoryReader:
                status = await cluster.stubs["n1"].admin.Status(v1.StatusRequest(), timeout=10)
                (reader,) = status.history.readers
                return reader

            async def there() -> bool:
                return (await told()).position >= 60

            await eventually(there)
            reader = await told()
            assert reader.name == export_name(f"sqlite://{path}")
            assert reader.holder == "resourcelease.node/n1"
            assert reader.lag < 60
        finally:
            await cluster.stop_all()

    run(scenario())


def test_retention_waits_for_the_copy_also_where_nothing_is_exported(tmp_path: Path, run: Runner) -> None:
    path = tmp_path / "history.db"

    async def scenario() -> None:
        cluster = Cluster(tmp_path / "nodes", 3, {"events.flush_ms": 20, "events.retention_bytes": 20_000})
        options = {"export.sink": f"sqlite://{path}", "export.gather_ms": 20}
        await cluster.start("n1", **options)
        await cluster.start("n2")
        await cluster.start("n3")
        try:
            await put(cluster, 5)
            await until(lambda: copied(path, 10))
            name = export_name(f"sqlite://{path}")
            readers = {each: cluster.nodes[each].log.writer.register for each in cluster.nodes}
            await until(lambda: all(register.readers.get(name, 0) > 1 for register in readers.values()))
            # The store is away; meanwhile far more is written than the others would keep.
            await cluster.stop("n1")
            stood = position(path)
            await put(cluster, 250, "n2")
            await until(lambda: head(cluster, "n3") >= head(cluster, "n2"))
            for each in ("n2", "n3"):
                await cluster.nodes[each].log.archive.settle()
                assert Log(segments_of(cluster, each)).first_sequence <= stood + 1
                assert sum(path.stat().st_size for path in segments_of(cluster, each).glob("*.rlseg")) > 40_000
            await cluster.start("n1", **options)
            goal = head(cluster, "n2")
            await until(lambda: copied(path, goal), 20)
            numbers = rows(path)
            assert numbers == list(range(1, len(numbers) + 1))
            # Now the old files may go, on all nodes.
            await put(cluster, 120, "n2")
            await until(lambda: all(Log(segments_of(cluster, each)).first_sequence > 1 for each in cluster.nodes), 20)
        finally:
            await cluster.stop_all()

    run(scenario(), 60)


def test_an_export_that_is_forgotten_holds_nothing_back(tmp_path: Path, run: Runner) -> None:
    path = tmp_path / "history.db"

    async def scenario() -> None:
        cluster = Cluster(tmp_path / "nodes", 1, {"events.flush_ms": 20, "events.retention_bytes": 20_000})
        url = f"sqlite://{path}"
        await cluster.start("n1", **{"export.sink": url, "export.gather_ms": 20})
        await put(cluster, 5)
        await until(lambda: copied(path, 10))
        await cluster.stop("n1")
        await cluster.start("n1")
        try:
            node = cluster.nodes["n1"]
            await until(lambda: node.consensus.is_leader)
            assert list(node.log.writer.register.readers) == [export_name(url)]
            forget = ["export", "--forget", "--sink", url, "--endpoints", node.grpc_address]
            assert await asyncio.to_thread(main, forget) == 0
            # There is nothing left to be forgotten.
            assert await asyncio.to_thread(main, forget) == 1

            async def let_go() -> bool:
                # Nothing has to happen for it but that somebody looks.
                status = await cluster.stubs["n1"].admin.Status(v1.StatusRequest(), timeout=10)
                return not status.history.readers and not node.log.writer.register.readers

            await eventually(let_go)
            await put(cluster, 200)
            await until(lambda: Log(segments_of(cluster, "n1")).first_sequence > 1)
        finally:
            await cluster.stop_all()

    run(scenario())


class Refusing:
    """A store of something else, until it is mended."""

    def __init__(self) -> None:
        self.opened = 0
        self.good = False

    def open(self, cluster_id: str, start: int) -> Checkpoint:
        self.opened += 1
        if not self.good:
            raise SinkError("it is no history of this cluster")
        return Checkpoint(0)

    def apply(self, events: Any, fence: int) -> Checkpoint:
        return Checkpoint(events[-1].sequence_number, fence)

    def close(self) -> None:
        pass


def test_a_store_that_refuses_is_left_to_others_for_a_while(
    tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Refusing()
    monkeypatch.setattr(Exporter.__init__, "__defaults__", (lambda url: sink,))

    async def scenario() -> None:
        cluster = cluster_with_sink(tmp_path, "sqlite:///nowhere/at.all")
        cluster.members.pop("n2")
        cluster.members.pop("n3")
        await cluster.start("n1")
        try:
            await until(lambda: sink.opened >= 2)
            machine: Any = cluster.nodes["n1"].consensus.machine
            namespace = EXPORTS + export_name("sqlite:///nowhere/at.all")
            item = standing_item(machine, namespace)
            assert item is not None
            assert "it is no history of this cluster" in caplog.text
            # Whoever waits for a store does not fill the history meanwhile.
            assert head(cluster, "n1") < 100
            sink.good = True
            await until(lambda: exporting(cluster) == ["n1"])
        finally:
            await cluster.stop_all()

    run(scenario())


def test_the_copy_of_a_history_that_is_lost_is_not_gone_on_with(
    tmp_path: Path, run: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    url = f"sqlite://{path}"
    sink = sink_at(url)
    sink.open("test", 1)
    sink.apply([v1.Event(sequence_number=number) for number in range(1, 2_000)], 1)
    sink.close()

    async def scenario() -> None:
        cluster = Cluster(tmp_path / "nodes", 1, {"events.flush_ms": 20, "export.gather_ms": 20, "export.sink": url})
        await cluster.start("n1")
        try:
            await put(cluster, 5)
            await until(lambda: "the copy goes up to event 1999, and the cluster's history ends with" in caplog.text)
            assert not exporting(cluster) or position(path) == 1_999
            # By hand it is said as well, and nothing is asked of the cluster for it.
            by_hand = ["export", "--sink", url, "--endpoints", cluster.nodes["n1"].grpc_address, "--name", "by-hand"]
            assert await asyncio.to_thread(main, by_hand) == 1
            machine: Any = cluster.nodes["n1"].consensus.machine
            assert standing_item(machine, EXPORTS + "by-hand") is None
            # Nor does it make a namespace to ask for what there is not.
            assert await asyncio.to_thread(main, ["export", "--forget", *by_hand[1:]]) == 1
            assert EXPORTS + "by-hand" not in machine.namespaces()
        finally:
            await cluster.stop_all()

    run(scenario())
    assert position(path) == 1_999


def test_retention_waits_for_a_copy_by_hand_too(tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.db"
    url = f"sqlite://{path}"
    name = export_name(url)
    monkeypatch.setattr("resourcelease.cli.export._WORD_EVERY_S", 0.1)

    async def scenario() -> None:
        cluster = Cluster(tmp_path / "nodes", 3, {"events.flush_ms": 20, "events.retention_bytes": 20_000})
        await cluster.start_all()

        async def by_hand(end: int, *, hold: bool) -> None:
            endpoints = [node.grpc_address for node in cluster.nodes.values()]
            async with Client(endpoints, peer_id="by-hand") as client:
                runner = ByHand(_source(client, False), sink_at(url), "test", gather_s=0.02)
                try:
                    session = Session(client, Output(as_json=True))
                    await _under_lease(session, runner, EXPORTS + name, end, hold=hold)
                finally:
                    await runner.close()

        def told(most: int) -> bool:
            return all(1 < node.log.writer.register.readers.get(name, 0) <= most for node in cluster.nodes.values())

        try:
            await put(cluster, 10)
            work = asyncio.ensure_future(by_hand(0, hold=True))
            await until(lambda: copied(path, 20) and told(1_000), 20)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            stood = position(path)
            # Nobody works on the copy, and far more is written than would be kept without it.
            await put(cluster, 250)
            for each in cluster.nodes:
                await until(lambda each=each: head(cluster, each) >= head(cluster, "n1"))  # type: ignore[misc]
                await cluster.nodes[each].log.archive.settle()
                assert Log(segments_of(cluster, each)).first_sequence <= stood + 1
            # It is complete up to an end that was named: then nothing is kept for it any more.
            goal = head(cluster, "n1")
            await by_hand(goal, hold=True)
            numbers = rows(path)
            assert numbers == list(range(1, len(numbers) + 1))

            async def let_go() -> bool:
                await put(cluster, 1)
                return not any(node.log.writer.register.readers for node in cluster.nodes.values())

            await eventually(let_go, 20)
            # One that asks for nothing to be kept takes the same place in another way.
            work = asyncio.ensure_future(by_hand(0, hold=False))
            goal = head(cluster, "n1")
            await until(lambda: copied(path, goal), 20)
            assert not any(node.log.writer.register.readers for node in cluster.nodes.values())
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            work = asyncio.ensure_future(by_hand(0, hold=True))
            await until(lambda: told(1_000_000), 20)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        finally:
            await cluster.stop_all()

    run(scenario(), 100)
