"""The library as it ships, on the same network, under the same schedules of faults.

Its own file journal and full dump on real files, its pickle, its serializer; our simulated network, time and
randomness. Files outlive a kill whole, and so they do a loss of power: that it never syncs is not held against it here.
Its state machine remembers answers by operation, so that a retry does no harm.
"""

import contextlib
import gc
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.config import FAIL_REASON
from pysyncobj.transport import Transport

from chaos.checkers import Acknowledged, Violation
from chaos.simulation.clients import Client
from chaos.simulation.disk import DiskFaults
from chaos.simulation.faults import Faults
from chaos.simulation.network import Network, NetworkFaults
from chaos.simulation.node import Node
from chaos.simulation.profiles import Profile
from chaos.simulation.run import CLEAN, LIVENESS, SAFETY, Result, profile_of
from chaos.simulation.world import World
from resourcelease.consensus import seams
from resourcelease.consensus.seams import LEADER, ambient

__all__ = ["run_stock_seed"]

_TICK_S = 0.05
# What a look at the clock costs.
_STEP_S = 0.00002
_PEACE_S = 60.0


class _Stock(SyncObj):  # type: ignore[misc]
    def __init__(self, name: str, others: list[str], conf: Any, transport: Any) -> None:
        super().__init__(seams.Peer(name), [seams.Peer(other) for other in others], conf, transport=transport)
        # Set after the library's own attributes: what comes now is the replicated state.
        self.answers: dict[bytes, int] = {}

    @replicated  # type: ignore[untyped-decorator]
    def take(self, names: list[bytes]) -> list[int]:
        """Each name's place in the order, once."""
        return [self.answers.setdefault(name, len(self.answers) + 1) for name in names]


class _StockTransport(Transport):  # type: ignore[misc]
    def __init__(self, send: Callable[[str, Any], None]) -> None:
        super().__init__(None, None, [])
        self._send_to = send

    def send(self, node: Any, message: Any) -> bool:
        self._send_to(node.id, message)
        return True


class _NoDisk:
    def __init__(self) -> None:
        self.faults = DiskFaults()

    def flip_a_bit(self) -> bool:
        return False


class _StockNode:
    """Looks like a ``Node`` to clients, faults and the network."""

    def __init__(
        self, name: str, names: list[str], world: World, network: Network, home: Path, profile: Profile
    ) -> None:
        self.name = name
        self.broken = ""
        self.damaged = False
        self.disk = _NoDisk()
        self.library: _Stock | None = None
        self._others = [other for other in names if other != name]
        self._world = world
        self._network = network
        self._rng = random.Random(world.rng.random())
        self._conf = {
            "autoTick": False,
            "journalFile": str(home / f"{name}.journal"),
            "fullDumpFile": str(home / f"{name}.dump"),
            "useFork": False,
            "logCompactionMinEntries": max(profile.flush_entries, 2),
            "logCompactionBatchSize": profile.chunk_bytes,
        }
        self._epochs: dict[str, int] = {}
        self._life = 0
        self._paused_until = 0.0
        self._late: list[tuple[str, Any]] = []

    @property
    def running(self) -> bool:
        return self.library is not None

    @property
    def host(self) -> "_StockNode | None":
        return self if self.running else None

    @property
    def is_leader(self) -> bool:
        return self.library is not None and self.library._SyncObj__raftState == LEADER

    @property
    def term(self) -> int:
        return 0 if self.library is None else int(self.library.raftCurrentTerm)

    @property
    def members(self) -> Mapping[str, str]:
        return dict.fromkeys([self.name, *self._others], "")

    def start(self) -> None:
        if self.running:
            return
        self._life += 1
        self._epochs.clear()
        self._transport = _StockTransport(self._send)
        with ambient(self._world.now, self._rng, _STEP_S):
            self.library = _Stock(self.name, self._others, SyncObjConf(**self._conf), self._transport)
        self._network.connect_all(self.name)
        self._world.after(_TICK_S, self._tick_again, self._life)

    def stop(self, *, silent: bool = False) -> None:
        if self.running:
            self.library = None
            self._network.node_down(self.name, silent=silent)

    def pause(self, until: float) -> None:
        if self.running:
            self._paused_until = max(self._paused_until, until)

    def jump_wall_clock(self, by_ms: int) -> None:
        """It does not read it."""

    def administer(self, action: str, node: str, deadline_s: float, done: Callable[[str], None]) -> None:
        if self.library is not None and action == "transfer":
            with ambient(self._world.now, self._rng, _STEP_S):
                self.library.transferLeadership()
        done("")

    def propose(self, names: list[bytes], deadline_s: float, answer: Callable[[Any], None]) -> None:
        if self.library is None:
            answer(ConnectionError("the node is down"))
            return
        answered: list[bool] = []

        def once(result: Any) -> None:
            if not answered:
                answered.append(True)
                answer(result)

        def called(result: Any, error: int) -> None:
            once(result if error == FAIL_REASON.SUCCESS else ConnectionError(f"refused: {error}"))

        self._world.after(deadline_s, once, TimeoutError("no answer"))
        self.library.take(names, callback=called)

    def opened(self, peer: str, epoch: int) -> None:
        self._epochs[peer] = epoch
        self._transport._onNodeConnected(seams.Peer(peer))

    def closed(self, peer: str, epoch: int) -> None:
        if self._epochs.get(peer) == epoch:
            del self._epochs[peer]
            self._transport._onNodeDisconnected(seams.Peer(peer))

    def arrived(self, peer: str, epoch: int, frame: Any) -> None:
        if self._paused_until > self._world.now:
            self._world.at(self._paused_until, self.arrived, peer, epoch, frame)
        elif self.library is not None:
            with ambient(self._world.now, self._rng, _STEP_S), contextlib.suppress(Exception):
                self._transport._onMessageReceived(seams.Peer(peer), frame)
                self.library.doTick(0.0)

    def _tick_again(self, life: int) -> None:
        if self.library is None or life != self._life:
            return
        if self._paused_until <= self._world.now:
            # Its own thread logs what a tick raises, and goes on.
            with ambient(self._world.now, self._rng, _STEP_S), contextlib.suppress(Exception):
                self.library.doTick(0.0)
        self._world.after(_TICK_S, self._tick_again, life)

    def _send(self, peer: str, message: Any) -> None:
        self._network.send(self.name, peer, self._epochs.get(peer, 0), message)


def run_stock_seed(seed: int, *, nodes: int = 0, profile: Profile | None = None) -> Result:
    """The same seed and profile, with the library as it ships."""
    profile = replace(
        profile or profile_of(seed, None), spare_nodes=0, change_every_s=0.0, flip_every_s=0.0, stuck_rate=0.0
    )
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    home = Path(tempfile.mkdtemp(prefix="stock-", dir=parent))
    # The library leaves files to the garbage collector.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return _run(seed, nodes, profile, home)
        finally:
            gc.collect()
            shutil.rmtree(home, ignore_errors=True)


def _run(seed: int, count: int, profile: Profile, home: Path) -> Result:
    world = World(seed)
    count = count or world.rng.choice(profile.nodes)
    network = Network(
        world,
        NetworkFaults(
            delay_min_s=profile.delay_min_s,
            delay_max_s=profile.delay_max_s,
            slow_rate=profile.slow_rate,
            slow_max_s=profile.slow_max_s,
        ),
    )
    seams.patch_library()
    acknowledged = Acknowledged()
    names = [f"n{number}" for number in range(1, count + 1)]
    stock = [_StockNode(name, names, world, network, home, profile) for name in names]
    cluster = cast(list[Node], stock)
    for node in stock:
        network.add(node.name, node)
        world.after(world.rng.uniform(0.0, 0.2), node.start)
    clients = [Client(f"c{number}", world, cluster, acknowledged, profile.think_s) for number in range(profile.clients)]
    for client in clients:
        client.start()
    faults = Faults(world, network, cluster, [], profile)
    world.after(1.0, faults.start)
    code, detail = CLEAN, ""
    try:
        world.run_until(profile.safety_s)
        faults.stop()
        world.run_until(world.now + 3.0)
        for client in clients:
            client.stop()
        probe = Client("probe", world, cluster, acknowledged, 0.1)
        probe.start()
        together = world.run_until(world.now + _PEACE_S, lambda: probe.answered >= 3)
        probe.stop()
        together = together and world.run_until(world.now + _PEACE_S, lambda: _together(stock))
        code, detail = _judge(stock, acknowledged, together)
    except Violation as violation:
        code, detail = SAFETY, str(violation)
    terms = max(node.term for node in stock)
    for node in stock:
        node.stop()
    return Result(seed, profile.name, count, code, detail, world.now, len(acknowledged), terms)


def _together(nodes: list[_StockNode]) -> bool:
    applied = {node.library.raftLastApplied if node.library else -1 for node in nodes}
    return len(applied) == 1


def _judge(nodes: list[_StockNode], acknowledged: Acknowledged, together: bool) -> tuple[int, str]:
    states = [node.library.answers if node.library is not None else {} for node in nodes]
    if together:
        for node, state in zip(nodes, states, strict=True):
            acknowledged.check(node.name, state, dict.fromkeys(state, 1))
        if any(state != states[0] for state in states):
            raise Violation("equal states", "the nodes hold different states at the end")
        return CLEAN, ""
    return LIVENESS, "the nodes did not come together in peace"
