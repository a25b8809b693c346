"""Three processes under load with kills: one history on all nodes, which is the state, and which Spark counts."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.conftest import leader_of, started
from cluster.flood import Flood, Reader, cut_segments_at, status_of

from resourcelease import Client, v1
from resourcelease.cli.processes import LocalCluster, LocalNode
from resourcelease.machine.machine import fold
from resourcelease.model.eventdata import EventType
from resourcelease.storage.segments import Log, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counts = Counter[tuple[str, str]]


@pytest.fixture(autouse=True)
def small_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_segments_at(500_000, tmp_path, monkeypatch)


async def victims(cluster: LocalCluster, client: Client) -> list[LocalNode]:
    """Every node once; the leader last."""
    leader = await leader_of(cluster, client)
    return [*(node for node in cluster.nodes if node is not leader), leader]


async def at_one_index(client: Client, nodes: list[str]) -> v1.VerifyResponse:
    """A verification whose last entry is one that made an event, so that a fold of the events can stand there too.

    Reads that are linearizable make entries without events, so nodes are looked at until they have caught up.
    """
    await client.enqueue("table", "last", namespace="end")
    async with asyncio.timeout(30):
        while True:
            answers = [await status_of(node, linearizable=False) for node in nodes]
            if len({answer.applied_index for answer in answers} | {answers[0].commit_index}) == 1:
                return await client.verify(timeout=60)
            await asyncio.sleep(0.02)


async def load_with_kills(tmp_path: Path, events: int) -> tuple[list[Path], Counts, Counts, str]:
    """The directories of the nodes, what the callers did, what a subscriber saw, and the digest of the state."""
    async with started(tmp_path) as (cluster, _):
        endpoints = [node.address for node in cluster.nodes]
        reader = Reader(list(endpoints))
        flood = Flood(endpoints, callers=3, size=500, namespaces=["a", "b"])
        async with Client(endpoints, timeout=30) as patient, reader:
            async with flood:
                for victim in await victims(cluster, patient):
                    await flood.reach(flood.events + events)
                    victim.kill()
                    await flood.reach(flood.events + events)
                    victim.start()
                    await cluster.ready(patient)
                await flood.finish()
            told = await at_one_index(patient, endpoints)
            assert told.ok, [problem for node in told.nodes for problem in node.problems]
            states = {node.state_digest for node in told.nodes}
            assert len(told.nodes) == 3
            assert len(states) == 1
            head = (await status_of(endpoints[0])).last_sequence
            await reader.reach(head)
        done: Counts = Counter(flood.done)
        seen: Counts = Counter({(space, EventType(number).name): size for (space, number), size in reader.seen.items()})
    directories = [tmp_path / "cluster" / node.name / "data" / "segments" for node in cluster.nodes]
    return directories, done, seen, states.pop()


def check(spark: "SparkSession", tmp_path: Path, events: int) -> None:
    directories, done, seen, state = asyncio.run(asyncio.wait_for(load_with_kills(tmp_path, events), 280))
    # What the callers were told is what the subscriber saw.
    assert {key: size for key, size in seen.items() if key in done} == dict(done)
    # Every node has the same sealed segments, and each of them holds the state.
    digests = []
    for directory in directories:
        report = verify(directory)
        assert report.ok, report.problems
        digests.append(report.digests)
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) >= 3
    cluster_id = json.loads((directories[0] / "register.json").read_bytes())["cluster_id"]
    for directory in directories:
        assert fold(cluster_id, Log(directory).records()).digest().hex() == state
    # Spark counts the same, from each node and from all of them as one.
    for paths in ([directories[0]], [directories[1]], [directories[2]], directories):
        table = spark.read.format("resourcelease").load([str(path) for path in paths])
        rows = table.groupBy("namespace", "type").count().collect()
        assert Counter({(row[0], row[1]): row[2] for row in rows}) == seen


def test_nodes_state_subscriber_and_spark_tell_one_history(spark: "SparkSession", tmp_path: Path) -> None:
    check(spark, tmp_path, 15_000)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nodes_state_subscriber_and_spark_tell_one_history_of_millions(spark: "SparkSession", tmp_path: Path) -> None:
    check(spark, tmp_path, 200_000)
