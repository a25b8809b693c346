"""The setting with a real engine: a container a node, made by Docker Compose.

Every two nodes have a network of their own, and one more brings clients to all of them. So a cut is a container that
leaves a network: of any link, both ways. A part of what goes through a link cannot be cut there, nor held back.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from chaos.drills.cluster import Cluster, node_tables
from chaos.drills.engine import EngineError, build_image, compose, compose_words, docker, spawn, why_no_engine
from chaos.drills.network import CLIENTS, Link, Rule
from chaos.drills.node import Node
from chaos.drills.scene import Drill
from resourcelease.cli.processes import free_ports, to_toml

__all__ = ["ContainerNode", "Containers", "EngineNetwork", "Plan"]

_PORT, _PEER_PORT = 7101, 7201
_DATA, _CONFIG = "/var/lib/resourcelease", "/etc/resourcelease/node.toml"
# Whom the image's processes run as.
_UID = 10001
_OUTER = "outer"
# An order to the engine is carried out in this time.
_PATIENCE_S = 30.0
_LOOK_S = 0.02


class Plan:
    """The containers, networks and volumes of one run, all of them named after it; as a file for Compose."""

    def __init__(self, directory: Path, image: str) -> None:
        self.project = f"rldrill-{secrets.token_hex(4)}"
        self.directory = directory
        self.path = directory / "compose.json"
        self._image = image
        self.ports: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """All nodes."""
        return list(self.ports)

    def container(self, name: str) -> str:
        """The name of a node's container."""
        return f"{self.project}-{name}"

    def network(self, one: str, other: str) -> str:
        """The full name of the network of a link."""
        return f"{self.project}_{self._short(one, other)}"

    def data(self, name: str) -> Path:
        """What the volume of a node is, on this machine."""
        return (self.directory / name / "data").resolve()

    def write(self) -> None:
        """The file, for all nodes there are by now. JSON is YAML too."""
        pairs = [self._short(*pair) for pair in combinations(self.names, 2)]
        networks: dict[str, Any] = {_OUTER: {}, **{pair: {"internal": True} for pair in pairs}}
        volumes = {name: self._volume(name) for name in self.names}
        services = {name: self._service(name) for name in self.names}
        content = {"version": "3.7", "services": services, "networks": networks, "volumes": volumes}
        self.path.write_text(json.dumps(content, indent=1) + "\n")

    def compose(self, *words: str) -> str:
        """An order for this run's containers."""
        return compose("--project-name", self.project, "--file", str(self.path), *words, seconds=120.0)

    @property
    def removal(self) -> str:
        """What a person types to take all of it away."""
        program = " ".join(compose_words())
        return f"{program} --project-name {self.project} --file {self.path} down --volumes"

    def _short(self, one: str, other: str) -> str:
        if CLIENTS in (one, other):
            return _OUTER
        return "-".join(sorted((one, other)))

    def _volume(self, name: str) -> dict[str, Any]:
        # A volume of the run's own that lies where drills can reach it, to damage it.
        return {"driver": "local", "driver_opts": {"type": "none", "o": "bind", "device": str(self.data(name))}}

    def _service(self, name: str) -> dict[str, Any]:
        others = [other for other in self.names if other != name]
        links = {self._short(name, other): {"aliases": [peer_host(name)]} for other in others}
        config = (self.directory / name / "node.toml").resolve()
        service: dict[str, Any] = {
            "image": self._image,
            "container_name": self.container(name),
            "command": ["node", "--config", _CONFIG],
            "networks": {_OUTER: {}, **links},
            "ports": [f"127.0.0.1:{self.ports[name]}:{_PORT}"],
            "volumes": [f"{name}:{_DATA}", f"{config}:{_CONFIG}:ro"],
            # Its looks would take time from what is measured.
            "healthcheck": {"disable": True},
            "restart": "no",
            "logging": {"driver": "json-file", "options": {"max-size": "20m"}},
        }
        if os.geteuid() != 0:
            service["user"] = f"{os.geteuid()}:{os.getegid()}"
        return service


def peer_host(name: str) -> str:
    """What other nodes call a node: a name that the networks between nodes know, and the one for clients does not."""
    return f"{name}.peers"


class ContainerNode(Node):
    """A node in a container. Its process here is ``docker start --attach``, which lives and ends as the container."""

    def __init__(self, plan: Plan, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(plan.directory, name, f"127.0.0.1:{plan.ports[name]}", tables)
        self.container = plan.container(name)
        self._main_pid: int | None = None
        self._orders: list[subprocess.Popen[bytes]] = []
        self._struck = False

    def prepare(self) -> None:
        """Files that the container is made with."""
        self.data.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0 and self.data.stat().st_uid != _UID:
            os.chown(self.data, _UID, _UID)
        (self.directory / "node.toml").write_text(to_toml(self.tables))

    @property
    def pid(self) -> int | None:
        """The node's process as the engine's machine numbers it, while it runs."""
        return self._main_pid if super().pid is not None else None

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative after a signal, as for a process of ours."""
        code = super().exit_code
        return 128 - code if code is not None and code > 128 else code

    def start(self) -> None:
        """Starts the container and waits until its process runs, or has ended already."""
        if super().pid is not None:
            return
        self.kill()
        self.prepare()
        self._process = process = spawn("start", "--attach", self.container, log=self.log)
        self.paused = False
        until = time.monotonic() + _PATIENCE_S
        while process.poll() is None and self._main_pid is None:
            self._main_pid = int(docker("inspect", "--format", "{{.State.Pid}}", self.container)) or None
            if time.monotonic() > until:
                raise EngineError(f"{self.container} did not start in {_PATIENCE_S:g} s")

    def wrap(self, words: Any) -> None:
        """A container has one command."""
        raise EngineError("nothing stands before the command of a container")

    def signal(self, number: int) -> None:
        """Has the engine send a signal, without waiting."""
        if super().pid is not None:
            self._struck = self._struck or number == signal.SIGKILL
            self._orders.append(spawn("kill", "--signal", str(int(number)), self.container))

    def pause(self) -> None:
        """``docker pause``: the container stands still."""
        if super().pid is not None:
            docker("pause", self.container)
            self.paused = True

    def resume(self) -> None:
        """Lets it go on."""
        if self.paused:
            self.paused = False
            # Killed meanwhile, it is not paused any more.
            with contextlib.suppress(EngineError):
                docker("unpause", self.container)

    def kill(self) -> None:
        """Ends it at once and waits until it is gone."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                if not self._struck:
                    self.strike()
                self._wait(process)
            self._process = None
        for order in self._orders:
            order.wait(_PATIENCE_S)
        self._orders.clear()
        self._main_pid = None
        self._struck = self.paused = False

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        """An order may have come while the container was paused, or as it started; so it is given again."""
        for _ in range(3):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S / 3)
                return
            self.strike()
        raise EngineError(f"{self.container} lives on {_PATIENCE_S:g} s after it was killed")


class EngineNetwork:
    """The networks of a run, which containers leave and enter."""

    delays = False
    one_way = False
    resets = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cut: set[Link] = set()

    async def apply(self, rules: Mapping[Link, Rule]) -> None:
        """These rules hold from now on, and no others."""
        if any(rule.delay_ms or rule.bytes_per_s for rule in rules.values()):
            raise OSError("containers' networks neither delay nor slow down")
        cut = {link for link, rule in rules.items() if rule.cut}
        if any((target, source) not in cut for source, target in cut):
            raise OSError("a container that leaves a network is cut off both ways")
        links = {link for link in cut if link[0] < link[1]}
        orders = [self._order("connect", link) for link in sorted(self._cut - links)]
        orders += [self._order("disconnect", link) for link in sorted(links - self._cut)]
        await asyncio.gather(*orders)
        self._cut = links

    async def _order(self, verb: str, link: Link) -> None:
        one, other = link
        leaver = other if one == CLIENTS else one
        alias = _alias(leaver, link) if verb == "connect" else []
        network = self._plan.network(one, other)
        await asyncio.to_thread(docker, "network", verb, *alias, network, self._plan.container(leaver))

    async def reset(self, links: Iterable[Link]) -> None:
        """Connections outlive a flap here, as they do between hosts."""

    async def set_names(self, there: bool) -> None:
        """The engine answers for names."""
        raise OSError("names of containers do not go away")

    async def close(self) -> None:
        """What is there stays until the setting knows how the drill ended."""


class Containers:
    """Makes clusters of containers."""

    name = "containers"
    delays = False
    names = False
    one_way = False
    processes = False

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def why_not(self) -> str:
        """Why it cannot be used here; empty if it can."""
        return why_no_engine()

    async def found(self, directory: Path, count: int, drill: Drill) -> Cluster:
        """A new cluster as a drill needs it, not started. Clients are always cut off for real."""
        image = await asyncio.to_thread(build_image)
        plan = self._plan = Plan(directory, image)
        founders = [f"n{number}" for number in range(1, count + 1)]
        plan.ports = dict(zip(founders, free_ports(count), strict=True))
        members = {name: f"{peer_host(name)}:{_PEER_PORT}" for name in founders}

        async def make(name: str, joins: bool) -> tuple[Node, str]:
            if name not in plan.ports:
                plan.ports[name] = free_ports(1)[0]
            node = ContainerNode(plan, name, _tables(plan, name, members, joins))
            node.prepare()
            if joins:
                plan.write()
                await asyncio.to_thread(plan.compose, "up", "--no-start", "--no-deps", "--no-recreate", name)
                await _connect(plan, [(name, CLIENTS), *((name, other) for other in plan.names if other != name)])
            return node, f"{peer_host(name)}:{_PEER_PORT}"

        cluster = Cluster(directory, EngineNetwork(plan), founders, make)
        await cluster.make(founders)
        plan.write()
        try:
            await asyncio.to_thread(plan.compose, "up", "--no-start")
            await _connect(plan, combinations([*founders, CLIENTS], 2))
        except OSError:
            # Not if interrupted: orders to the engine are still carried out then, and would make what is taken away.
            self.clear(keep=False)
            raise
        return cluster

    def clear(self, *, keep: bool) -> list[str]:
        """Takes everything of the last drill away; or keeps it, and says how to look at it and how to remove it."""
        plan, self._plan = self._plan, None
        if plan is None:
            return []
        if keep:
            label = f"label=com.docker.compose.project={plan.project}"
            return [
                f"look: docker ps --all --filter {label}; docker logs {plan.container('n1')}",
                f"remove: {plan.removal}",
            ]
        try:
            plan.compose("down", "--volumes", "--remove-orphans", "--timeout", "1")
        except EngineError as error:
            return [f"not all is removed: {error}", f"remove: {plan.removal}"]
        return []


def _tables(plan: Plan, name: str, members: Mapping[str, str], joins: bool) -> dict[str, dict[str, Any]]:
    tables = node_tables(plan.directory, name, members, joins)
    tables["node"]["dir"] = _DATA
    tables["grpc"] = {"listen": f"0.0.0.0:{_PORT}", "advertise": f"127.0.0.1:{plan.ports[name]}"}
    tables["peers"] = {"listen": f"0.0.0.0:{_PEER_PORT}"}
    tables["tls"] = {"insecure_listen_anywhere": True}
    return tables


async def _connect(plan: Plan, pairs: Iterable[Link]) -> None:
    """Has both ends in the networks of links. Some releases of Compose leave that until they start a container."""
    ends = [(name, pair) for pair in pairs for name in pair if name != CLIENTS]
    await asyncio.gather(*(asyncio.to_thread(_enter, plan, name, pair) for name, pair in ends))


def _enter(plan: Plan, name: str, link: Link) -> None:
    network = plan.network(*link)
    there = docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", plan.container(name))
    if network not in json.loads(there):
        docker("network", "connect", *_alias(name, link), network, plan.container(name))


def _alias(name: str, link: Link) -> list[str]:
    """Words that give a node its name in the network of a link."""
    return [] if CLIENTS in link else ["--alias", peer_host(name)]
