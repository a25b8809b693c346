"""What a drill has at hand while it runs: the cluster, the clients at work, and the clock of its promises."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from chaos.drills.cluster import Cluster
from chaos.drills.history import OK, History
from chaos.drills.shim import Shim, why_no_shim
from chaos.drills.watch import Look
from chaos.drills.workload import Plan, Workload
from resourcelease.client import Client, ResourceLeaseError

__all__ = ["Broken", "Drill", "Fault", "Recovery", "Scene"]

# Service is back when each of these has been answered after having been asked afterwards.
SERVICE = ("enqueue", "lease", "complete")
# How long it may take until workers on streams have work again: those of a node that was cut off are sent away once it
# has had no leader for a while.
STREAMS_S = 10.0


class Broken(Exception):
    """The cluster did not do what the drill is about."""


@dataclass(slots=True)
class Fault:
    """What was done, and from when to when (seconds since the drill began)."""

    words: str
    start: float
    end: float | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long after something service was back, and how long that may take."""

    what: str
    took: float
    limit: float


@dataclass(slots=True)
class Scene:
    """A drill on the stage."""

    cluster: Cluster
    client: Client
    workload: Workload
    history: History
    chance: random.Random
    seconds: float
    recover_s: float
    tell: Callable[[str], None]
    faults: list[Fault] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    # Whether a node may lose its memory of old events, by a restart of all.
    notes: list[str] = field(default_factory=list)
    # Words in the logs of nodes that this drill means to cause.
    expected_words: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    # By node, where the drill asks for them.
    shims: dict[str, Shim] = field(default_factory=dict)

    def fault(self, words: str) -> Fault:
        """Notes that a fault begins; set its ``end`` by ``over``."""
        fault = Fault(words, self.history.now())
        self.faults.append(fault)
        self.tell(words)
        return fault

    def over(self, fault: Fault, words: str = "") -> None:
        """A fault has ended."""
        fault.end = self.history.now()
        if words:
            self.tell(words)

    async def work(self, seconds: float) -> None:
        """Lets clients work for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.1))
            self.workload.check()

    async def leader(self) -> str:
        """Who leads, as most nodes that answer say."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            said: list[str] = []
            for node in self.cluster.nodes.values():
                if node.pid is None or node.paused:
                    continue
                try:
                    async with asyncio.timeout(1):
                        said.append((await self.client.status(node=node.address)).leader_id)
                except (ResourceLeaseError, TimeoutError):
                    continue
            named = [name for name in said if name]
            if named:
                return max(set(named), key=named.count)
            await asyncio.sleep(0.1)
        raise Broken("no node names a leader")

    async def followers(self) -> list[str]:
        """The others."""
        leader = await self.leader()
        return [name for name in self.cluster.names if name != leader]

    async def recovered(self, what: str, since: float, limit: float | None = None) -> float:
        """Waits until service is back after a moment; ``Broken`` if that takes too long."""
        limit = self.recover_s if limit is None else limit
        return await self._back(what, "service", since, limit, lambda: self._back_after(since))

    async def streams_served(self, what: str, since: float, asked: int) -> float:
        """The same for the streams of workers: each is to be granted something of what was enqueued afterwards.

        ``asked``: how many requests there had been at that moment. A grant that was on its way then does not count.
        """
        done = partial(self._streams_after, since, asked)
        return await self._back(f"{what}, for workers on streams", "work", since, STREAMS_S, done)

    async def _back(self, what: str, which: str, since: float, limit: float, done: Callable[[], float | None]) -> float:
        while True:
            took = done()
            if took is not None:
                self.recoveries.append(Recovery(what, took, limit))
                if took > limit:
                    raise Broken(f"after {what}, {which} was back in {took:.1f} s; it may take {limit:g} s")
                return took
            if self.history.now() - since > limit + 10:
                self.recoveries.append(Recovery(what, float("inf"), limit))
                raise Broken(f"after {what}, {which} did not come back in {limit + 10:g} s")
            await self.work(0.05)

    def _streams_after(self, since: float, asked: int) -> float | None:
        firsts: dict[str, float] = {}
        streams = self.workload.streams
        for call in reversed(self.history.calls):
            if call.end < since:
                break
            new = call.kind == "grant" and call.client in streams and self.workload.number_of(call.request) > asked
            if new:
                firsts[call.client] = call.end
        return max(firsts.values(), default=since) - since if len(firsts) == len(streams) else None

    def _back_after(self, since: float) -> float | None:
        firsts: dict[str, float] = {}
        # Calls stand in the order of their ends, so none before the first that ended too early can count.
        for call in reversed(self.history.calls):
            if call.end < since:
                break
            if call.outcome == OK and call.start >= since and call.kind in SERVICE:
                firsts[call.kind] = call.end
        return max(firsts.values()) - since if len(firsts) == len(SERVICE) else None

    async def started_or_ended(self, name: str, said: int, seconds: float = 30.0) -> None:
        """Waits until a node that was started serves, or has ended; ``said``: the length of its log before."""
        node = self.cluster.nodes[name]
        until = self.history.now() + seconds
        while node.exit_code is None and "serves clients" not in node.words(said):
            if self.history.now() > until:
                raise Broken(f"{name} has neither begun to serve nor ended in {seconds:g} s")
            await self.work(0.1)

    def served(self, start: float, end: float) -> int:
        """How many changes were acknowledged that were asked in a span."""
        return sum(1 for call in self.history.of("enqueue", "complete") if start <= call.start and call.end <= end)


@dataclass(frozen=True, slots=True)
class Drill:
    """A drill: its name, what must hold beyond what the checkers always ask, and how long recovery may take."""

    name: str
    holds: str
    act: Callable[[Scene], Awaitable[None]]
    recover_s: float = 6.0
    plan: Plan = field(default_factory=Plan)
    nodes_min: int = 3
    proxied_clients: bool = False
    # Whether the network has to be able to hold bytes back.
    delays: bool = False
    # One of those that `make test` plays.
    quick: bool = False
    # Whether a shim stands between each node and its C library.
    shim: bool = False
    # Whether nodes know each other by names that can go away.
    names: bool = False
    # Whether one direction of a link has to be cut, and not the other.
    one_way: bool = False
    # Whether nodes have to be processes of this machine, which others can be put in the place of or beside.
    processes: bool = False
    # Told the cluster before its first start.
    prepare: Callable[[Cluster], None] | None = None
    # How much more memory a node may use at the end than before the faults.
    more_mib: float = 160.0
    # How much faster than ours the fastest clock of a node runs; leases may end so much sooner.
    fastest_clock: float = 1.0
    # What it needs beyond that: why it cannot be played here; empty if it can.
    why_not: Callable[[], str] | None = None

    def why_skipped(self) -> str:
        """Why it cannot be played here; empty if it can."""
        return (why_no_shim() if self.shim else "") or (self.why_not() if self.why_not else "")
