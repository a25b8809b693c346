"""Somebody who follows the events while everything breaks, and keeps what they were told."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.drills.history import History
from resourcelease import v1
from resourcelease.client import Client, NotFound, ResourceLeaseError

__all__ = ["Follower", "Told"]


@dataclass(slots=True)
class Told:
    """What a subscriber was told: events in the order they came, and where the history was not to be had."""

    events: list[v1.Event] = field(default_factory=list)
    # First events after those that nodes had forgotten while the subscriber still needed them.
    breaks: list[int] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The newest event."""
        return self.events[-1].sequence_number if self.events else 0


class Follower:
    """A subscription from the first event on, kept up across nodes."""

    def __init__(self, endpoints: Iterable[str], history: History) -> None:
        self._client = Client(list(endpoints), peer_id="drill-follower", timeout=60)
        self._history = history
        self._task: asyncio.Task[None] | None = None
        self.told = Told()

    def start(self) -> None:
        """Begins to follow."""
        self._task = asyncio.create_task(self._follow())

    async def catch_up(self, sequence: int, seconds: float = 20.0) -> bool:
        """Waits until everything up to an event has been told."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.told.last < sequence:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        return self.told.last >= sequence

    async def close(self) -> None:
        """Ends it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _follow(self) -> None:
        start = 1
        while True:
            try:
                async for event in self._client.events(start):
                    self.told.events.append(event)
                    start = event.sequence_number + 1
            except NotFound as error:
                self.told.gaps.append(f"at {self._history.now():.1f} s, event {start}: {error}")
                start = await self._first_there(start)
                self.told.breaks.append(start)
            except ResourceLeaseError:
                await asyncio.sleep(0.2)

    async def _first_there(self, wanted: int) -> int:
        """The next event that the node in use still has."""
        while True:
            with contextlib.suppress(ResourceLeaseError):
                status = await self._client.status()
                if status.first_sequence > wanted:
                    return status.first_sequence
                if status.last_sequence < wanted:
                    return wanted
            wanted += 1
            await asyncio.sleep(0.1)
