"""Real processes: the export goes on when its node is killed, and files that were damaged meanwhile are mended."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.flood import Flood, cut_segments_at, status_of
from resourcelease import Client, v1
from resourcelease.cli.processes import LocalCluster, LocalNode, to_toml
from resourcelease.storage.segments import segment_paths, verify

Run = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def small_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_segments_at(50_000, tmp_path, monkeypatch)


@asynccontextmanager
async def exporting(directory: Path, url: str) -> AsyncIterator[tuple[LocalCluster, Client]]:
    """A cluster all of whose nodes are told of an export."""
    cluster = LocalCluster.plan(directory / "cluster", 3)
    for node in cluster.nodes:
        node.config.write_text(node.config.read_text() + to_toml({"export": {"sink": url, "gather_ms": 50}}))
    try:
        cluster.start()
        async with Client(cluster.endpoints, timeout=30) as client:
            await cluster.ready(client)
            yield cluster, client
    finally:
        await cluster.stop()


def segments_of(cluster: LocalCluster, node: LocalNode) -> Path:
    return cluster.directory / node.name / "data" / "segments"


async def until(good: Callable[[], Any], seconds: float = 60.0) -> None:
    """Looks until something holds that nobody tells of; ``good`` may be awaited."""
    async with asyncio.timeout(seconds):
        while True:
            found = good()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.1)


async def reader_of(node: LocalNode, *, linearizable: bool = False) -> v1.HistoryReader | None:
    readers = (await status_of(node.address, linearizable=linearizable)).history.readers
    return readers[0] if readers else None


def checkpoint(path: Path) -> tuple[int, int]:
    """How far a copy goes, and under which fence it was written last."""
    with sqlite3.connect(path) as db:
        position, fence = db.execute("SELECT position, fence FROM checkpoint").fetchone()
    return position, fence


def damage(directory: Path) -> list[int]:
    """Flips a byte of one sealed file, cuts the tail of another, and deletes a third; the segments they were."""
    (one, flipped), (two, cut), (three, lost) = segment_paths(directory)[:3]
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-200])
    lost.unlink()
    return [one, two, three]


def test_a_killed_node_leaves_its_export_to_another_and_mends_what_was_damaged(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "history.db"

    def rows() -> list[int]:
        with sqlite3.connect(path) as db:
            return [number for (number,) in db.execute("SELECT sequence_number FROM events ORDER BY rowid")]

    async def scene() -> None:
        async with exporting(tmp_path, f"sqlite://{path}") as (cluster, client):
            async with Flood(list(cluster.endpoints), callers=2, size=200, namespaces=["a"]) as flood:
                await flood.reach(30_000)
            await until(lambda: path.exists() and (path.stat().st_size > 100_000))
            holders: list[str] = []

            async def held() -> bool:
                reader = await reader_of(cluster.nodes[0])
                holders.append(reader.holder if reader is not None else "")
                return holders[-1] != ""

            await until(held)
            victim = next(node for node in cluster.nodes if holders[-1].endswith(f"/{node.name}"))
            await until(lambda: len(segment_paths(segments_of(cluster, victim))) > 4)
            victim.kill()
            whole = {node.name: verify(segments_of(cluster, node)) for node in cluster.nodes}
            assert all(report.ok for report in whole.values())
            damaged = damage(segments_of(cluster, victim))
            # Found and named without any node.
            report = verify(segments_of(cluster, victim))
            assert {problem.path.stem for problem in report.problems} >= {f"{damaged[0]:020}", f"{damaged[1]:020}"}
            victim.start()
            sound = whole[victim.name].digests

            def mended() -> bool:
                found = verify(segments_of(cluster, victim))
                return found.ok and sound.items() <= found.digests.items()

            await until(mended)
            assert (await status_of(victim.address)).history.segments_mended == 3
            # The lease of the dead runs out, unless it is back before; either way the copy goes on, without a gap.
            await client.enqueue("table", "last")
            head = (await status_of(victim.address)).last_sequence
            await until(lambda: len(rows()) >= head)
            numbers = rows()
            assert numbers == list(range(1, len(numbers) + 1))
            assert (await client.verify(linearizable=True, timeout=60)).ok

    run(scene())


def test_an_export_goes_on_elsewhere_when_its_node_stays_dead(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "history.db"

    async def scene() -> None:
        async with exporting(tmp_path, f"sqlite://{path}") as (cluster, client):
            await client.enqueue("table", "first")
            found: list[v1.HistoryReader] = []

            async def copied(*, linearizable: bool = False) -> bool:
                reader = await reader_of(alive[0], linearizable=linearizable)
                found[:] = [reader] if reader is not None else []
                return bool(found) and bool(found[0].holder) and found[0].position > 0

            alive = list(cluster.nodes)
            # A node that is behind may still name one that has lost the lease since.
            await until(lambda: copied(linearizable=True))
            dead = found[0].holder
            victim = next(node for node in cluster.nodes if dead.endswith(f"/{node.name}"))
            victim.kill()
            alive.remove(victim)
            # What the cluster was told of last may be behind what the dead node has copied.
            stood, before = checkpoint(path)

            async def moved() -> bool:
                return await copied() and found[0].holder != dead and found[0].position > stood

            await until(moved)
            assert checkpoint(path)[1] > before
            with sqlite3.connect(path) as db:
                (count, last) = db.execute("SELECT count(*), max(sequence_number) FROM events").fetchone()
            assert count == last >= found[0].position
            victim.start()
            await cluster.ready(client)

    run(scene())
