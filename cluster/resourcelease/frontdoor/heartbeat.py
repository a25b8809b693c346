"""When a stream heartbeats for its worker."""

import asyncio
from collections.abc import Callable

from resourcelease.model.options import QueueOptions

__all__ = ["Pulse"]

_LEAST_S = 0.02


class Pulse:
    """Calls ``beat`` often enough that no lease runs out, unless the worker heartbeats by itself."""

    def __init__(self, beat: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._beat = beat
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self.every_s = 10.0

    def start(self, options: QueueOptions) -> None:
        """Begins, in time for the first lease."""
        every_ms = min(options.heartbeat_interval_ms, options.lease_duration_ms // 3, options.peer_grace_ms // 3)
        self.every_s = max(every_ms / 1000.0, _LEAST_S)
        self._timer = self._loop.call_later(self.every_s, self._due)

    def heard(self) -> None:
        """The worker has sent a heartbeat of its own."""
        self._heard_at = self._loop.time()

    def stop(self) -> None:
        """Ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        if self._loop.time() - self._heard_at >= self.every_s / 2:
            self._beat()
        self._timer = self._loop.call_later(self.every_s, self._due)
