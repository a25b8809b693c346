"""The front door of a node: all gRPC services on one port, and streams without gRPC on another."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from resourcelease import v1
from resourcelease.consensus import Applied
from resourcelease.events import Archive, Exchange
from resourcelease.frontdoor.browse import Browse
from resourcelease.frontdoor.callers import Callers
from resourcelease.frontdoor.cluster import ClusterAdmin
from resourcelease.frontdoor.conversation import Conversations
from resourcelease.frontdoor.direct import DirectDoor, Served
from resourcelease.frontdoor.dispatch import Dispatch, Unary, reader
from resourcelease.frontdoor.event_service import Events
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.granter import Granter
from resourcelease.frontdoor.lease_service import Leases
from resourcelease.frontdoor.neighbours import Neighbours
from resourcelease.frontdoor.readiness import Readiness
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.relief import Relief
from resourcelease.frontdoor.replica import Replica
from resourcelease.frontdoor.seclusion import Seclusion
from resourcelease.frontdoor.settings import DoorSettings
from resourcelease.frontdoor.shared_service import Shared
from resourcelease.frontdoor.steer import Steer
from resourcelease.frontdoor.streams import Streams
from resourcelease.frontdoor.tail import Tail
from resourcelease.frontdoor.verifying import Verifier
from resourcelease.frontdoor.work import work
from resourcelease.frontdoor.workplace import Workplace
from resourcelease.model.errors import Reason
from resourcelease.storage import LmdbStore
from resourcelease.v1 import admin_service_pb2, event_service_pb2, lease_service_pb2

__all__ = ["FrontDoor"]

_SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (lease_service_pb2, "LeaseService"),
        (event_service_pb2, "EventService"),
        (admin_service_pb2, "AdminService"),
    )
)
# The streams that are also taken without gRPC.
_DIRECT = ("Converse", "Work")
# Of the time to stop, what workers have to move their streams to another node.
_MOVE_SHARE = 0.4
_OTHER_CALLS = 1_000
# The longest answer, in requests of the greatest length, and what an answer in a conversation weighs beside itself.
_ANSWER_SHARE = 2
_ENVELOPE_BYTES = 1024


class FrontDoor:
    """Listens for clients, and serves them from a replica."""

    def __init__(self, replica: Replica, store: LmdbStore, archive: Archive, settings: DoorSettings) -> None:
        limits = settings.limits
        self._settings = settings
        self._replica = replica
        self._callers = Callers(
            run=f"~{os.urandom(6).hex()}",
            trust_principal_header=settings.trust_principal_header,
            authenticated=bool(settings.client_ca),
        )
        self._gate = Gate(
            calls=limits.calls, calls_per_peer=limits.calls_per_peer, streams_per_peer=limits.streams_per_peer
        )
        self._granter = Granter(replica)
        self._relief = Relief()
        self._streams = Streams(limits.streams_per_peer, lambda *item: replica.machine.fence_of(*item))
        self._tail = Tail(replica.machine.sequence_number + 1, limits.tail_events, limits.tail_bytes)
        self.neighbours = Neighbours(replica)
        self.exchange = exchange = Exchange(archive)
        self.neighbours.answerers |= {
            "holdings": exchange.holdings,
            "piece": exchange.piece,
            "entries": exchange.entries,
            "check": exchange.check,
        }
        self._leases = Leases(replica, self._granter, self._relief)
        self._conversations = Conversations(
            lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"],
            self._lease_calls(),
            self._gate,
            replica.leaving,
            _ANSWER_SHARE * limits.message_bytes - _ENVELOPE_BYTES,
        )
        self._events = Events(self._tail, archive)
        self._steer = Steer(replica, self._tail)
        self.cluster = ClusterAdmin(replica, self.neighbours, store, archive)
        self._verifier = Verifier(replica, self.neighbours, exchange)
        self._readiness = Readiness(replica, [service.full_name for service in _SERVICES])
        self._seclusion = Seclusion(replica, self._leases, self._streams, self._events)
        self._server: grpc.aio.Server | None = None
        self._direct: DirectDoor | None = None
        self.address = ""

    @property
    def waiting(self) -> int:
        """Callers and streams that wait for work here."""
        return self._granter.waiting

    @property
    def pushed_back(self) -> int:
        """Callers that wait for backpressure to end."""
        return self._relief.waiting

    def history(self, first: int, *, bodies: bool) -> AsyncGenerator[v1.SubscribeResponse, None]:
        """The history from an event on, for a part of this node itself."""
        return self._events.history(first, bodies=bodies)

    def applied(self, entries: Sequence[Applied]) -> None:
        """Entries were applied here: whoever waits for what they brought is told."""
        for entry in entries:
            records = entry.outcome.records
            if records:
                self._tail.extend(records)
                self._streams.applied(records)
                self._relief.applied(records)
        self.neighbours.applied(entries)
        self._granter.look()

    async def start(self) -> None:
        """Opens the port."""
        limits = self._settings.limits
        # Beyond our own gate, for calls of health and reflection, which do not pass it.
        most = limits.calls + _OTHER_CALLS
        server = grpc.aio.server(options=_options(limits.message_bytes), maximum_concurrent_rpcs=most)
        dispatch = Dispatch(self._callers, self._gate)
        methods = self._methods()
        for service in _SERVICES:
            server.add_generic_rpc_handlers((dispatch.service(service, methods[service.name]),))
        health_pb2_grpc.add_HealthServicer_to_server(self._readiness.servicer, server)
        names = [service.full_name for service in _SERVICES]
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        self.address = self._listen(server)
        await server.start()
        self._server = server
        own = self._settings.advertise or _reachable(self.address)
        direct = await self._listen_directly(dispatch, methods["LeaseService"], own)
        self.neighbours.start(own, direct)
        await self._readiness.start()
        self._seclusion.start()

    async def stop(self, grace_s: float) -> None:
        """Lets calls finish, ends the waiting ones, and closes the port."""
        refused = Refused(Reason.NO_LEADER, "this node is stopping; call another one with the same operation id")
        self._gate.closed = refused
        await self._seclusion.stop()
        if self._server is not None:
            await self._readiness.stop()
        for part in (self._leases, self._events, self._steer):
            part.stop(refused)
        self._tail.wake()
        self._conversations.go_away("this node is stopping; make further calls on another one")
        self._streams.go_away("this node is stopping; open a stream on another node and go on with the leases there")
        moving_s = grace_s * _MOVE_SHARE
        await asyncio.gather(self._streams.emptied(moving_s), self._conversations.emptied(moving_s))
        self._conversations.end(refused)
        self._streams.end(refused)
        if self._server is not None:
            ending = [self._server.stop(grace_s * (1 - _MOVE_SHARE))]
            if self._direct is not None:
                ending.append(self._direct.stop(grace_s * (1 - _MOVE_SHARE)))
            await asyncio.gather(*ending)
        await self.neighbours.stop()
        await self._replica.close()

    def _listen(self, server: grpc.aio.Server) -> str:
        settings = self._settings
        try:
            if settings.certificate:
                credentials = grpc.ssl_server_credentials(
                    [(settings.key, settings.certificate)],
                    root_certificates=settings.client_ca or None,
                    require_client_auth=bool(settings.client_ca),
                )
                port = server.add_secure_port(settings.listen, credentials)
            else:
                port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen for clients at {settings.listen}: is the port taken?") from error
        return f"{settings.listen.rpartition(':')[0]}:{port}"

    async def _listen_directly(self, dispatch: Dispatch, methods: Mapping[str, Any], own: str) -> str:
        """Opens the port for streams without gRPC; what clients are told of it, or "" where there is none."""
        settings = self._settings
        if settings.direct == "off":
            return ""
        auto = f"{settings.listen.rpartition(':')[0]}:0"
        host, _, port = (auto if settings.direct == "auto" else settings.direct).rpartition(":")
        described = lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"].methods_by_name
        streams = {name: Served(reader(described[name]), dispatch.duplex(methods[name])) for name in _DIRECT}
        self._direct = direct = DirectDoor(streams, settings.limits.message_bytes)
        try:
            opened = await direct.start(host, int(port), settings.direct_tls)
        except OSError as error:
            raise OSError(f"cannot listen for direct streams at {host}:{port}: {error.strerror or error}") from error
        told = settings.direct_advertise or f"{own.rpartition(':')[0]}:{opened}"
        return f"{told}#{direct.key}"

    def _lease_calls(self) -> dict[str, Unary]:
        """The unary calls of LeaseService, made by themselves or in conversations."""
        leases, shared = self._leases, Shared(self._replica)
        return {
            "Enqueue": leases.enqueue,
            "Lease": leases.lease,
            "Heartbeat": leases.heartbeat,
            "Complete": leases.complete,
            "Fail": leases.fail,
            "Drain": shared.drain,
            "Restore": shared.restore,
            "RequireVersion": shared.require_version,
            "BeginEffect": shared.begin_effect,
            "FinishEffect": shared.finish_effect,
        }

    def _methods(self) -> Mapping[str, Mapping[str, Any]]:
        steer, cluster, browse = self._steer, self.cluster, Browse(self._replica)
        place = Workplace(
            node_id=self._replica.consensus.node_id,
            replica=self._replica,
            granter=self._granter,
            streams=self._streams,
            next_operation_id=self._callers.next_operation_id,
        )
        return {
            "LeaseService": {
                **self._lease_calls(),
                "Work": partial(work, place),
                "Converse": self._conversations.converse,
            },
            "EventService": {"Subscribe": self._events.subscribe, "Publish": self._events.publish},
            "AdminService": {
                "Status": cluster.status,
                "Peers": browse.peers,
                "Queues": browse.queues,
                "Items": browse.items,
                "Explain": browse.explain,
                "Configure": steer.configure,
                "Pause": steer.pause,
                "Resume": steer.resume,
                "Redrive": steer.redrive,
                "WatchBackpressure": steer.watch_backpressure,
                "Members": cluster.members,
                "TransferLeadership": cluster.transfer_leadership,
                "Snapshot": cluster.snapshot,
                "Verify": self._verifier.verify,
            },
        }


def _reachable(address: str) -> str:
    """The address to tell others: where a node listens on every address of its machine, that is the machine's name."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]", "::") else address  # noqa: S104 compared


def _options(message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", _ANSWER_SHARE * message_bytes),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.max_metadata_size", 16 * 1024),
        # Two nodes on one port would share its callers between them.
        ("grpc.so_reuseport", 0),
        # A client that has died without a word is noticed within a quarter of a minute.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.max_concurrent_streams", 10_000),
    ]
