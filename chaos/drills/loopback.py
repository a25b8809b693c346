"""The setting that needs no rights: processes on loopback, and a proxy of ours between them."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chaos.drills.cluster import Cluster, node_tables
from chaos.drills.network import Link, Rule
from chaos.drills.node import Node
from chaos.drills.scene import Drill
from resourcelease.cli.processes import free_ports

__all__ = ["Loopback", "ProxyNetwork"]


class ProxyNetwork:
    """The proxy process, from the side that gives orders."""

    delays = True
    one_way = True
    resets = True

    def __init__(self) -> None:
        self.ports = _Ports()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Starts the process; it ends with ours."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "chaos.drills.proxy", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )

    async def open(self, routes: Iterable[tuple[str, str, int, int]]) -> None:
        """Opens ports: node, kind, port to listen at, port behind it."""
        await self._order(open=list(routes))

    async def refuse(self, names: Iterable[str]) -> None:
        """Before these nodes no port is open."""
        await self._order(refuse=sorted(names))

    async def apply(self, rules: Mapping[Link, Rule]) -> None:
        """These rules hold from now on, and no others."""
        await self._order(rules=[[*link, rule.cut, rule.delay_ms, rule.bytes_per_s] for link, rule in rules.items()])

    async def reset(self, links: Iterable[Link]) -> None:
        """The connections of these links are reset once."""
        await self._order(reset=[list(link) for link in links])

    async def set_names(self, there: bool) -> None:
        """There are none here."""
        raise OSError("nodes on loopback have no names")

    async def close(self) -> None:
        """Ends the process."""
        self.ports.close()
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(3):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _order(self, **order: Any) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        async with self._turn:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline() or b'{"error": "the proxy has ended"}')
        if "error" in answer:
            raise OSError(answer["error"])


class Loopback:
    """Makes clusters on loopback. Nodes know each other by the proxy's ports; clients too, if ``proxied_clients``."""

    name = "loopback"
    delays = True
    names = False
    one_way = True
    processes = True

    def why_not(self) -> str:
        """Why it cannot be used here; it always can."""
        return ""

    async def found(self, directory: Path, count: int, drill: Drill) -> Cluster:
        """A new cluster as a drill needs it, not started."""
        proxied_clients = drill.proxied_clients
        network = ProxyNetwork()
        await network.start()
        names = [f"n{number}" for number in range(1, count + 1)]
        cluster = Cluster(directory, network, names, self._maker(directory, network, names, proxied_clients))
        cluster.on_down = network.refuse
        try:
            await cluster.make(names)
        except BaseException:
            await network.close()
            raise
        return cluster

    def clear(self, *, keep: bool) -> list[str]:
        """Nothing is left but files."""
        return []

    @staticmethod
    def _maker(directory: Path, network: ProxyNetwork, founders: list[str], proxied_clients: bool) -> Any:
        ports = {name: network.ports.take(4) for name in founders}
        members = {name: f"127.0.0.1:{found[2]}" for name, found in ports.items()}

        async def make(name: str, joins: bool) -> tuple[Node, str]:
            grpc, peers, proxy_peers, proxy_grpc = ports.get(name) or network.ports.take(4)
            routes = [(name, "peers", proxy_peers, peers)]
            public = proxy_grpc if proxied_clients else grpc
            if proxied_clients:
                routes.append((name, "clients", proxy_grpc, grpc))
            await network.open(routes)
            tables = node_tables(directory, name, members, joins)
            tables["grpc"] = {"listen": f"127.0.0.1:{grpc}", "advertise": f"127.0.0.1:{public}"}
            if proxied_clients:
                # Nobody is to go round the proxy.
                tables["grpc"]["direct"] = "off"
            tables["peers"] = {"listen": f"127.0.0.1:{peers}"}
            return Node(directory, name, f"127.0.0.1:{public}", tables), f"127.0.0.1:{proxy_peers}"

        return make


class _Ports:
    """Ports that are ours until we let go of them, also while nobody listens there: a node that was down wants its own.

    Whoever takes ports so first binds the same ones of UDP, which nobody else wants.
    """

    def __init__(self) -> None:
        self._kept: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """So many ports of loopback."""
        found: list[int] = []
        while len(found) < count:
            found += filter(self._keep, free_ports(count - len(found)))
        return found

    def close(self) -> None:
        """Lets go of all."""
        for each in self._kept:
            each.close()
        self._kept.clear()

    def _keep(self, port: int) -> bool:
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            return False
        self._kept.append(mark)
        return True
