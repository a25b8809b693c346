"""Keeps leases alive while somebody works under them, and says at once when one is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

from resourcelease import v1
from resourcelease.client.errors import LeaseLost, ResourceLeaseError, error_of_item
from resourcelease.client.lease import Lease

__all__ = ["Keeper", "settle_heartbeats"]

# A heartbeat carries so many leases.
MOST_HANDLES = 5_000
# Never more often than this.
LEAST_INTERVAL = 0.02


def settle_heartbeats(leases: Sequence[Lease], answer: v1.HeartbeatResponse, sent_at: float) -> list[Lease]:
    """Moves the deadlines of leases that were extended, marks the others as lost, and returns those."""
    deadline = sent_at + answer.remaining_ms / 1000
    lost = []
    for lease, result in zip(leases, answer.results, strict=True):
        if result.HasField("error"):
            lease.lose(error_of_item(result.error))
            lost.append(lease)
        else:
            lease.deadline = max(lease.deadline, deadline)
    return lost


class Keeper:
    """The leases that one peer holds, and their heartbeats.

    ``beat`` sends one heartbeat for some leases and returns the answer. Each lease also has its deadline counted here:
    one that could not be extended in time is lost, whoever is to blame.
    """

    def __init__(
        self,
        beat: Callable[[list[Lease]], Awaitable[v1.HeartbeatResponse]],
        interval: float,
        on_lost: Callable[[ResourceLeaseError], None] | None = None,
        on_expired: Callable[[list[Lease]], None] | None = None,
    ) -> None:
        self.interval = max(interval, LEAST_INTERVAL)
        self.held: dict[int, Lease] = {}
        self._beat = beat
        self._on_lost = on_lost
        # Told of leases that ran out by our own clock; the cluster may still see them as held.
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, lease: Lease) -> None:
        """Holds a lease from now on."""
        self.held[lease.fence] = lease
        if self._timer is None or lease.deadline < self._timer_at:
            self._arm(lease.deadline)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def discard(self, lease: Lease) -> None:
        """Holds it no more."""
        self.held.pop(lease.fence, None)

    def lose(self, fence: int, error: ResourceLeaseError) -> None:
        """Marks the lease with this fence as lost, if it is held."""
        lease = self.held.pop(fence, None)
        if lease is not None:
            self._tell(lease, error)

    async def close(self) -> None:
        """Lets go of everything."""
        self.held.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self.held:
                await asyncio.sleep(self.interval)
                leases = list(self.held.values())
                for start in range(0, len(leases), MOST_HANDLES):
                    await self._extend(leases[start : start + MOST_HANDLES])
        finally:
            self._task = None

    async def _extend(self, leases: list[Lease]) -> None:
        sent_at = self._loop.time()
        # What stays unanswered runs into its deadline, which is counted here.
        with contextlib.suppress(ResourceLeaseError):
            answer = await self._beat(leases)
            self._forget(settle_heartbeats(leases, answer, sent_at))

    def _forget(self, lost: Iterable[Lease]) -> None:
        for lease in lost:
            self.held.pop(lease.fence, None)
            if self._on_lost is not None and lease.error is not None:
                self._on_lost(lease.error)

    def _tell(self, lease: Lease, error: ResourceLeaseError) -> None:
        lease.lose(error)
        if self._on_lost is not None:
            self._on_lost(error)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Not every loop's handle says when it is due.
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        expired = [lease for lease in self.held.values() if lease.deadline <= now]
        for lease in expired:
            error = LeaseLost(f"the lease on item {lease.sequence_id} ran out before a heartbeat was answered")
            self.lose(lease.fence, error)
        if expired and self._on_expired is not None:
            self._on_expired(expired)
        if self.held:
            self._arm(min(lease.deadline for lease in self.held.values()))
