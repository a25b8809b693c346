"""A little work that goes on while nodes come and go."""

import asyncio
from contextlib import suppress
from pathlib import Path

from frontdoor.cluster_fixture import Cluster, fresh, items, until

from resourcelease import Client, v1
from resourcelease.client import ResourceLeaseError


def segments_of(cluster: Cluster, name: str) -> Path:
    return cluster.directory / name / "segments"


async def put(cluster: Cluster, count: int, name: str = "n1") -> None:
    """So many calls with two items each."""
    for _ in range(count):
        request = v1.EnqueueRequest(operation_id=fresh("put"), items=items("a", "b", body=b"y" * 100))
        await cluster.stubs[name].lease.Enqueue(request, timeout=10)


class Load:
    """Producers and a worker against all nodes of a cluster, in ``async with``."""

    def __init__(self, cluster: Cluster, namespace: str = "resourcelease") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._tasks: list[asyncio.Task[None]] = []
        self.done = 0

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.ensure_future(self._produce(number)) for number in range(3)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def more(self, count: int) -> None:
        """Until so much more was done."""
        goal = self.done + count
        await until(lambda: self.done >= goal, 20)

    async def _produce(self, number: int) -> None:
        endpoints = [node.grpc_address for node in self._cluster.nodes.values()]
        async with Client(endpoints, namespace=self._namespace, peer_id=f"p{number}", timeout=20) as client:
            while True:
                with suppress(ResourceLeaseError):
                    await client.enqueue("table", f"r{self.done}", body=b"x" * 60)
                    for lease in await client.lease(2):
                        await client.complete(lease)
                    self.done += 1
