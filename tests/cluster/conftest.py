"""Clusters of real processes, each test with its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from resourcelease import Client
from resourcelease.cli.processes import LocalCluster, LocalNode

Started = Callable[..., Any]


@asynccontextmanager
async def started(directory: Path, count: int = 3, **options: Any) -> AsyncIterator[tuple[LocalCluster, Client]]:
    """A cluster that answers, and a client of it; ``options`` are those of the default namespace."""
    cluster = LocalCluster.plan(directory / "cluster", count)
    try:
        cluster.start()
        async with Client(cluster.endpoints, peer_id="test") as client:
            await cluster.ready(client)
            if options:
                await client.configure(**options)
            yield cluster, client
    finally:
        await cluster.stop()


@pytest.fixture
def run() -> Callable[[Any], Any]:
    """Runs a coroutine, with a bound on how long a cluster may take."""

    def run(scene: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(100):
                return await scene

        return asyncio.run(bounded())

    return run


async def leader_of(cluster: LocalCluster, client: Client) -> LocalNode:
    """The node that leads."""
    name = (await client.status()).leader_id
    return next(node for node in cluster.nodes if node.name == name)


async def followers_of(cluster: LocalCluster, client: Client) -> list[LocalNode]:
    """The others."""
    leader = await leader_of(cluster, client)
    return [node for node in cluster.nodes if node is not leader]
