"""A subscriber from event 1 on, while much is written and the node it reads from is killed and replaced, twice."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import started
from cluster.flood import Flood, Reader, status_of
from resourcelease import Client
from resourcelease.cli.processes import LocalCluster, LocalNode, free_ports, to_toml
from resourcelease.model.eventdata import EventType

TYPES = ("ENQUEUE", "LEASE_GRANTED", "COMPLETED")


@pytest.fixture
def run_long() -> Callable[[Any], Any]:
    """Runs a coroutine that may take longer."""
    return lambda scene: asyncio.run(asyncio.wait_for(scene, 280))


async def replace(cluster: LocalCluster, client: Client, victim: LocalNode, name: str) -> LocalNode:
    """Another node, with another name and an empty directory, in the place of one that is dead."""
    cluster_id = (await client.status()).cluster_id
    await client.remove_member(victim.name)
    cluster.nodes.remove(victim)
    port, peer_port = free_ports(2)
    node = LocalNode(cluster.directory, name, f"127.0.0.1:{port}")
    node.config.parent.mkdir()
    tables: dict[str, dict[str, Any]] = {
        "node": {"id": name, "dir": str((cluster.directory / name / "data").resolve())},
        "cluster": {"id": cluster_id, "join": True},
        "grpc": {"listen": node.address},
        "peers": {"listen": f"127.0.0.1:{peer_port}"},
    }
    node.config.write_text(to_toml(tables))
    node.start()
    cluster.nodes.append(node)
    await client.add_member(name, raft_address=f"127.0.0.1:{peer_port}", client_address=node.address)
    return node


async def each_event_once(tmp_path: Path, events: int, record: Callable[[str, object], None]) -> None:
    """``events`` are written between one death and the next."""
    async with started(tmp_path) as (cluster, client):
        client_of_all = Client([node.address for node in cluster.nodes], timeout=60)
        leader = (await client.status()).leader_id
        first = next(node for node in cluster.nodes if node.name != leader)
        endpoints = [node.address for node in cluster.nodes]
        reader = Reader([first.address])
        flood = Flood(list(endpoints), callers=3, size=2_000, namespaces=["a", "b"])
        async with client_of_all as admin, reader, flood:
            victim, rates = first, []
            for name in ("n4", "n5"):
                began, before = time.monotonic(), flood.events
                await flood.reach(before + events)
                rates.append((flood.events - before) / (time.monotonic() - began))
                await reader.reach(before + 1)
                assert reader.address == victim.address
                # Where it goes on; the one that takes the victim's place comes after it.
                rest = [node.address for node in cluster.nodes if node is not victim]
                reader.endpoints = list(rest)
                flood.endpoints = list(rest)
                victim.kill()
                await reader.moved_from(victim.address)
                new = await replace(cluster, admin, victim, name)
                flood.endpoints = [*rest, new.address]
                if name == "n4":
                    # The new one is the next to be read from, and to die.
                    reader.endpoints = [new.address]
                    stands = next(node for node in cluster.nodes if node.address == reader.address)
                    stands.kill()
                    await reader.moved_from(stands.address)
                    stands.start()
                    await cluster.ready(admin)
                    victim = new
            await flood.finish()
            head = max([(await status_of(node.address)).last_sequence for node in cluster.nodes])
            await reader.reach(head)
            assert reader.next == head + 1
            assert len(set(reader.addresses)) >= 3
            # What the callers were told is what happened, no more and no less.
            told = {(space, what): flood.done[space, what] for space in "ab" for what in TYPES}
            seen = {(space, what): reader.seen[space, EventType[what]] for space in "ab" for what in TYPES}
            assert seen == told
            record("events", head)
            record("events_per_s", [round(rate) for rate in rates])
            print(f"{head:,} events, written at {', '.join(f'{rate:,.0f}' for rate in rates)} a second")


def test_each_event_once_in_order(
    tmp_path: Path, run: Callable[[Any], Any], record_property: Callable[[str, object], None]
) -> None:
    run(each_event_once(tmp_path, 60_000, record_property))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_event_once_in_order_of_millions(
    tmp_path: Path, run_long: Callable[[Any], Any], record_property: Callable[[str, object], None]
) -> None:
    run_long(each_event_once(tmp_path, 1_500_000, record_property))
