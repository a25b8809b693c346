"""The nodes that a client knows: it sticks to one, and moves on when that one fails."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from grpc import aio

from resourcelease import v1
from resourcelease.client.direct import DirectStream, Metadata, Place
from resourcelease.client.options import Tls
from resourcelease.v1.admin_service_pb2_grpc import AdminServiceStub
from resourcelease.v1.event_service_pb2_grpc import EventServiceStub
from resourcelease.v1.lease_service_pb2_grpc import LeaseServiceStub

__all__ = ["Node", "Nodes"]

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# A node that failed is not asked again for so many seconds, while another can be.
REST_SECONDS = 2.0
# The same for direct streams, while gRPC can be used.
DIRECT_REST_SECONDS = 60.0
# So long may it take to find out who leads before the first call is made anyway.
_LOOK_SECONDS = 1.0

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    # A connection that is silent because the other side is gone is found out, also while a call waits.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # We retry ourselves, on another node, under the same operation id.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Node:
    """One node: its address, a channel, and the methods on it."""

    def __init__(
        self, address: str, channel: aio.Channel, encryption: Callable[[], tuple[ssl.SSLContext, str] | None]
    ) -> None:
        self.address = address
        self.channel = channel
        self.resting_until = 0.0
        # Where it takes direct streams, if it does and we know.
        self.place: Place | None = None
        self._direct_resting_until = 0.0
        self._encryption = encryption
        self._stubs = (LeaseServiceStub(channel), AdminServiceStub(channel), EventServiceStub(channel))
        self._methods: dict[str, Callable[..., Any]] = {}

    def method(self, name: str) -> Callable[..., Any]:
        """The callable for a method of any of the services, by its name."""
        found = self._methods.get(name)
        if found is None:
            stub = next(stub for stub in self._stubs if hasattr(stub, name))
            found = self._methods[name] = getattr(stub, name)
        return found

    @property
    def goes_direct(self) -> bool:
        """Whether a stream that is opened now would go without gRPC, as far as we know."""
        return self.place is not None and self._direct_resting_until <= asyncio.get_running_loop().time()

    def stream(self, name: str, metadata: Metadata) -> Any:
        """Opens a stream that both sides write to: a direct one where that can be had, or else on gRPC."""

        def on_grpc() -> Any:
            return self.method(name)(metadata=metadata or None)

        if self.place is None or not self.goes_direct:
            return on_grpc()
        return DirectStream(self.place, name, metadata, self._encryption(), on_grpc, self._not_direct)

    def reach(self, place: Place | None) -> None:
        """Notes where it takes direct streams now."""
        if place != self.place:
            self.place, self._direct_resting_until = place, 0.0

    def _not_direct(self) -> None:
        self._direct_resting_until = asyncio.get_running_loop().time() + DIRECT_REST_SECONDS


class Nodes:
    """All nodes that are known, with one of them in use."""

    def __init__(
        self, endpoints: Sequence[str], tls: Tls | None, metadata: Mapping[str, str], *, prefer_leader: bool = False
    ) -> None:
        self._prefer_leader = prefer_leader
        self._looked = not prefer_leader
        # Streams that stay where they are.
        self.staying = 0
        self.metadata = tuple((key.lower(), value) for key, value in metadata.items())
        self._tls = tls
        self._credentials: grpc.ChannelCredentials | None = None
        self._context: ssl.SSLContext | None = None
        self._chance = random.Random()  # noqa: S311
        # In an order of each client's own, so that clients spread over the nodes.
        self._addresses = self._chance.sample(list(endpoints), len(endpoints))
        self._open: dict[str, Node] = {}
        self._places: dict[str, Place] = {}
        self._current: Node | None = None
        self._discovery: asyncio.Task[None] | None = None
        self._discovered = False
        self.on_change: Callable[[str], None] | None = None

    @property
    def addresses(self) -> list[str]:
        """Every node that is known."""
        return list(self._addresses)

    async def look_around(self) -> None:
        """Before anything is asked: finds out who leads, if that makes a difference and can be had soon."""
        if self._looked:
            return
        if self._discovery is None:
            self._discovery = asyncio.get_running_loop().create_task(self._discover(self.current(), _LOOK_SECONDS))
        await asyncio.wait([self._discovery])
        self._looked = self._discovered = True

    def current(self) -> Node:
        """The node in use."""
        if self._current is None:
            self._current = self.at(self._addresses[0])
        return self._current

    def at(self, address: str) -> Node:
        """The node at an address; opened when first asked for."""
        node = self._open.get(address)
        if node is None:
            node = self._open[address] = Node(address, self._channel(address), self._encryption)
            node.place = self._places.get(address)
        return node

    def failed(self, node: Node) -> None:
        """Moves on from a node that failed: to the one that has been well for longest."""
        now = asyncio.get_running_loop().time()
        node.resting_until = now + REST_SECONDS
        self._discovered = False
        if node is not self._current:
            return
        at = self._addresses.index(node.address) if node.address in self._addresses else 0
        others = [self.at(address) for address in self._addresses[at + 1 :] + self._addresses[: at + 1]]
        self._current = min(others, key=lambda other: max(other.resting_until - now, 0.0))
        if self.on_change is not None and self._current is not node:
            self.on_change(self._current.address)

    def answered(self, node: Node) -> None:
        """Notes that a node is well; the first time, the others' addresses are asked of it."""
        node.resting_until = 0.0
        if not self._discovered:
            self._discovered = True
            if self._discovery is None or self._discovery.done():
                self._discovery = asyncio.get_running_loop().create_task(self._discover(node))

    async def _discover(self, node: Node, within: float = 5.0) -> None:
        """Learns the members' addresses, and who leads; who may not ask for them goes on with those given."""
        with contextlib.suppress(aio.AioRpcError, asyncio.TimeoutError):
            request = v1.MembersRequest(list=v1.ListMembers())
            answer = await node.method("Members")(request, timeout=within, metadata=self.metadata or None)
            self.learn(answer.members)
            leads = [member.client_address for member in answer.members if member.role == v1.NodeRole.NODE_ROLE_LEADER]
            if self._prefer_leader and leads and leads[0] and not self.staying:
                leader = self.at(leads[0])
                if leader.resting_until <= asyncio.get_running_loop().time():
                    self._current = leader

    async def is_alive(self, node: Node, within: float) -> bool:
        """Whether a node answers at all; asked where a call takes long that may rightly do so."""
        try:
            await node.method("Status")(v1.StatusRequest(), timeout=within, metadata=self.metadata or None)
        except aio.AioRpcError as error:
            # Any answer is a sign of life, also that we may not ask.
            return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        return True

    def learn(self, members: Iterable[v1.Member]) -> None:
        """Adds nodes that are not known yet, and notes where each takes direct streams."""
        for member in members:
            address = member.client_address
            if not address:
                continue
            if address not in self._addresses:
                self._addresses.append(address)
            place = Place.of(member.direct_address)
            if place is None:
                self._places.pop(address, None)
            else:
                self._places[address] = place
            if (node := self._open.get(address)) is not None:
                node.reach(place)

    async def close(self) -> None:
        """Closes all channels."""
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.gather(self._discovery, return_exceptions=True)
        for node in self._open.values():
            await node.channel.close()
        self._open.clear()
        self._current = None

    def _encryption(self) -> tuple[ssl.SSLContext, str] | None:
        """How direct streams are encrypted, and the name expected in the node's certificate, if one was said."""
        if self._tls is None:
            return None
        if self._context is None:
            self._context = self._tls.context()
        return self._context, self._tls.server_name

    def _channel(self, address: str) -> aio.Channel:
        if self._tls is None:
            return aio.insecure_channel(address, options=_OPTIONS)
        if self._credentials is None:
            self._credentials = self._tls.credentials()
        options = _OPTIONS
        if self._tls.server_name:
            options = (*_OPTIONS, ("grpc.ssl_target_name_override", self._tls.server_name))
        return aio.secure_channel(address, self._credentials, options=options)
