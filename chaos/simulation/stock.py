"""The library as it ships, on the same network, under the same schedules of faults.

Its own file journal and full dump on real files, its pickle, its serializer; our simulated network, time and
randomness. Files outlive a kill whole, and a loss of power too: that it never syncs is not held against it here.
The machine is the real one, which remembers answers by operation id, so that a retry does no harm; the callers, and the
judges of histories, are those of our own runs.
"""

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.config import FAIL_REASON
from pysyncobj.transport import Transport

from chaos.checkers import Violation
from chaos.simulation.disk import DiskFaults
from chaos.simulation.jury import Histories
from chaos.simulation.machines import Watched
from chaos.simulation.network import Network
from chaos.simulation.profiles import Profile
from chaos.simulation.world import World
from resourcelease.consensus import seams
from resourcelease.consensus.seams import LEADER, ambient
from resourcelease.model.errors import CorruptLog
from resourcelease.model.events import Record
from resourcelease.model.ops import pack_entry, pack_ops

__all__ = ["StockNode"]

_TICK_S = 0.05
# What a look at the clock costs.
_STEP_S = 0.00002


class _StockMachine(Watched):
    def __reduce__(self) -> Any:
        return type(self).loaded_on, (self.node, list(self.dump_rows()))


class _Stock(SyncObj):  # type: ignore[misc]
    def __init__(
        self, name: str, others: list[str], conf: Any, transport: Any, wrote: Callable[[Watched, Any], None]
    ) -> None:
        # Set before the library's own attributes: not part of the replicated state.
        self.wrote = wrote
        super().__init__(seams.Peer(name), [seams.Peer(other) for other in others], conf, transport=transport)
        # Set after them: replicated.
        self.machine = _StockMachine.on(name)

    @replicated  # type: ignore[untyped-decorator]
    def take(self, clock_ms: int, ops: list[bytes]) -> Any:
        """One entry for the machine."""
        machine = self.machine
        outcome = machine.apply(machine.applied_index + 1, 1, pack_entry(clock_ms, 0, pack_ops(ops)))
        self.wrote(machine, outcome.records)
        return outcome.results


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


class StockNode:
    """Looks like a ``Node`` to clients, faults and the network."""

    def __init__(
        self,
        name: str,
        names: list[str],
        world: World,
        network: Network,
        home: Path,
        profile: Profile,
        histories: Histories,
    ) -> None:
        self.name = name
        self.broken = ""
        self.damaged = False
        self.disk = _NoDisk()
        self.library: _Stock | None = None
        # What was found in what it applied; the library keeps exceptions to itself.
        self.found: list[Violation] = []
        self._histories = histories
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

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.library is not None

    @property
    def host(self) -> "StockNode | None":
        """Itself, while it runs."""
        return self if self.running else None

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as the library has it."""
        return self.library is not None and self.library._SyncObj__raftState == LEADER

    @property
    def term(self) -> int:
        """The current term."""
        return 0 if self.library is None else int(self.library.raftCurrentTerm)

    @property
    def members(self) -> Mapping[str, str]:
        """All nodes; addresses are not used."""
        return dict.fromkeys([self.name, *self._others], "")

    def start(self) -> None:
        """A new process on the old files."""
        if self.running:
            return
        self._life += 1
        self._epochs.clear()
        self._transport = _StockTransport(self._send)
        with ambient(self._world.now, self._rng, _STEP_S):
            self.library = _Stock(self.name, self._others, SyncObjConf(**self._conf), self._transport, self._wrote)
        self._network.connect_all(self.name)
        self._world.after(_TICK_S, self._tick_again, self._life)

    def stop(self, *, silent: bool = False) -> None:
        """The process ends."""
        if self.running:
            self.library = None
            self._network.node_down(self.name, silent=silent)

    def pause(self, until: float) -> None:
        """The process is stopped for a while."""
        if self.running:
            self._paused_until = max(self._paused_until, until)

    def jump_wall_clock(self, by_ms: int) -> None:
        """It does not read it."""

    def administer(self, action: str, node: str, deadline_s: float, done: Callable[[str], None]) -> None:
        """Transfers only; the rest is not asked of it."""
        if self.library is not None and action == "transfer":
            with ambient(self._world.now, self._rng, _STEP_S):
                self.library.transferLeadership()
        done("")

    def _wrote(self, machine: Watched, records: list[Record]) -> None:
        try:
            self._histories.turned(self.name, machine, [(record.sequence, record.encoded) for record in records])
        except (Violation, CorruptLog) as violation:
            found = violation if isinstance(violation, Violation) else Violation("one history", str(violation))
            self.found.append(found)

    def propose(self, ops: list[bytes], deadline_s: float, answer: Callable[[Any], None]) -> None:
        """One call."""
        if self.library is None:
            answer(ConnectionError("the node is down"))
            return
        answered: list[bool] = []

        def once(result: Any) -> None:
            if not answered:
                answered.append(True)
                self._world.after(0.0, answer, result)

        def called(result: Any, error: int) -> None:
            once(result if error == FAIL_REASON.SUCCESS else ConnectionError(f"refused: {error}"))

        self._world.after(deadline_s, once, TimeoutError("no answer"))
        self.library.take(int(self._world.now * 1000), ops, callback=called)

    def opened(self, peer: str, epoch: int) -> None:
        """A connection is up."""
        self._epochs[peer] = epoch
        self._transport._onNodeConnected(seams.Peer(peer))

    def closed(self, peer: str, epoch: int) -> None:
        """A connection is gone."""
        if self._epochs.get(peer) == epoch:
            del self._epochs[peer]
            self._transport._onNodeDisconnected(seams.Peer(peer))

    def refused(self, peer: str) -> None:
        """It does not ask."""

    def arrived(self, peer: str, epoch: int, frame: Any) -> None:
        """A message came."""
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
