"""A whole node in the simulator: a disk that stays, and a process that comes and goes."""

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from chaos.checkers import Violation
from chaos.simulation.disk import Damaged, Disk
from chaos.simulation.machines import Watched, machines_of
from chaos.simulation.network import Network
from chaos.simulation.world import World
from resourcelease.consensus import wire
from resourcelease.consensus.api import ConsensusBroken
from resourcelease.consensus.effects import Effects
from resourcelease.consensus.entries import join_ops
from resourcelease.consensus.host import Host
from resourcelease.consensus.settings import Guards, Settings

__all__ = ["Node", "Observer"]

# From the arrival of something to the turn that sees it: one pass of an event loop, idle, busy or very busy.
_LOOPS_S = (0.00005, 0.0005, 0.002)
_NEVER = float("inf")
# As many turns as this without time passing, and a node would keep a processor busy with nothing.
_TURNS_AT_ONCE_MAX = 5000


@dataclass(slots=True)
class Observer:
    """What the checkers are told."""

    turned: Callable[["Node", Effects], None]
    heard: Callable[[str, str], None]
    # A node refused to go on, and says why in ``broken``.
    stopped: Callable[["Node"], None]


class Node:
    """Implements ``network.Endpoint``. Its clock has a rate and an offset of its own."""

    def __init__(
        self,
        name: str,
        *,
        world: World,
        network: Network,
        disk: Disk,
        observer: Observer,
        settings: Settings,
        guards: Guards,
        bootstrap: Mapping[str, str],
        machine: type[Watched],
        founding: Callable[[int], bool],
    ) -> None:
        self.name = name
        self.disk = disk
        self.host: Host | None = None
        # Stopped for good, by an error that it noticed itself.
        self.broken = ""
        # Its disk was damaged by a fault, so it may stop.
        self.damaged = False
        self._world = world
        self._network = network
        self._observer = observer
        self._settings = settings
        self._guards = guards
        self._bootstrap = bootstrap
        self._machines = machines_of(machine, name)
        # Whether a process, by its number, is told that it founds the cluster.
        self._founding = founding
        self._rate = 1.0
        self._loop_s = world.rng.choice(_LOOPS_S)
        self._offset_s = world.rng.uniform(0.0, 1000.0)
        self._wall_offset_ms = world.rng.randint(-5000, 5000)
        # Counts the processes that this node has had.
        self.life = 0
        self._paused_until = 0.0
        # Whose messages came while it was stopped.
        self._unheard: set[str] = set()
        # When its next turn is due, and the moments at which the calendar has a look at that, the next one last.
        self._turn_at = _NEVER
        self._looks: list[float] = []
        # Its last turn, and how many it had at that moment.
        self._turned_at = -1.0
        self._turns_at_once = 0
        self._role = ""
        self._waiters: dict[int, Callable[[Any], None]] = {}
        self._tickets: dict[int, Callable[[str], None]] = {}

    @property
    def machine(self) -> Watched:
        """The machine of the process that runs."""
        assert self.host is not None
        assert isinstance(self.host.machine, Watched)
        return self.host.machine

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.host is not None

    @property
    def newborn(self) -> bool:
        """Whether it began with an empty disk, and has not caught up since; it votes for nobody then."""
        return self.host is not None and self.host.journal.newborn

    def local(self, now: float) -> float:
        """What its monotonic clock says."""
        return self._offset_s + now * self._rate

    def run_clock_at(self, rate: float) -> None:
        """Its monotonic clock is fast or slow from the start; call before ``start``."""
        self._rate = rate

    def jump_wall_clock(self, by_ms: int) -> None:
        """Somebody sets its wall clock."""
        self._wall_offset_ms += by_ms

    # Life and death.

    def start(self) -> None:
        """A new process on the old disk."""
        if self.running or self.broken:
            return
        self.life += 1
        try:
            self.host = Host(
                node_id=self.name,
                store=self.disk,
                machines=self._machines,
                incarnation=self.life,
                rng=random.Random(self._world.rng.random()),
                now=self.local(self._world.now),
                bootstrap=self._bootstrap,
                settings=self._settings,
                guards=self._guards,
                has_room=partial(self._network.has_room, self.name),
                founding=self._founding(self.life),
            )
        except (Damaged, ConsensusBroken) as error:
            self.broken = str(error)
            self._world.tell(self.name, f"refuses to start: {error}")
            self._observer.stopped(self)
            return
        self._world.tell(
            self.name, f"starts, life {self.life}, log to {self.host.journal[:] and self.host.journal.last_index}"
        )
        self._network.connect_all(self.name)
        self._want_turn(self._world.now)

    def stop(self, *, silent: bool = False) -> None:
        """Kill -9, or, ``silent``, the power of the machine goes."""
        if not self.running:
            return
        self.host = None
        self._turn_at = _NEVER
        self._looks.clear()
        self._paused_until = 0.0
        self._unheard.clear()
        self._role = ""
        self.disk.crash()
        waiters, self._waiters = self._waiters, {}
        tickets, self._tickets = self._tickets, {}
        self._world.tell(self.name, "loses power" if silent else "is killed")
        self._network.node_down(self.name, silent=silent)
        for answer in waiters.values():
            answer(ConnectionError("the node is gone"))
        for done in tickets.values():
            done("the node is gone")

    def pause(self, until: float) -> None:
        """The process is stopped for a while; the world goes on."""
        if self.running:
            self._paused_until = max(self._paused_until, until)
            self._want_turn(until)

    # What callers do.

    def propose(self, ops: list[bytes], deadline_s: float, answer: Callable[[Any], None]) -> None:
        """One proposal."""
        if self.host is None:
            answer(ConnectionError("the node is down"))
            return
        assert 2 * sum(map(len, ops)) < self._settings.append_bytes_max, "an entry must fit into one message"
        deadline = self.local(self._world.now) + deadline_s
        number = self.host.propose(len(ops), join_ops(ops), deadline)
        self._waiters[number] = answer
        self._want_turn(self._world.now + self._loop_s)

    def administer(self, action: str, node: str, deadline_s: float, done: Callable[[str], None]) -> None:
        """A change of membership or leadership."""
        if self.host is None:
            done("the node is down")
            return
        deadline = self.local(self._world.now) + deadline_s
        ticket = self.host.administration.request(action, node, f"{node}:1", deadline)
        self._tickets[ticket] = done
        self._want_turn(self._world.now + self._loop_s)

    # What the network and the disk do.

    def opened(self, peer: str, epoch: int) -> None:
        """A connection is up."""
        if self.host is not None:
            self.host.opened(peer, epoch)
            self._want_turn(self._world.now + self._loop_s)

    def closed(self, peer: str, epoch: int) -> None:
        """A connection is gone."""
        if self.host is not None:
            self.host.closed(peer, epoch)

    def refused(self, peer: str) -> None:
        """Its process is gone."""
        if self.host is not None:
            self.host.suspect(peer)
            self._want_turn(self._world.now + self._loop_s)

    def arrived(self, peer: str, epoch: int, frame: bytes) -> None:
        """A frame came."""
        if self.host is not None:
            if self._paused_until > self._world.now:
                # It lies in a buffer; a process that is stopped hears nothing before it goes on.
                self._unheard.add(peer)
            else:
                self._observer.heard(self.name, peer)
            if self.host.receive(peer, epoch, wire.decode(frame)):
                self._want_turn(self._world.now + self._loop_s)

    def _synced(self, life: int, batch: int, _: "Future[None]") -> None:
        if self.host is not None and life == self.life:
            soon = self._world.now + self._loop_s
            due = self.host.durable(batch)
            self._world.at(soon, self._release, life)
            if due:
                self._want_turn(soon)

    def _release(self, life: int) -> None:
        if self.host is None or life != self.life:
            return
        if self._paused_until > self._world.now:
            # The turn that comes then sends it.
            self._want_turn(self._paused_until)
        else:
            self._send(self.host, self.host.released())

    # The loop.

    def _want_turn(self, when: float) -> None:
        """A turn no later than that. Timers are mostly put off before they ring, so each look arms the next."""
        now = self._world.now
        if when < now:
            when = now
        if when < self._paused_until:
            when = self._paused_until
        if when < self._turn_at:
            self._turn_at = when
            self._look_by(when)

    def _look_by(self, when: float) -> None:
        looks = self._looks
        if not looks or when < looks[-1]:
            looks.append(when)
            self._world.at(when, self._look, self.life)

    def _look(self, life: int) -> None:
        if life != self.life or self.host is None:
            return
        self._looks.pop()
        if self._world.now < self._turn_at:
            self._look_by(self._turn_at)
            return
        self._turn_at = _NEVER
        if self._paused_until > self._world.now:
            self._want_turn(self._paused_until)
            return
        self._turn(self.host)

    def _turn(self, host: Host) -> None:
        world = self._world
        now = world.now
        if now > self._turned_at:
            self._turned_at, self._turns_at_once = now, 0
        self._turns_at_once += 1
        if self._turns_at_once > _TURNS_AT_ONCE_MAX:
            raise Violation("a node rests", f"{self.name} has had {_TURNS_AT_ONCE_MAX} turns at one moment")
        while self._unheard:
            self._observer.heard(self.name, self._unheard.pop())
        local = self._offset_s + now * self._rate
        wall_ms = int(now * 1000) + self._wall_offset_ms + 1_700_000_000_000
        try:
            effects = host.turn(local, wall_ms)
        except ConsensusBroken as error:
            self.broken = str(error)
            world.tell(self.name, f"stops: {error}")
            self.stop()
            self._observer.stopped(self)
            return
        self._observer.turned(self, effects)
        if effects.write is not None:
            number, batch = effects.write
            self.disk.write(batch).add_done_callback(partial(self._synced, self.life, number))
        if effects.rows is not None:
            self.disk.write_later(effects.rows)
        self._send(host, effects.sends)
        for proposal, answer in effects.answers:
            self._waiters.pop(proposal)(answer)
        for ticket, refusal in effects.administered:
            self._tickets.pop(ticket)(refusal)
        if world.telling:
            self._tell_role(host)
        self._want_turn(now + (host.next_turn_at() - local) / self._rate)

    def _send(self, host: Host, sends: Sequence[tuple[str, wire.Message]]) -> None:
        for peer, message in sends:
            self._network.send(self.name, peer, host.epoch_of(peer), wire.encode(message))

    def _tell_role(self, host: Host) -> None:
        role = f"leads term {host.term}" if host.is_leader else f"follows {host.leader or 'nobody'} in term {host.term}"
        if role != self._role:
            self._role = role
            self._world.tell(self.name, f"{role}; log to {host.journal.last_index}, commit {host.commit_index}")
