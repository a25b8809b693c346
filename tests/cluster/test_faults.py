"""What DESIGN promises, on real processes: kills, stops, power cuts, and minorities."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import followers_of, leader_of, started
from resourcelease import Client
from resourcelease.cli.demowork import Ledger, Workload
from resourcelease.client import LeaseLost, NoLeader, OutcomeUnknown

Run = Callable[[Any], Any]


async def _pass(workload: Workload, items: int) -> None:
    """Until the workload has completed so many more."""
    goal = len(workload.ledger.completed) + items
    while len(workload.ledger.completed) < goal:
        workload.check()
        await asyncio.sleep(0.02)


async def _worked_off(workload: Workload) -> None:
    await workload.stop_producing()
    while workload.ledger.missing:
        workload.check()
        await asyncio.sleep(0.05)


def test_leader_and_follower_die_under_load_and_come_back(tmp_path: Path, run: Run) -> None:
    async def scene() -> None:
        async with started(tmp_path, lease_duration_ms=3_000, heartbeat_interval_ms=1_000) as (cluster, client):
            ledger = Ledger()
            async with Client(cluster.endpoints) as first, Client(cluster.endpoints) as second:
                workload = Workload(client, [first, second], ledger)
                workload.start()
                try:
                    await _pass(workload, 300)
                    for choose in (leader_of, followers_of, leader_of):
                        chosen = await choose(cluster, client)
                        victim = chosen[0] if isinstance(chosen, list) else chosen
                        victim.kill()
                        await _pass(workload, 300)
                        victim.start()
                        await _pass(workload, 300)
                    await _worked_off(workload)
                finally:
                    await workload.stop()
            assert not ledger.double_grants
            assert not ledger.stale_writes
            await cluster.ready(client)
            assert (await client.verify(linearizable=True)).ok

    run(scene())


def test_a_leader_that_slept_finds_its_grants_refused(tmp_path: Path, run: Run) -> None:
    async def scene() -> None:
        async with started(tmp_path, lease_duration_ms=1_000, heartbeat_interval_ms=300) as (cluster, client):
            sleeper = await leader_of(cluster, client)
            others = [node.address for node in cluster.nodes if node is not sleeper]
            async with Client([sleeper.address], peer_id="slow", timeout=5) as slow, Client(others) as client:
                await client.enqueue("table", "orders")
                (old,) = await slow.lease(1, wait=5)
                sleeper.signal(signal.SIGSTOP)
                (new,) = await client.lease(1, wait=30)
                assert new.sequence_id == old.sequence_id
                assert new.fence > old.fence
                sleeper.signal(signal.SIGCONT)
                with pytest.raises(LeaseLost):
                    await slow.complete(old)
                await client.complete(new)
                await cluster.ready(client)
                assert (await client.verify(linearizable=True)).ok

    run(scene())


def test_nothing_acknowledged_is_lost_when_all_die_at_once(tmp_path: Path, run: Run) -> None:
    async def scene() -> None:
        async with started(tmp_path) as (cluster, client):
            acknowledged: list[int] = []

            async def produce(number: int) -> None:
                async with Client(cluster.endpoints, timeout=1) as producer:
                    while True:
                        one = await producer.enqueue("table", f"r{number}")
                        acknowledged.append(one.sequence_id)

            producers = [asyncio.create_task(produce(number)) for number in range(4)]
            while len(acknowledged) < 400:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            held = await client.lease(20, wait=5)
            for node in cluster.nodes:
                node.signal(signal.SIGKILL)
            for node in cluster.nodes:
                node.kill()
            await asyncio.gather(*producers, return_exceptions=True)
            cluster.start()
            await cluster.ready(client)
            for lease in held:
                await client.complete(lease)
            there = [item.sequence_id async for item in client.items(linearizable=True)]
            done = [lease.sequence_id for lease in held]
            assert set(acknowledged) <= {*there, *done}
            assert not set(there) & set(done)

    run(scene())


@pytest.mark.parametrize(("count", "down"), [(5, 2), (3, 2)])
def test_a_majority_serves_and_a_minority_says_no(tmp_path: Path, run: Run, count: int, down: int) -> None:
    async def scene() -> None:
        async with started(tmp_path, count) as (cluster, client):
            victims = [await leader_of(cluster, client), *await followers_of(cluster, client)][:down]
            for victim in victims:
                victim.kill()
            rest = [node.address for node in cluster.nodes if node not in victims]
            async with Client(rest, timeout=4) as left:
                if down > count // 2:
                    with pytest.raises((NoLeader, OutcomeUnknown)):
                        await left.enqueue("table", "orders")
                    victims[0].start()
                async with Client(rest, timeout=20) as patient:
                    await patient.enqueue("table", "orders")
                    (lease,) = await patient.lease(1, wait=10)
                    await patient.complete(lease)

    run(scene())
