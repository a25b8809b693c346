"""What a stream has to send, in order, by one writer at the pace of its reader."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from resourcelease import v1
from resourcelease.frontdoor.departures import Departures, Leaving
from resourcelease.model.results import Granted

__all__ = ["Outbox", "Push"]

_MESSAGES_MAX = 128


class Push(NamedTuple):
    """Leases on their way to the worker."""

    granted: Granted
    # The loop's time when they were granted, from which ``granted.left_ms`` counts.
    at: float


class Outbox(Departures):
    """Messages that wait. Those already made go first to last; losses are gathered into one.

    ``pushed`` makes a message of leases as they leave; ``gone`` hears of each message that has left.
    """

    def __init__(
        self, leaving: Leaving, pushed: Callable[[Push], v1.WorkResponse | None], gone: Callable[[], None]
    ) -> None:
        super().__init__(leaving)
        self._pushed = pushed
        self._tell_gone = gone
        self._queue: deque[Push | v1.WorkResponse] = deque()
        self._lost: list[v1.LostLease] = []

    def put(self, message: Push | v1.WorkResponse) -> None:
        """Adds a message at the end."""
        self._queue.append(message)
        self._came()

    def put_lost(self, lost: v1.LostLease) -> None:
        """Adds the news of a lost lease to the next message of its kind."""
        self._lost.append(lost)
        self._came()

    def take_pushes(self) -> list[Granted]:
        """Leases that have not left yet, taken out again."""
        pushes = [each for each in self._queue if isinstance(each, Push)]
        self._queue = deque(each for each in self._queue if not isinstance(each, Push))
        return [push.granted for push in pushes]

    @property
    def pushing(self) -> bool:
        """Whether leases wait here."""
        return any(isinstance(each, Push) for each in self._queue)

    @property
    def full(self) -> bool:
        """Whether as many messages wait as may."""
        return len(self._queue) >= _MESSAGES_MAX

    def _waits(self) -> bool:
        return bool(self._queue or self._lost)

    def _take(self) -> v1.WorkResponse | None:
        if self._lost:
            lost, self._lost = self._lost, []
            return v1.WorkResponse(lost=v1.WorkLost(leases=lost))
        message = self._queue.popleft()
        return self._pushed(message) if isinstance(message, Push) else message

    def _gone(self) -> None:
        self._tell_gone()
