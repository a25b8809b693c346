"""resourcelease: three nodes with their default settings, through the public client."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.base import Claim, Peer, Refused, Session, Worker, body_of, number_of, version_of
from bench.peers.servers import Server
from resourcelease import Client
from resourcelease.cli.processes import LocalCluster, LocalNode
from resourcelease.client import Lease, LeaseStream, SomeRefused, new_item

__all__ = ["Ours"]

WAIT_SECONDS = 10.0
FILL_ITEMS = 2_000
FILL_CALLS = 4
# A queue takes no more than 1,000,000 items unless it is told to.
FILL_CAPACITY = 100_000_000
# Lists up to this long are faster by a stream, and joined by the client; longer ones in calls of their own.
STREAM_BATCH = 10


class Ours(Peer):
    """Three nodes on loopback, as ``resourcelease dev`` starts them."""

    name = "ours"
    title = "resourcelease"
    notes: ClassVar[tuple[str, ...]] = (
        "The client joins calls that tasks of one process make at the same time into few requests; "
        "that is its default, and no other client in this run does it.",
        "A process takes its leases from one stream, which has one name for all its workers; lists of more than ten "
        "items are leased by calls under the worker's own name.",
        "The client calls the node that leads, as it does by itself.",
    )

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cluster: LocalCluster | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Nothing is."""
        return None

    def start(self) -> None:
        """All three nodes."""
        self._cluster = LocalCluster.plan(self.directory / "cluster", 3)
        self._cluster.start()
        self.servers = [_Node(node) for node in self._cluster.nodes]
        self.leader()

    def connect(self) -> dict[str, Any]:
        """The nodes' addresses."""
        assert self._cluster is not None
        return {"endpoints": self._cluster.endpoints}

    @classmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """One client for the process."""
        return OurSession(Client(connect["endpoints"]), workers, batch)

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Server and client are one package."""
        return {"resourcelease": version_of("resourcelease"), "grpcio": version_of("grpcio")}

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """As it ships."""
        return {
            "nodes": 3,
            "settings": "default; where a backlog is filled, a capacity of 100,000,000",
            "lease": "30 s, the default of a queue",
        }

    def leader(self) -> Server:
        """The node that leads; waits until all nodes agree."""
        name = asyncio.run(self._ready())
        return next(server for server in self.servers if server.name == name)

    async def _ready(self) -> str:
        assert self._cluster is not None
        async with Client(self._cluster.endpoints) as client:
            return await self._cluster.ready(client)

    def revive(self, server: Server) -> None:
        """Starts it, and waits until it follows."""
        server.start()
        self.leader()


class _Node(Server):
    """A node of the package's own cluster, seen as any other server."""

    def __init__(self, node: LocalNode) -> None:
        super().__init__(node.name, (), node.config.parent)
        self._node = node
        self.log = node.log

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._node.pid

    def start(self) -> None:
        """Starts it again."""
        self._node.start()

    def kill(self, number: Any = None) -> None:
        """Kill -9."""
        self._node.kill()


class OurSession:
    """One client; a stream of leases for workers of few items, plain calls for long lists."""

    def __init__(self, client: Client, workers: int, batch: int) -> None:
        self._client = client
        self._credit = workers * batch if batch <= STREAM_BATCH else 0
        self._stream: LeaseStream | None = None
        self._streaming = 0

    async def worker(self, name: str) -> Worker:
        """A worker on the stream, or one with plain calls under its own name."""
        if not self._credit:
            return _Plain(self._client, name)
        if self._stream is None:
            self._stream = self._client.leases(credit=self._credit)
        self._streaming += 1
        return _Streaming(self._client, self._stream, self._left)

    async def _left(self) -> None:
        """The last one out gives back what the stream holds: other processes wait for it."""
        self._streaming -= 1
        if self._stream is not None and not self._streaming:
            stream, self._stream = self._stream, None
            await stream.aclose()

    async def fill(self, numbers: Sequence[int]) -> None:
        """Large calls, a few at a time, into a queue that may hold them all."""
        await self._client.configure(capacity=FILL_CAPACITY)
        room = asyncio.Semaphore(FILL_CALLS)

        async def call(part: Sequence[int]) -> None:
            async with room:
                await self._client.enqueue_many([_item(number) for number in part])

        async with asyncio.TaskGroup() as group:
            for at in range(0, len(numbers), FILL_ITEMS):
                group.create_task(call(numbers[at : at + FILL_ITEMS]))

    async def depth(self) -> int:
        """Waiting and leased, in all."""
        queues = await self._client.queues(linearizable=True)
        return sum(queue.summary.depth.pending + queue.summary.depth.active for queue in queues)

    async def close(self) -> None:
        """Gives back what was pushed and not begun."""
        await self._client.close()


def _item(number: int) -> Any:
    return new_item("item", str(number), body_of(number))


def _claims(leases: Sequence[Lease]) -> list[Claim]:
    return [Claim(number_of(lease.body), lease) for lease in leases]


class _Plain:
    """Calls with lists, or of one item where the list has one."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    async def enqueue(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await self._client.enqueue("item", str(numbers[0]), body_of(numbers[0]))
        else:
            await self._client.enqueue_many([_item(number) for number in numbers])

    async def lease(self, many: int) -> list[Claim]:
        while True:
            leases = await self._client.lease(many, wait=WAIT_SECONDS, peer_id=self._name)
            if leases:
                return _claims(leases)

    async def complete(self, claims: Sequence[Claim]) -> None:
        if len(claims) == 1:
            await claims[0].handle.complete()
            return
        try:
            await self._client.complete_many([claim.handle for claim in claims], peer_id=self._name)
        except SomeRefused as error:
            raise Refused(str(error)) from error

    async def close(self) -> None:
        pass


class _Streaming:
    """A task that takes from the process's stream."""

    def __init__(self, client: Client, stream: LeaseStream, leave: Callable[[], Awaitable[None]]) -> None:
        self._client = client
        self._stream = stream
        self._leave = leave

    async def enqueue(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await self._client.enqueue("item", str(numbers[0]), body_of(numbers[0]))
        else:
            await self._client.enqueue_many([_item(number) for number in numbers])

    async def lease(self, many: int) -> list[Claim]:
        return _claims([await anext(self._stream) for _ in range(many)])

    async def complete(self, claims: Sequence[Claim]) -> None:
        if len(claims) == 1:
            await claims[0].handle.complete()
            return
        try:
            await self._client.complete_many([claim.handle for claim in claims])
        except SomeRefused as error:
            raise Refused(str(error)) from error

    async def close(self) -> None:
        await self._leave()
