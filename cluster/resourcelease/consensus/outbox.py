"""Messages on their way out of a host; what promises durability waits here for the disk (guard **sync**)."""

from collections import deque

from resourcelease.consensus.guards import Connections, Durability, promises
from resourcelease.consensus.settings import Guards
from resourcelease.consensus.wire import Message

__all__ = ["Outbox"]


class Outbox:
    """What a turn wants sent, and what earlier turns may not send yet."""

    def __init__(self, connections: Connections, durability: Durability, guards: Guards) -> None:
        self._connections = connections
        self._durability = durability
        self._guards = guards
        self._fresh: list[tuple[str, Message]] = []
        # (batch to wait for, peer, its connection, message), in the order they were made.
        self._held: deque[tuple[int, str, int, Message]] = deque()

    def put(self, peer: str, message: Message) -> None:
        """A message to a peer."""
        self._fresh.append((peer, message))

    @property
    def ready(self) -> bool:
        """Whether the disk has caught up with something that waited for it."""
        return bool(self._held) and self._durability.covers(self._held[0][0])

    def leave(self, term: int) -> list[tuple[str, Message]]:
        """What leaves now, in order; the batch of this turn has its number already."""
        sends: list[tuple[str, Message]] = []
        held, guards = self._held, self._guards
        while held and self._durability.covers(held[0][0]):
            _, peer, epoch, message = held.popleft()
            in_time = message["term"] == term or not guards.term
            if in_time and self._connections.current(peer, epoch):
                sends.append((peer, message))
        for peer, message in self._fresh:
            if guards.sync and promises(message) and not self._durability.settled:
                held.append((self._durability.last_batch, peer, self._connections.epoch(peer), message))
            else:
                sends.append((peer, message))
        self._fresh.clear()
        return sends
