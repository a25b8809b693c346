"""Nodes as child processes on loopback: for `dev` and `demo`."""

import asyncio
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["FIRST_PORT", "LocalCluster", "LocalNode", "NodeProcess"]

PLAN = "cluster.json"
FIRST_PORT = 7101
# Nodes talk to each other on the port so much higher.
PEER_OFFSET = 100
# Below those that Linux gives to connections: a caller may keep such a one for itself that a node wants back.
_PORTS = range(10_240, 32_768)
# From no seed: whatever is played twice side by side needs other ports.
_CHANCE = random.SystemRandom()
STOP_SECONDS = 10.0


class NodeProcess:
    """The process of a node, while it runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs, or never started."""
        return self._process.poll() if self._process is not None else None

    def signal(self, number: int) -> None:
        """Sends a signal, if there is somebody to take it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once, as a power cut would, and waits until it is gone."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None


class LocalNode(NodeProcess):
    """One node: its configuration on disk, and its process while it runs."""

    def __init__(self, directory: Path, name: str, address: str) -> None:
        super().__init__()
        self.name = name
        self.address = address
        self.config = directory / name / "node.toml"
        self.log = directory / name / "node.log"

    def start(self) -> None:
        """Starts the process. It ends with ours, in whatever way ours ends."""
        self._process = start_node(self.config, self.log)

    async def stop(self) -> None:
        """Has it stop in order; kills it if it does not."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        await self._gone(STOP_SECONDS)
        self.kill()

    async def _gone(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.pid is not None and loop.time() < until:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(0.02)

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


class LocalCluster:
    """Some nodes on this machine, under one directory that remembers their addresses."""

    def __init__(self, directory: Path, nodes: list[LocalNode], *, resumed: bool) -> None:
        self.directory = directory
        self.nodes = nodes
        self.resumed = resumed

    @property
    def endpoints(self) -> list[str]:
        """Where clients reach the nodes."""
        return [node.address for node in self.nodes]

    @staticmethod
    def plan(directory: Path, count: int | None, first_port: int = 0) -> "LocalCluster":
        """The cluster of a directory: as it was before, or a new one of ``count`` nodes (3).

        A new one listens from ``first_port`` on if these ports are free; else, or if it is 0, where there is room.
        """
        path = directory / PLAN
        if path.exists():
            plan = json.loads(path.read_text())
            if count is not None and count != len(plan["nodes"]):
                there = len(plan["nodes"])
                raise ValueError(
                    f"{directory} holds a cluster of {there} nodes; leave --nodes out, or name another --dir"
                )
            nodes = [LocalNode(directory, name, address) for name, address in plan["nodes"].items()]
            return LocalCluster(directory, nodes, resumed=True)
        if directory.exists() and any(directory.iterdir()):
            raise ValueError(f"{directory} is neither empty nor made by `resourcelease dev`; name another")
        return _found(directory, count or 3, first_port)

    def start(self) -> None:
        """Starts all nodes."""
        for node in self.nodes:
            node.start()

    async def ready(self, client: Any, seconds: float = 30.0) -> str:
        """Waits until every node answers and one leads; returns its name."""
        from resourcelease.client import ResourceLeaseError

        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        missing = self.nodes
        while loop.time() < until:
            for node in self.nodes:
                if node.exit_code is not None:
                    raise ChildProcessError(f"node {node.name} ended: {node.last_words()} (all of it: {node.log})")
            try:
                answers = [await client.status(node=node.address) for node in self.nodes]
                leaders = [answer.leader_id for answer in answers]
                if leaders[0] and len(set(leaders)) == 1:
                    return str(leaders[0])
                missing = []
            except ResourceLeaseError:
                missing = [node for node in self.nodes if node.pid is None] or missing
            await asyncio.sleep(0.05)
        raise TimeoutError(
            f"the cluster was not ready after {seconds:g} s; the nodes' logs are in {self.directory}/*/node.log"
        )

    async def stop(self) -> None:
        """Stops all nodes in order, at the same time."""
        try:
            await asyncio.gather(*(node.stop() for node in self.nodes))
        finally:
            for node in self.nodes:
                node.kill()


def _found(directory: Path, count: int, first_port: int) -> LocalCluster:
    directory.mkdir(parents=True, exist_ok=True)
    ports = _ports(count, first_port)
    names = [f"n{number}" for number in range(1, count + 1)]
    members = {name: f"127.0.0.1:{peer}" for name, (_, peer) in zip(names, ports, strict=True)}
    cluster_id = f"dev-{os.urandom(4).hex()}"
    nodes = []
    for name, (port, peer) in zip(names, ports, strict=True):
        node = LocalNode(directory, name, f"127.0.0.1:{port}")
        node.config.parent.mkdir()
        tables: dict[str, dict[str, Any]] = {
            "node": {"id": name, "dir": str((directory / name / "data").resolve())},
            "cluster": {"id": cluster_id},
            "cluster.members": members,
            "grpc": {"listen": node.address},
            "peers": {"listen": f"127.0.0.1:{peer}"},
        }
        node.config.write_text(to_toml(tables))
        nodes.append(node)
    plan = {"cluster_id": cluster_id, "nodes": {node.name: node.address for node in nodes}}
    (directory / PLAN).write_text(json.dumps(plan, indent=1) + "\n")
    return LocalCluster(directory, nodes, resumed=False)


def start_node(
    config: Path, log: Path, prefix: Sequence[str] = (), python: str = sys.executable
) -> "subprocess.Popen[bytes]":
    """The process of a node, run by ``prefix`` if there is one. It ends with ours, in whatever way ours ends."""
    command = [python, "-m", "resourcelease", "node", "--config", str(config), "--until-stdin-ends"]
    # Settings for other nodes that stand in our environment are not meant for these.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RESOURCELEASE_")}
    if python != sys.executable:
        # Another release: our modules are not its.
        kept.pop("PYTHONPATH", None)
    with log.open("ab") as opened:
        # In a group of its own, so that Ctrl-C reaches us alone and we stop it in order.
        return subprocess.Popen(  # noqa: S603
            [*prefix, *command], stdin=subprocess.PIPE, stdout=opened, stderr=opened, env=kept, start_new_session=True
        )


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A configuration as text; JSON's texts, numbers and truths are TOML's too.

    >>> print(to_toml({"node": {"id": "n1"}}))
    [node]
    "id" = "n1"
    <BLANKLINE>
    """
    lines: list[str] = []
    for section, values in tables.items():
        lines += [f"[{section}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now, none of those that the system gives to outgoing connections."""
    drawn = _CHANCE.sample(_PORTS, len(_PORTS))
    found = list(islice(filter(_is_free, drawn), count))
    if len(found) < count:
        raise OSError(errno.EADDRINUSE, f"only {len(found)} of {count} ports are free")
    return found


def _ports(count: int, first: int) -> list[tuple[int, int]]:
    """Ports for clients and for nodes: those from the first on if they are free, else what the system gives."""
    usual = [(first + at, first + PEER_OFFSET + at) for at in range(count)]
    if first and all(_is_free(port) for pair in usual for port in pair):
        return usual
    found = free_ports(2 * count)
    return list(zip(found[:count], found[count:], strict=True))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
