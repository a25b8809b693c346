"""Waiting for backpressure to end, for the enqueues of this node: they are woken in the order in which they came."""

import asyncio
from collections.abc import Sequence

from resourcelease.model.eventdata import BackpressureData
from resourcelease.model.events import Record

__all__ = ["Relief"]


class Relief:
    """The callers that wait, by namespace."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, dict[asyncio.Future[None], float]] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def wait(self, namespace: str, wait_s: float) -> bool:
        """Waits until backpressure goes off in a namespace; False if the time was over before."""
        woken: asyncio.Future[None] = self._loop.create_future()
        line = self._waiting.setdefault(namespace, {})
        line[woken] = self._loop.time()
        try:
            async with asyncio.timeout(wait_s):
                await woken
            return True
        except TimeoutError:
            return False
        finally:
            line.pop(woken, None)
            if not line and self._waiting.get(namespace) is line:
                del self._waiting[namespace]

    def applied(self, records: Sequence[Record]) -> None:
        """Looks for backpressure that has gone off."""
        if not self._waiting:
            return
        for record in records:
            if isinstance(record.data, BackpressureData) and not record.data.active:
                self.wake(record.namespace)

    def wake(self, namespace: str) -> None:
        """Wakes everybody of a namespace."""
        for woken in self._waiting.pop(namespace, ()):
            if not woken.done():
                woken.set_result(None)

    def wake_older(self, since: float) -> None:
        """Wakes those who have waited since a time."""
        for line in self._waiting.values():
            for woken, began in line.items():
                if began <= since and not woken.done():
                    woken.set_result(None)

    def wake_all(self) -> None:
        """Wakes everybody: the node stops."""
        for namespace in list(self._waiting):
            self.wake(namespace)
