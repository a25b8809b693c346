"""etcd: three nodes, and a queue recipe on its gRPC API."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc

from bench.peers.base import TRY_SECONDS, Peer, Session, version_of
from bench.peers.etcd_client import MOST_OPS, Etcd, EtcdSession
from bench.peers.etcd_messages import message
from bench.peers.servers import Server, find, free_ports, until, words

__all__ = ["EtcdPeer"]

_QUOTA_BYTES = 8 << 30


class EtcdPeer(Peer):
    """Three members. Clients put the leader first in their list of addresses, which saves a hop."""

    name = "etcd"
    title = "etcd, three nodes"
    notes: ClassVar[tuple[str, ...]] = (
        "etcd has no queue; the recipe is ours: items and claims are keys, a claim hangs on its worker's lease.",
        "Workers of one process look up free items together. Several processes may choose the same one, and try again.",
        f"--max-txn-ops is raised from 128 to {MOST_OPS}, so that a list of 100 is one transaction. This favours etcd.",
    )

    @classmethod
    def missing(cls) -> str | None:
        """The server; grpcio is there in any case."""
        return "etcd is not installed" if find("etcd") is None else None

    def start(self) -> None:
        """All three at once."""
        ports = free_ports(6)
        peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        cluster = ",".join(f"n{number}={url}" for number, url in enumerate(peers, 1))
        for number in range(3):
            directory = self.directory / f"n{number + 1}"
            directory.mkdir(parents=True)
            self.servers.append(self._server(directory, ports[number], peers[number], cluster))
            self.servers[-1].start()
        for server in self.servers:
            until(server.listens, f"the start of {server.name}")
        self.leader()

    @staticmethod
    def _server(directory: Path, port: int, peer: str, cluster: str) -> Server:
        url = f"http://127.0.0.1:{port}"
        flags = {
            "name": directory.name,
            "data-dir": directory / "data",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster,
            "initial-cluster-state": "new",
            "max-txn-ops": MOST_OPS,
            "quota-backend-bytes": _QUOTA_BYTES,
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": "10000",
            "log-level": "error",
        }
        program = find("etcd") or "etcd"
        command = [program, *(f"--{key}={value}" for key, value in flags.items())]
        return Server(directory.name, command, directory, port=port)

    def connect(self) -> dict[str, Any]:
        """The members' addresses, the leader's first."""
        leader = self.leader()
        ordered = sorted(self.servers, key=lambda server: server is not leader)
        return {"addresses": [f"127.0.0.1:{server.port}" for server in ordered]}

    @classmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """One channel for the process."""
        return EtcdSession(connect["addresses"])

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Server and client."""
        return {"server": words(find("etcd"), "--version"), "grpcio": version_of("grpcio")}

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Flags that differ from what ships."""
        return {
            "nodes": 3,
            "max-txn-ops": MOST_OPS,
            "quota-backend-bytes": _QUOTA_BYTES,
            "auto-compaction": "revision, 10000",
        }

    def leader(self) -> Server:
        """The one that all running members name."""
        found: list[Server] = []

        def known() -> bool:
            found[:] = asyncio.run(_leader([server for server in self.servers if server.pid is not None]))
            return bool(found)

        until(known, "the election of a leader")
        return found[0]

    def revive(self, server: Server) -> None:
        """Starts it, and waits until it knows the leader."""
        server.start()
        until(server.listens, f"the start of {server.name}")
        self.leader()


async def _leader(servers: Sequence[Server]) -> list[Server]:
    """Which of these leads, if they agree on it."""
    members: dict[int, Server] = {}
    leaders: set[int] = set()
    for server in servers:
        etcd = Etcd([f"127.0.0.1:{server.port}"])
        try:
            status = await etcd.call("status", message("StatusRequest")(), TRY_SECONDS / 2)
        except grpc.aio.AioRpcError:
            return []
        finally:
            await etcd.channel.close()
        members[status.header.member_id] = server
        leaders.add(status.leader)
    return [members[leader] for leader in leaders if leader in members] if len(leaders) == 1 else []
