"""How many calls and streams may be under way: on the node, and over one connection's worth of a peer."""

from collections import Counter

from resourcelease.frontdoor.refusals import Refused
from resourcelease.model.errors import Reason

__all__ = ["Gate"]


class Gate:
    """Counts who is inside. A peer here is a connection: what it calls itself is not known before it is inside."""

    def __init__(self, *, calls: int, calls_per_peer: int, streams_per_peer: int) -> None:
        self._calls = calls
        self._calls_per_peer = calls_per_peer
        self._streams_per_peer = streams_per_peer
        self._inside: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._total = 0
        # Why nobody comes in any more.
        self.closed: Refused | None = None

    @property
    def inside(self) -> int:
        """Calls and streams under way."""
        return self._total

    def enter(self, peer: str) -> None:
        """Lets a call in, or raises ``Refused``."""
        if self.closed is not None:
            raise self.closed
        if self._total >= self._calls:
            raise _too_many(f"{self._calls} calls are under way on this node")
        if self._inside[peer] >= self._calls_per_peer:
            raise _too_many(f"{self._calls_per_peer} calls of this client are under way on this node")
        self._total += 1
        self._inside[peer] += 1

    def leave(self, peer: str) -> None:
        """A call is over."""
        self._total -= 1
        _take_off(self._inside, peer)

    def enter_stream(self, peer: str) -> None:
        """Lets a stream in, or raises ``Refused``."""
        if self._streams[peer] >= self._streams_per_peer:
            raise _too_many(f"{self._streams_per_peer} streams of this client are open on this node")
        self.enter(peer)
        self._streams[peer] += 1

    def leave_stream(self, peer: str) -> None:
        """A stream is over."""
        self.leave(peer)
        _take_off(self._streams, peer)


def _take_off(counter: "Counter[str]", peer: str) -> None:
    counter[peer] -= 1
    if counter[peer] <= 0:
        del counter[peer]


def _too_many(message: str) -> Refused:
    return Refused(Reason.QUEUE_FULL, f"{message}, which is as many as may be; try again a little later")
