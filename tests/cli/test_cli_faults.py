"""The demo's workload while things happen to real nodes: nothing acknowledged is lost, nothing is granted twice."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from resourcelease import Client
from resourcelease.cli.demowork import Ledger, Workload
from resourcelease.cli.processes import LocalCluster, LocalNode

pytestmark = pytest.mark.slow

LEASE_MS, HEARTBEAT_MS = 3_000, 1_000


async def freeze(cluster: LocalCluster, victim: LocalNode) -> None:
    """Stopped for longer than its leases run, then back with what it had in hand."""
    victim.signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    victim.signal(signal.SIGCONT)


async def freeze_a_follower(cluster: LocalCluster, victim: LocalNode) -> None:
    await freeze(cluster, next(node for node in cluster.nodes if node is not victim))


async def kill_all(cluster: LocalCluster, victim: LocalNode) -> None:
    for node in cluster.nodes:
        node.kill()
    cluster.start()


async def stop_in_order(cluster: LocalCluster, victim: LocalNode) -> None:
    await victim.stop()
    victim.start()


@pytest.mark.parametrize("happens", [freeze, freeze_a_follower, kill_all, stop_in_order])
def test_work_goes_on(happens: Callable[[LocalCluster, LocalNode], Awaitable[None]], tmp_path: Path) -> None:
    async def story(cluster: LocalCluster) -> Ledger:
        ledger = Ledger()
        async with Client(cluster.endpoints) as producer, Client(cluster.endpoints) as worker:
            leader = await cluster.ready(producer)
            await producer.configure(lease_duration_ms=LEASE_MS, heartbeat_interval_ms=HEARTBEAT_MS)
            workload = Workload(producer, [worker], ledger)
            workload.start()
            await asyncio.sleep(1)
            await happens(cluster, next(node for node in cluster.nodes if node.name == leader))
            await asyncio.sleep(2)
            await workload.stop_producing()
            async with asyncio.timeout(30):
                while ledger.missing:
                    workload.check()
                    await asyncio.sleep(0.05)
            await workload.stop()
        return ledger

    async def whole() -> Ledger:
        cluster = LocalCluster.plan(tmp_path / "cluster", 3)
        try:
            cluster.start()
            return await story(cluster)
        finally:
            await cluster.stop()

    ledger = asyncio.run(whole())
    assert len(ledger.enqueued) > 100
    assert ledger.double_grants == 0
