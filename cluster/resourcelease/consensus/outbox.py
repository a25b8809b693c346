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

    def covered(self, term: int) -> list[tuple[str, Message]]:
        """What waited for the disk, and need not any more."""
        sends: list[tuple[str, Message]] = []
        held = self._held
        while held and self._durability.covers(held[0][0]):
            _, peer, epoch, message = held.popleft()
            in_time = message["term"] == term or not self._guards.term
            if in_time and self._connections.current(peer, epoch):
                sends.append((peer, message))
        return sends

    def leave(self, term: int) -> list[tuple[str, Message]]:
        """What leaves now, in order; the batch of this turn has its number already."""
        sends = self.covered(term)
        for peer, message in self._fresh:
            if self._guards.sync and promises(message) and not self._durability.settled:
                self._held.append((self._durability.last_batch, peer, self._connections.epoch(peer), message))
            else:
                sends.append((peer, message))
        self._fresh.clear()
        return sends
