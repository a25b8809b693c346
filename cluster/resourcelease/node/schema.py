"""The sections of a node's configuration: every key, its kind, its default, and what it is for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

__all__ = [
    "ClusterSection",
    "EventsSection",
    "ExportSection",
    "GrpcSection",
    "LimitsSection",
    "LogSection",
    "NodeConfig",
    "NodeSection",
    "PeersSection",
    "TlsSection",
]

_NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeSection:
    """Who this node is, and where it keeps what it knows."""

    id: str = ""
    dir: Path = Path()
    # The event loop of the process; auto: uvloop where it is installed, which costs less.
    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    # Where the node's loop runs; keep: a leader's stays on the processor that it is on, and a follower's off that of a
    # leader on the same machine, as long as it does not wait much longer so; any: wherever the system puts it.
    processor: Literal["keep", "any"] = "keep"
    # Whether the loop stays awake between entries that come one right after the other; auto: it does, but under
    # a quota of processor time.
    awake: Literal["auto", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """The cluster it belongs to, and who founds it."""

    id: str = ""
    # The first configuration, node id to peer address; the same on every node that founds the cluster.
    members: Mapping[str, str] = field(default_factory=lambda: _NOBODY)
    # This node founds nothing: it waits to be added by Members.
    join: bool = False


@dataclass(frozen=True, slots=True)
class GrpcSection:
    """Where clients call."""

    listen: str = "127.0.0.1:7101"
    # What clients are told to call; the address listened on, unless that is every address of the machine.
    advertise: str = ""
    # Where clients in Python keep their streams, for less work than over gRPC: host:port; auto: any free port of the
    # same host, off where callers are known by x-client-principal; or off. Clients that do not get there use gRPC.
    direct: str = "auto"
    # What clients are told; the advertised host with the port that was opened, if not said otherwise.
    direct_advertise: str = ""
    # Believe the header x-client-principal: only behind a proxy that authenticates, and that nobody can go round.
    trust_principal_header: bool = False


@dataclass(frozen=True, slots=True)
class PeersSection:
    """Where the other nodes call."""

    listen: str = "127.0.0.1:7201"


@dataclass(frozen=True, slots=True)
class TlsSection:
    """Certificates as PEM files. Nodes always show each other theirs; clients only where it is required."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    # Who signs the certificates of clients; the same authority if not said otherwise.
    client_ca: Path | None = None
    require_client_cert: bool = False
    # Without certificates a node listens on loopback only, unless this is true.
    insecure_listen_anywhere: bool = False

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted at all."""
        return self.cert is not None


@dataclass(frozen=True, slots=True)
class LogSection:
    """What the node says of itself."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class EventsSection:
    """The log of events on disk, and how much of it is kept."""

    # Whether the files have the bodies of items.
    bodies: bool = True
    compression: Literal["none", "zlib"] = "none"
    # The oldest files go when there are more bytes, or when all in them is older; 0 is no bound.
    retention_bytes: int = 0
    retention_age_hours: int = 0
    # Also what a registered reader has yet to take.
    retention_even_unread: bool = False
    # How long events may wait to be written together.
    flush_ms: int = 200
    # Fetch what is damaged or missing here from other nodes.
    repair: bool = True
    # Read all sealed files again, slowly and for ever.
    scrub: bool = True
    scrub_bytes_per_s: int = 8 * 1024 * 1024
    scrub_every_hours: int = 1


@dataclass(frozen=True, slots=True)
class ExportSection:
    """A copy of the history in another store. Of all nodes that are told of one, one works at a time."""

    # sqlite:///path/file.db, or what fsspec knows, such as s3://bucket/prefix; nothing is exported without.
    sink: str = ""
    # Names the export, and so the lease that its nodes share; made of the URL if there is none.
    name: str = ""
    # Where an empty sink begins.
    first: int = 1
    bodies: bool = False
    batch_events: int = 5_000
    # How long a batch that is not full waits for more.
    gather_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """What one node, and one peer on it, may ask for at a time."""

    # One gRPC message, either way.
    message_bytes: int = 16 * 1024 * 1024
    # Calls and streams under way: on the node, and of one peer.
    calls: int = 10_000
    calls_per_peer: int = 2_000
    streams_per_peer: int = 64
    # How long a call waits for the cluster's answer before it is told that there is no leader.
    answer_ms: int = 5_000
    # Events kept in memory for subscribers.
    tail_events: int = 100_000
    tail_bytes: int = 8 * 1024 * 1024
    # How long the node takes to stop at most.
    stop_ms: int = 8_000


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything a node is told before it starts."""

    node: NodeSection = field(default_factory=NodeSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    grpc: GrpcSection = field(default_factory=GrpcSection)
    peers: PeersSection = field(default_factory=PeersSection)
    tls: TlsSection = field(default_factory=TlsSection)
    log: LogSection = field(default_factory=LogSection)
    events: EventsSection = field(default_factory=EventsSection)
    export: ExportSection = field(default_factory=ExportSection)
    limits: LimitsSection = field(default_factory=LimitsSection)

    @property
    def founders(self) -> Mapping[str, str]:
        """The configuration that this node founds the cluster with; empty for a node that joins."""
        if self.cluster.join:
            return _NOBODY
        return self.cluster.members or {self.node.id: self.peers.listen}

    @property
    def direct(self) -> str:
        """Where direct streams are taken: nobody is to go round a proxy by them that says who callers are."""
        return "off" if self.grpc.direct == "auto" and self.grpc.trust_principal_header else self.grpc.direct
