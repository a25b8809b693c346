"""Nodes of real gRPC in this process, on one loop, for tests of whatever a client can see."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from resourcelease import v1
from resourcelease.cli.processes import free_ports
from resourcelease.client.direct import DirectStream, Place
from resourcelease.consensus import Settings
from resourcelease.node.config import load
from resourcelease.node.process import Node
from resourcelease.storage import StoreOptions
from resourcelease.v1.admin_service_pb2_grpc import AdminServiceStub
from resourcelease.v1.event_service_pb2_grpc import EventServiceStub
from resourcelease.v1.lease_service_pb2_grpc import LeaseServiceStub

T = TypeVar("T")

QUICK = Settings(
    heartbeat_s=0.05,
    election_min_s=0.3,
    election_max_s=0.6,
    fallback_s=2.0,
    flush_s=0.2,
    entry_bytes_max=18 << 20,
    append_bytes_max=24 << 20,
    frame_bytes_max=40 << 20,
)
SMALL = StoreOptions(ballast_bytes=0, map_size_bytes=64 << 20)
_names = itertools.count(1)


def fresh(prefix: str = "ns") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_names)}"


class Stubs:
    """One client of one node."""

    def __init__(self, channel: grpc.aio.Channel, direct: str = "") -> None:
        self.channel = channel
        self.place = Place.of(direct)
        self.lease = LeaseServiceStub(channel)
        self.event = EventServiceStub(channel)
        self.admin = AdminServiceStub(channel)

    def stream(self, name: str, wire: str) -> Any:
        """A stream that both sides write to, on the wire that is asked for: gRPC, or a connection of its own."""
        if wire == "grpc":
            return getattr(self.lease, name)()
        assert wire == "direct"
        assert self.place is not None
        return DirectStream(self.place, name, None, None, _no_other_way, lambda: None)


def _no_other_way() -> Any:
    raise AssertionError("no direct stream came about")


class Cluster:
    """Nodes by name, and a client of each."""

    def __init__(self, directory: Path, count: int, overrides: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count), 1)}
        self.overrides = dict(overrides or {})
        self.nodes: dict[str, Node] = {}
        self.stubs: dict[str, Stubs] = {}

    async def start(self, name: str, **more: object) -> Node:
        overrides: dict[str, object] = {
            "node.id": name,
            "node.dir": self.directory / name,
            "cluster.id": "test",
            "cluster.members": self.members,
            "grpc.listen": "127.0.0.1:0",
            "peers.listen": self.members[name],
            **self.overrides,
            **more,
        }
        node = Node(load(None, {}, overrides), settings=QUICK, store_options=SMALL)
        await node.start()
        self.nodes[name] = node
        direct = node.door.neighbours.direct_address_of(name)
        self.stubs[name] = Stubs(grpc.aio.insecure_channel(node.grpc_address), direct)
        return node

    async def start_all(self) -> None:
        for name in self.members:
            await self.start(name)
        await self.leader()
        for stubs in self.stubs.values():
            await stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=20)

    async def stop(self, name: str) -> None:
        await self.stubs.pop(name).channel.close()
        await self.nodes.pop(name).stop()

    async def stop_all(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)

    async def leader(self) -> str:
        async with asyncio.timeout(20):
            while True:
                for name, node in self.nodes.items():
                    if node.consensus.is_leader:
                        return name
                await asyncio.sleep(0.01)

    async def via(self, role: str) -> Stubs:
        """A client of the leader, or of a follower."""
        leader = await self.leader()
        if role == "leader":
            return self.stubs[leader]
        return next(stubs for name, stubs in self.stubs.items() if name != leader)


class Runner:
    """Runs coroutines on the loop that the nodes live on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __call__(self, work: Coroutine[Any, Any, T], timeout_s: float = 40.0) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, timeout_s))


async def eventually(good: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Looks until something holds that nobody tells of."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await good():
                return
            await asyncio.sleep(0.01)


async def until(good: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """The same for what can be seen at once."""

    async def look() -> bool:
        return good()

    await eventually(look, timeout_s)


async def ended(call: Any) -> grpc.aio.AioRpcError:
    """The status that a stream ends with, once all of it has been read."""
    try:
        async with asyncio.timeout(10):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    if isinstance(call, DirectStream):
        return grpc.aio.AioRpcError(grpc.StatusCode.OK, grpc.aio.Metadata(), grpc.aio.Metadata())
    metadata = await call.trailing_metadata()
    return grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), metadata, await call.details())


def info_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, str, bool]:
    """Code, reason, field, and whether the caller is told when to retry."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            status = status_pb2.Status.FromString(value)
            assert status.code == error.code().value[0]
            assert status.message == error.details()
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            assert status.details[0].Unpack(info)
            assert info.domain == "resourcelease"
            told = len(status.details) > 1 and status.details[1].Unpack(retry)
            return error.code(), info.reason, info.metadata.get("field", ""), told
    return error.code(), "", "", False


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, str, bool]:
    """What a call that has to fail fails with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return info_of(error)
    raise AssertionError(f"it went through: {answer}")


def items(*names: str, **fields: Any) -> list[v1.ItemPayload]:
    return [v1.ItemPayload(resource_type="table", resource_id=name, **fields) for name in names]


def ack(*leases: v1.Lease) -> list[v1.CompleteEntry]:
    return [v1.CompleteEntry(handle=lease.handle) for lease in leases]
