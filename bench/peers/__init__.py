"""The systems under test, one module each behind ``base.Peer``."""

from bench.peers.base import Peer
from bench.peers.etcd import EtcdPeer
from bench.peers.nats import Nats, NatsAlways
from bench.peers.ours import Ours
from bench.peers.postgres import Postgres, PostgresAlone
from bench.peers.redis import Redis

__all__ = ["PEERS", "Peer"]

_ALL: tuple[type[Peer], ...] = (Ours, Postgres, NatsAlways, EtcdPeer, Nats, PostgresAlone, Redis)

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in _ALL}
"""By name, ours first, then those that replicate and fsync as ours does, then the references."""
