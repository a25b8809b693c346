"""Real processes: a node whose state is damaged gets the majority's and comes back by itself, while work goes on."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest

from cluster.conftest import followers_of, started
from cluster.flood import Flood, status_of
from resourcelease import Client, v1
from resourcelease.cli.processes import LocalCluster, LocalNode
from resourcelease.model import limits
from resourcelease.node.takeout import rebuilds
from resourcelease.storage import LmdbStore, WriteBatch

Run = Callable[[Any], Any]

# In every node of these tests. Where DIE_AT names a place, the first rebuilding that gets there is killed, once.
SITE = """
import os
import signal
from pathlib import Path

from resourcelease.model import limits
from resourcelease.node import rebuild
from resourcelease.node.upkeep import Upkeep
from resourcelease.storage import points
from resourcelease.storage.intake import RowsIntake

limits.SEGMENT_BYTES = 50_000
Upkeep.state_every_s = 1.0
place, died = os.environ.get("DIE_AT"), Path(os.environ.get("DIED", "/nonexistent"))


def die_at(point):
    if point == place and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def dying_before(owner, name):
    usual = getattr(owner, name)

    def called(*args, **kwargs):
        die_at(name)
        return usual(*args, **kwargs)

    setattr(owner, name, called)


if place:
    points.set_hook(die_at)
    dying_before(RowsIntake, "finish")
    dying_before(rebuild, "put_log_aside")
    dying_before(rebuild, "note_rebuilt")
    dying_before(rebuild, "clear_mark")
"""


@pytest.fixture(autouse=True)
def states_are_compared_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 50_000)
    site = tmp_path / "site"
    site.mkdir()
    # Small segments too: what the node missed of the history is fetched once it is sealed.
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))


def data_of(cluster: LocalCluster, node: LocalNode) -> Path:
    return cluster.directory / node.name / "data"


def opened(directory: Path, name: str, cluster_id: str) -> LmdbStore:
    return LmdbStore(directory, cluster_id=cluster_id, node_id=name, create=False)


def flip_a_row(directory: Path, name: str, cluster_id: str) -> None:
    """Changes one bit of a stored row behind LMDB's back, so that it does not match its checksum."""
    store = opened(directory, name, cluster_id)
    value = next(value for key, value in store.rows() if key[:1] == b"n")
    store.close()
    path = directory / "lmdb" / "data.mdb"
    content = path.read_bytes()
    assert value in content
    path.write_bytes(content.replace(value, bytes([value[0] ^ 1]) + value[1:]))


def falsify_a_row(directory: Path, name: str, cluster_id: str) -> None:
    """Counts an item too many in a stored row, which is sound by itself."""
    store = opened(directory, name, cluster_id)
    key, value = next((key, value) for key, value in store.rows() if key[:1] == b"n" and b"flooded" in value)
    fields = msgpack.unpackb(value)
    fields[-1][0] += 1
    store.write(WriteBatch(row_puts=[(key, msgpack.packb(fields))])).result()
    store.close()


async def until(look: Callable[[], Any], seconds: float = 60.0) -> None:
    """Looks until something holds that nobody tells of."""
    async with asyncio.timeout(seconds):
        while True:
            if await look():
                return
            await asyncio.sleep(0.1)


async def state_of(node: LocalNode) -> v1.StateStatus:
    """As the node tells it; asked again if that is cut off because the node takes itself out."""
    while True:
        try:
            return (await status_of(node.address, linearizable=False)).history.state
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


async def digests_agree(client: Client) -> bool:
    answer = await client.verify(timeout=60)
    digests = {node.state_digest for node in answer.nodes}
    return answer.ok and len(digests) == 1 and "" not in digests


async def rebuilt(
    cluster: LocalCluster, client: Client, victim: LocalNode, flood: Flood, reason: str, *, times: int = 1
) -> None:
    """The node is back, with the state of the others, and says so."""

    async def back() -> bool:
        assert victim.exit_code is None, victim.last_words()
        return (await state_of(victim)).rebuilds == times

    await until(back)
    done = flood.events
    await flood.reach(done + 3_000)

    async def compared() -> bool:
        state = await state_of(victim)
        return state.compared_index > state.rebuilt_index and state.agreeing == 3

    await until(compared)
    await flood.finish()
    await until(lambda: digests_agree(client))
    state = await state_of(victim)
    assert reason in state.rebuilt_because
    assert state.rebuilt_from in {node.name for node in cluster.nodes} - {victim.name}
    words = victim.log.read_text()
    assert f"node {victim.name} is out: " in words
    assert "has rebuilt its state" in words
    assert "Traceback" not in words
    written = rebuilds(data_of(cluster, victim))
    assert len(written) == times
    assert (data_of(cluster, victim) / written[-1].aside / "data.mdb").exists()
    # It counts again: without one of the others it is needed for a majority.
    other = next(node for node in cluster.nodes if node is not victim)
    other.kill()
    await client.enqueue("table", "last")
    other.start()
    await cluster.ready(client)


async def stored(node: LocalNode) -> bool:
    return (await status_of(node.address, linearizable=False)).stored_index > 1


def scene(tmp_path: Path, damage: Callable[[Path, str, str], None], reason: str) -> Any:
    async def play() -> None:
        async with started(tmp_path) as (cluster, client):
            victim = (await followers_of(cluster, client))[0]
            cluster_id = (await client.status()).cluster_id
            async with Flood(list(cluster.endpoints), callers=2, size=50, namespaces=["flooded"]) as flood:
                await flood.reach(3_000)
                await until(lambda: stored(victim))
                victim.kill()
                await asyncio.to_thread(damage, data_of(cluster, victim), victim.name, cluster_id)
                victim.start()
                await rebuilt(cluster, client, victim, flood, reason)

    return play()


def test_a_node_with_a_flipped_row_gets_the_state_of_the_others(tmp_path: Path, run: Run) -> None:
    run(scene(tmp_path, flip_a_row, "does not match its checksum"))


def test_a_node_with_another_state_takes_itself_out_and_comes_back(tmp_path: Path, run: Run) -> None:
    run(scene(tmp_path, falsify_a_row, "is not that of the majority (2 of 3 nodes)"))


@pytest.mark.parametrize(
    ("place", "times"),
    [
        pytest.param("finish", 1, marks=pytest.mark.slow),
        pytest.param("install.planned", 1, marks=pytest.mark.slow),
        ("install.swapped", 1),
        pytest.param("put_log_aside", 1, marks=pytest.mark.slow),
        pytest.param("note_rebuilt", 1, marks=pytest.mark.slow),
        # It was written down, and is done again: nothing says that it came to its end.
        pytest.param("clear_mark", 2, marks=pytest.mark.slow),
    ],
)
def test_a_rebuilding_that_is_killed_is_done_again(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, place: str, times: int
) -> None:
    died = tmp_path / "died"
    monkeypatch.setenv("DIE_AT", place)
    monkeypatch.setenv("DIED", str(died))

    async def scenario() -> None:
        async with started(tmp_path) as (cluster, client):
            victim = (await followers_of(cluster, client))[0]
            cluster_id = (await client.status()).cluster_id
            async with Flood(list(cluster.endpoints), callers=2, size=50, namespaces=["flooded"]) as flood:
                await flood.reach(3_000)
                await until(lambda: stored(victim))
                victim.kill()
                await asyncio.to_thread(flip_a_row, data_of(cluster, victim), victim.name, cluster_id)
                victim.start()

                async def dead() -> bool:
                    return victim.exit_code is not None

                await until(dead)
                assert died.exists()
                victim.kill()
                victim.start()
                await rebuilt(cluster, client, victim, flood, "does not match its checksum", times=times)

    run(scenario())
