"""The setting for root: a network namespace a node, joined by a bridge, and packets that the kernel drops.

A cut of one direction is a rule of nftables where the packets would arrive: they vanish, the sender's kernel is told
nothing, and what goes the other way arrives. Bandwidth is bounded by ``tbf`` for all that a node sends. Delays would
need ``netem``; drills that ask for them are refused where the kernel has none.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chaos.drills.cluster import Cluster, node_tables
from chaos.drills.network import CLIENTS, Link, Rule
from chaos.drills.node import Node
from chaos.drills.scene import Drill

__all__ = ["KernelNetwork", "Namespaces"]

_PORT, _PEER_PORT = 7101, 7201
_CLIENTS_HOST = 254

# What a receiver does not hear. The table is named after the network: that of the clients is among the host's own.
_DEAF = """
table inet {table} {{
    set silent {{ type ipv4_addr; }}
    chain input {{ type filter hook input priority 0; policy accept; iifname "{leg}" ip saddr @silent drop; }}
}}
"""


class KernelNetwork:
    """A bridge, and a namespace with one leg on it for each node."""

    delays = False
    one_way = True
    resets = False

    def __init__(self, number: int) -> None:
        self._prefix = f"rl{number}"
        self._net = f"10.{200 + number % 50}.{number % 250}"
        self._hosts: dict[str, int] = {CLIENTS: _CLIENTS_HOST}
        self._rules: dict[Link, Rule] = {}
        self._up = False
        self._named = False
        self._let_through = False

    def address(self, name: str) -> str:
        """The address of a node, or of all clients."""
        return f"{self._net}.{self._hosts[name]}"

    def inside(self, name: str) -> list[str]:
        """The words before a command that has it run where a node runs."""
        return ["ip", "netns", "exec", f"{self._prefix}-{name}"] if name != CLIENTS else []

    def put_up(self) -> None:
        """Makes the bridge."""
        bridge = f"{self._prefix}b"
        _run("ip", "link", "add", bridge, "type", "bridge")
        self._up = True
        _run("ip", "addr", "add", f"{self.address(CLIENTS)}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        self._listen(CLIENTS)
        if _bridges_are_filtered():
            _run("iptables", "-I", *self._through)
            self._let_through = True

    @property
    def _through(self) -> list[str]:
        """The rule that lets what stays on the bridge through, where an engine of containers drops it."""
        return ["FORWARD", "-i", f"{self._prefix}b", "-o", f"{self._prefix}b", "-j", "ACCEPT"]

    def join(self, name: str) -> None:
        """Makes the namespace of a node and connects it."""
        number = len(self._hosts)
        self._hosts[name] = number
        space, near, far = f"{self._prefix}-{name}", self._near(name), self._leg(name)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", space)
        _run("ip", "link", "set", near, "master", f"{self._prefix}b", "up")
        _run(*self.inside(name), "ip", "link", "set", "lo", "up")
        _run(*self.inside(name), "ip", "addr", "add", f"{self.address(name)}/24", "dev", far)
        _run(*self.inside(name), "ip", "link", "set", far, "up")
        self._listen(name)

    def _listen(self, name: str) -> None:
        """Gives it the rules by which it can be made deaf to others."""
        self._nft(name, _DEAF.format(table=self._prefix, leg=self._leg(name)))

    def _nft(self, name: str, commands: str) -> None:
        _run(*self.inside(name), "nft", "-f", "-", given=commands)

    async def apply(self, rules: Mapping[Link, Rule]) -> None:
        """These rules hold from now on, and no others."""
        if any(rule.delay_ms for rule in rules.values()):
            raise OSError("delays need netem, which this setting does without")
        await asyncio.to_thread(self._apply, rules)

    async def reset(self, links: Iterable[Link]) -> None:
        """Connections outlive a flap here, as they do between hosts."""

    def host_name(self, name: str) -> str:
        """A node's name, for nodes that are given names."""
        return f"{name}.{self._prefix}.test"

    def give_names(self) -> None:
        """Has all nodes know each other's names. To be told before they start, since files are put over theirs then."""
        for name in self._nodes:
            directory = self._etc(name)
            directory.mkdir(parents=True)
            # Without the file, a server is asked that there is none of.
            (directory / "resolv.conf").write_text(f"nameserver {self._net}.253\noptions timeout:1 attempts:1\n")
            (directory / "nsswitch.conf").write_text("hosts: files dns\n")
        self._named = True
        self._write_names(there=True)

    async def set_names(self, there: bool) -> None:
        """Whether the names of nodes can be resolved."""
        self._write_names(there=there)

    def _write_names(self, *, there: bool) -> None:
        lines = [f"{self.address(name)} {self.host_name(name)}\n" for name in self._nodes] if there else []
        for name in self._nodes:
            # In place: nodes that run have this very file.
            (self._etc(name) / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def _etc(self, name: str) -> Path:
        """What ``ip netns exec`` puts over /etc."""
        return Path("/etc/netns") / f"{self._prefix}-{name}"

    @property
    def _nodes(self) -> list[str]:
        return [name for name in self._hosts if name != CLIENTS]

    async def close(self) -> None:
        """Takes everything down."""
        if self._up:
            await asyncio.to_thread(self._take_down)
            self._up = False

    def _take_down(self) -> None:
        for name in self._nodes:
            if self._named:
                shutil.rmtree(self._etc(name), ignore_errors=True)
            # With its namespace it would go too, but some time later, and the next network may want the name.
            subprocess.run(["ip", "link", "del", self._near(name)], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", f"{self._prefix}-{name}"], check=False, capture_output=True)
        if self._let_through:
            subprocess.run(["iptables", "-D", *self._through], check=False, capture_output=True)
        subprocess.run(["nft", "delete", "table", "inet", self._prefix], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._prefix}b"], check=False, capture_output=True)

    def _apply(self, rules: Mapping[Link, Rule]) -> None:
        cut = {link for link, rule in rules.items() if rule.cut}
        before = {link for link, rule in self._rules.items() if rule.cut}
        for receiver in sorted({target for _, target in before ^ cut}):
            lines = [
                f"{verb} element inet {self._prefix} silent {{ {self.address(source)} }}\n"
                for verb, links in (("delete", before - cut), ("add", cut - before))
                for source, target in sorted(links)
                if target == receiver
            ]
            self._nft(receiver, "".join(lines))
        slow = {source: rule.bytes_per_s for (source, _), rule in rules.items() if rule.bytes_per_s}
        was_slow = {source for (source, _), rule in self._rules.items() if rule.bytes_per_s}
        for name in was_slow - set(slow):
            _run(*self.inside(name), "tc", "qdisc", "del", "dev", self._leg(name), "root")
        for name, bytes_per_s in slow.items():
            bound = ("rate", f"{int(bytes_per_s * 8)}bit", "burst", "32k", "latency", "400ms")
            _run(*self.inside(name), "tc", "qdisc", "replace", "dev", self._leg(name), "root", "tbf", *bound)
        self._rules = dict(rules)

    def _near(self, name: str) -> str:
        return f"{self._prefix}h{self._hosts[name]}"

    def _leg(self, name: str) -> str:
        return f"{self._prefix}n{self._hosts[name]}" if name != CLIENTS else f"{self._prefix}b"


class Namespaces:
    """Makes clusters whose nodes have a network of their own."""

    name = "namespaces"
    delays = False
    names = True
    one_way = True
    processes = True

    def why_not(self) -> str:
        """Why it cannot be used here; empty if it can."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        for command, package in (("ip", "iproute2"), ("nft", "nftables")):
            if shutil.which(command) is None:
                return f"there is no `{command}` here; install {package}"
        return ""

    async def found(self, directory: Path, count: int, drill: Drill) -> Cluster:
        """A new cluster as a drill needs it, not started. Clients are always cut off for real."""
        network = KernelNetwork(os.getpid() % 10_000)
        names = [f"n{number}" for number in range(1, count + 1)]
        try:
            network.put_up()
            for name in names:
                network.join(name)
            if drill.names:
                network.give_names()
        except (OSError, subprocess.CalledProcessError):
            await network.close()
            raise
        hosts = {name: network.host_name(name) if drill.names else network.address(name) for name in names}
        members = {name: f"{host}:{_PEER_PORT}" for name, host in hosts.items()}

        async def make(name: str, joins: bool) -> tuple[Node, str]:
            if name not in names:
                network.join(name)
            tables: dict[str, dict[str, Any]] = node_tables(directory, name, members, joins)
            address = network.address(name)
            tables["grpc"] = {"listen": f"{address}:{_PORT}"}
            tables["peers"] = {"listen": f"{address}:{_PEER_PORT}"}
            tables["tls"] = {"insecure_listen_anywhere": True}
            node = Node(directory, name, f"{address}:{_PORT}", tables, network.inside(name))
            return node, f"{address}:{_PEER_PORT}"

        cluster = Cluster(directory, network, names, make)
        await cluster.make(names)
        return cluster

    def clear(self, *, keep: bool) -> list[str]:
        """Nothing is left but files."""
        return []


def _bridges_are_filtered() -> bool:
    """Whether packets between ports of one bridge go through iptables, as Docker has it."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    with contextlib.suppress(OSError):
        return switch.read_text().strip() == "1" and shutil.which("iptables") is not None
    return False


def _run(*words: str, given: str | None = None) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=given)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
