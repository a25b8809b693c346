"""A seeded network of connections that delay, stall, break and come back.

Fault model
-----------
Between two nodes there is at most one connection. What is sent on it arrives in order, each message after a delay.
A reset breaks it at both ends, not at the same moment; what is on its way is lost, or, as a kernel may still hold it,
arrives late on the old connection, when the next one may be up already. Some messages arrive twice, which TCP would
not do and the guards must stand all the same. A cut stops one direction: what is sent waits, as TCP sends it again,
and arrives when the cut ends, unless the connection is reset before. No connection is made while a direction is cut.
Where buffers are bounded, a sender is told that there is no room for a peer that does not keep up.
Frames are encoded and decoded on the way, as on a real wire.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chaos.simulation.world import World

__all__ = ["Endpoint", "Network", "NetworkFaults"]


class Endpoint(Protocol):
    """A node as the network sees it."""

    @property
    def running(self) -> bool:
        """Whether its process is there."""

    def opened(self, peer: str, epoch: int) -> None:
        """A connection is up."""

    def closed(self, peer: str, epoch: int) -> None:
        """A connection is gone."""

    def arrived(self, peer: str, epoch: int, frame: Any) -> None:
        """A frame came."""

    def refused(self, peer: str) -> None:
        """The peer was called, and its port refuses: the machine is there and the process is gone."""


@dataclass(slots=True)
class NetworkFaults:
    """How this network behaves."""

    delay_min_s: float = 0.0002
    delay_max_s: float = 0.002
    # How often a message takes longer, and up to how long.
    slow_rate: float = 0.0
    slow_max_s: float = 0.0
    # How often what a broken connection had on its way still arrives.
    late_rate: float = 0.3
    # How often a message arrives a second time, and how much later at most.
    twice_rate: float = 0.0
    twice_max_s: float = 0.5
    # What a sender holds for one peer before it has no room for more; 0 for no bound.
    buffer_bytes: int = 0
    reconnect_min_s: float = 0.01
    reconnect_max_s: float = 0.3


@dataclass(slots=True)
class _Connection:
    epoch: int
    # When the last message of each direction arrives, by sender.
    last_arrival: dict[str, float]
    # Bytes of each direction that have not arrived, by sender; counted where there is a bound.
    under_way: dict[str, int]
    open: bool = True


class Network:
    """All connections of a run."""

    def __init__(self, world: World, faults: NetworkFaults) -> None:
        self.faults = faults
        self._world = world
        self._nodes: dict[str, Endpoint] = {}
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._cut_until: dict[tuple[str, str], float] = {}
        self._wanted: Callable[[str, str], bool] = lambda a, b: True
        self._epochs = 0

    def add(self, name: str, node: Endpoint) -> None:
        """A node with an address; it connects to whoever it wants once it runs."""
        self._nodes[name] = node

    def wants(self, wanted: Callable[[str, str], bool]) -> None:
        """Which pairs keep a connection."""
        self._wanted = wanted

    def connect_all(self, name: str) -> None:
        """A node is up, or has learned of others: connections will be tried."""
        for other in self._nodes:
            if other != name and _pair(name, other) not in self._connections:
                self._reconnect(_pair(name, other))

    def send(self, sender: str, receiver: str, epoch: int, frame: Any) -> None:
        """Takes a frame; it is lost if the connection is not the one in use."""
        connection = self._connections.get((sender, receiver) if sender < receiver else (receiver, sender))
        if connection is None or connection.epoch != epoch or not connection.open:
            return
        faults, world = self.faults, self._world
        draw = world.rng.random
        # As ``uniform`` draws it, of which there is one a message.
        delay = faults.delay_min_s + (faults.delay_max_s - faults.delay_min_s) * draw()
        if faults.slow_rate and draw() < faults.slow_rate:
            delay += faults.slow_max_s * draw()
            world.faults["message slow"] += 1
        starts = world.now
        if self._cut_until:
            starts = max(starts, self._cut_until.get((sender, receiver), 0.0))
        arrives = max(starts + delay, connection.last_arrival.get(sender, 0.0))
        connection.last_arrival[sender] = arrives
        size = 0
        if faults.buffer_bytes:
            size = len(frame)
            connection.under_way[sender] = connection.under_way.get(sender, 0) + size
        world.at(arrives, self._arrive, connection, sender, receiver, frame, size)
        if faults.twice_rate and draw() < faults.twice_rate:
            again = arrives + faults.twice_max_s * draw()
            world.faults["message twice"] += 1
            world.at(again, self._arrive, connection, sender, receiver, frame, 0)

    def has_room(self, sender: str, receiver: str) -> bool:
        """Whether a peer keeps up with what it is sent."""
        connection = self._connections.get(_pair(sender, receiver))
        if connection is None or not self.faults.buffer_bytes:
            return True
        room = connection.under_way.get(sender, 0) < self.faults.buffer_bytes
        if not room:
            self._world.faults["no room"] += 1
        return room

    def _arrive(self, connection: _Connection, sender: str, receiver: str, frame: Any, size: int) -> None:
        if self._cut_until:
            until = self._cut_until.get((sender, receiver), 0.0)
            if until > self._world.now:
                self._world.at(until, self._arrive, connection, sender, receiver, frame, size)
                return
        if size:
            connection.under_way[sender] -= size
        node = self._nodes[receiver]
        if not node.running:
            return
        if not connection.open:
            if self._world.rng.random() >= self.faults.late_rate:
                return
            self._world.faults["message late"] += 1
        node.arrived(sender, connection.epoch, frame)

    def cut(self, sender: str, receiver: str, until: float) -> None:
        """Stops one direction."""
        self._cut_until[sender, receiver] = max(self._cut_until.get((sender, receiver), 0.0), until)

    def heal(self) -> None:
        """Ends all cuts, and whatever delays."""
        self._cut_until.clear()
        self.faults.slow_rate = 0.0
        self.faults.twice_rate = 0.0
        self.faults.late_rate = 0.0

    def reset(self, a: str, b: str, *, notice_max_s: float = 0.05, silent: bool = False) -> None:
        """Breaks the connection of two nodes; ``silent``, because one of the machines is gone."""
        pair = _pair(a, b)
        connection = self._connections.pop(pair, None)
        if connection is None:
            return
        connection.open = False
        for name, other in (pair, pair[::-1]):
            notice_s = self._world.rng.uniform(0.0, notice_max_s)
            self._world.after(notice_s, self._notice, name, other, connection.epoch, silent)
        self._reconnect(pair)

    def node_down(self, name: str, *, silent: bool) -> None:
        """A process is gone; its peers learn at once, or, if the whole machine went silent, after a while."""
        for pair in [pair for pair in self._connections if name in pair]:
            self.reset(*pair, notice_max_s=3.0 if silent else 0.01, silent=silent)

    def _notice(self, name: str, other: str, epoch: int, silent: bool) -> None:
        if not self._nodes[name].running:
            return
        self._nodes[name].closed(other, epoch)
        cut = max(self._cut_until.get((name, other), 0.0), self._cut_until.get((other, name), 0.0)) > self._world.now
        if not (self._nodes[other].running or silent or cut):
            self._nodes[name].refused(other)

    def _reconnect(self, pair: tuple[str, str]) -> None:
        delay = self._world.rng.uniform(self.faults.reconnect_min_s, self.faults.reconnect_max_s)
        self._world.after(delay, self._connect, pair)

    def _connect(self, pair: tuple[str, str]) -> None:
        a, b = pair
        if pair in self._connections or not (self._nodes[a].running and self._nodes[b].running):
            return
        cut_until = max(self._cut_until.get((a, b), 0.0), self._cut_until.get((b, a), 0.0))
        if cut_until > self._world.now:
            self._world.at(cut_until + self.faults.reconnect_min_s, self._connect, pair)
            return
        if not self._wanted(a, b):
            return
        self._epochs += 1
        connection = self._connections[pair] = _Connection(self._epochs, {}, {})
        for name, other in (pair, pair[::-1]):
            self._nodes[name].opened(other, connection.epoch)


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
