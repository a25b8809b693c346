"""The nodes of a drill, and everything that can be done to them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from chaos.drills.network import Link, Network, Rule
from chaos.drills.node import STOP_S, Node
from resourcelease.client import Client, ResourceLeaseError

__all__ = ["Cluster", "node_tables"]

# Makes a node by name, and says where other nodes reach it; True if it joins a cluster that is there.
Maker = Callable[[str, bool], Awaitable[tuple[Node, str]]]


class Cluster:
    """Some nodes, the network between them, and who of them should be up."""

    def __init__(self, directory: Path, network: Network, founders: Iterable[str], maker: Maker) -> None:
        self.directory = directory
        self.network = network
        self.founders = list(founders)
        self.nodes: dict[str, Node] = {}
        self.raft_addresses: dict[str, str] = {}
        # Told the names of nodes that do not run, where the setting must imitate that.
        self.on_down: Callable[[Iterable[str]], Awaitable[None]] | None = None
        self._maker = maker
        self._rules: dict[Link, Rule] = {}

    @property
    def endpoints(self) -> list[str]:
        """Where clients reach the nodes."""
        return [node.address for node in self.nodes.values()]

    @property
    def names(self) -> list[str]:
        """All nodes."""
        return list(self.nodes)

    async def make(self, names: Iterable[str], *, joins: bool = False) -> None:
        """Makes nodes, without starting them."""
        for name in names:
            self.nodes[name], self.raft_addresses[name] = await self._maker(name, joins)

    async def start(self, *names: str) -> None:
        """Starts nodes; all, if none is named."""
        # In threads: an engine of containers takes its time, and clients run on this loop.
        await asyncio.gather(*(asyncio.to_thread(self.nodes[name].start) for name in names or self.names))
        await self._tell_down()

    async def kill(self, *names: str) -> None:
        """kill -9, all at the same moment."""
        for name in names:
            self.nodes[name].strike()
        await asyncio.gather(*(asyncio.to_thread(self.nodes[name].kill) for name in names))
        await self._tell_down()

    async def stop(self, name: str, seconds: float = STOP_S) -> int | None:
        """SIGTERM; the exit code, or None if it had to be killed."""
        node = self.nodes[name]
        node.ask_to_stop()
        code = await asyncio.to_thread(node.ended, seconds)
        await asyncio.to_thread(node.kill)
        await self._tell_down()
        return code

    async def apply(self, rules: Mapping[Link, Rule]) -> None:
        """These rules of the network hold from now on, and no others."""
        self._rules = dict(rules)
        await self.network.apply(self._rules)

    async def heal(self) -> None:
        """The network is whole again."""
        await self.apply({})

    async def bring_back(self) -> None:
        """Ends every fault: all nodes run, the network is whole."""
        await self.heal()
        for node in self.nodes.values():
            if node.paused:
                node.resume()
        down = [name for name, node in self.nodes.items() if node.pid is None]
        if down:
            await self.start(*down)

    async def ready(self, client: Client, seconds: float = 40.0, names: Iterable[str] = ()) -> str:
        """Waits until every node answers and names the same leader; returns its name."""
        until = time.monotonic() + seconds
        wanted = [self.nodes[name] for name in names] or list(self.nodes.values())
        said: object = "nothing yet"
        while time.monotonic() < until:
            for node in wanted:
                if node.exit_code is not None:
                    last = (node.words().splitlines() or ["?"])[-1]
                    raise ChildProcessError(f"node {node.name} ended with {node.exit_code}; its last word: {last}")
            try:
                answers = [await client.status(node=node.address) for node in wanted]
                leaders = {answer.leader_id for answer in answers}
                if len(leaders) == 1 and "" not in leaders:
                    return str(leaders.pop())
                said = f"leaders {leaders}"
            except ResourceLeaseError as error:
                said = error
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the cluster was not ready after {seconds:g} s; last seen: {said}")

    async def close(self) -> None:
        """Stops all nodes, and takes the network down."""
        try:
            for node in self.nodes.values():
                node.ask_to_stop()
            await asyncio.gather(*(asyncio.to_thread(node.ended, STOP_S) for node in self.nodes.values()))
        finally:
            await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self.nodes.values()))
            await self.network.close()

    async def _tell_down(self) -> None:
        if self.on_down is not None:
            await self.on_down([name for name, node in self.nodes.items() if node.pid is None])


def node_tables(directory: Path, name: str, members: Mapping[str, str], joins: bool) -> dict[str, dict[str, Any]]:
    """The part of a node's configuration that is the same in all settings."""
    cluster: dict[str, Any] = {"id": f"drill-{directory.name}"}
    tables: dict[str, dict[str, Any]] = {
        "node": {"id": name, "dir": str((directory / name / "data").resolve())},
        "cluster": cluster,
    }
    if joins:
        cluster["join"] = True
    else:
        tables["cluster.members"] = dict(members)
    return tables
