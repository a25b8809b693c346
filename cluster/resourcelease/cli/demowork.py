"""The demo's workload: producers, workers, a store that checks fences, and books about everything acknowledged."""

import asyncio
import random
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resourcelease.client import Client, Lease, LeaseStream

__all__ = ["Ledger", "Workload"]

# Items that are under way at most, so that the producers do not run away from the workers.
MOST_OPEN = 1_500
PRODUCERS = 32
TASKS_PER_WORKER = 8
# How many items of one resource: their order is nobody's business, their fences are.
RESOURCES = 1_000


class Ledger:
    """What was acknowledged, as those who got the answers know it.

    Everything is judged in one process on one clock. A second grant is one that comes while an earlier lease of the
    same item is neither settled, nor lost, nor past its deadline, or whose fence does not rise.
    """

    def __init__(self) -> None:
        self.enqueued: dict[int, float] = {}
        self.completed: dict[int, float] = {}
        self.double_grants = 0
        self.grants = 0
        self.stale_writes = 0
        self.lost_leases = 0
        self.acknowledged_at: list[float] = []
        self._live: dict[int, Lease] = {}
        self._fences: dict[int, int] = {}
        self._store: dict[str, int] = {}

    def granted(self, lease: "Lease", now: float) -> None:
        """A worker was handed an item."""
        self.grants += 1
        item = lease.sequence_id
        before = self._live.get(item)
        live = before is not None and not before.settled and before.error is None and before.deadline > now
        if live or lease.fence <= self._fences.get(item, 0) or item in self.completed:
            self.double_grants += 1
        self._live[item] = lease
        self._fences[item] = lease.fence

    def write(self, item: int, fence: int) -> bool:
        """The protected store, with one row an item: refuses a fence that is older than the newest it has seen."""
        row = f"item-{item}"
        if fence < self._store.get(row, 0):
            self.stale_writes += 1
            return False
        self._store[row] = fence
        return True

    def note_enqueued(self, item: int, now: float) -> None:
        """The cluster said that it has the item."""
        self.enqueued[item] = now
        self.acknowledged_at.append(now)

    def note_completed(self, item: int, now: float) -> None:
        """The cluster said that the item is done. Twice would be two verdicts."""
        if item in self.completed:
            self.double_grants += 1
        self.completed[item] = now
        self._live.pop(item, None)
        self.acknowledged_at.append(now)

    @property
    def missing(self) -> list[int]:
        """Items that were acknowledged and whose end was not."""
        return [item for item in self.enqueued if item not in self.completed]

    def longest_silence(self, since: float, until: float) -> float:
        """The longest time without any acknowledgement in a span that begins with something."""
        points = [since, *(at for at in self.acknowledged_at if since < at <= until)]
        return max((later - earlier for earlier, later in pairwise(points)), default=0.0)


class Workload:
    """Producers and workers on their own clients, until they are told to stop."""

    def __init__(self, producer: "Client", workers: "list[Client]", ledger: Ledger) -> None:
        self.ledger = ledger
        self._producer = producer
        self._workers = workers
        self._streams: list[LeaseStream] = []
        self._producing: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        self._chance = random.Random(1)  # noqa: S311
        self._ended = False

    def start(self) -> None:
        """Begins to produce and to work."""
        loop = asyncio.get_running_loop()
        self._producing = [loop.create_task(self._produce()) for _ in range(PRODUCERS)]
        for number, client in enumerate(self._workers, 1):
            stream = client.leases(f"worker-{number}", 4 * TASKS_PER_WORKER, exclusive=True)
            self._streams.append(stream)
            self._working += [loop.create_task(self._work(stream)) for _ in range(TASKS_PER_WORKER)]

    async def stop_producing(self) -> None:
        """No new items; those under way are acknowledged first."""
        producing, self._producing = self._producing, []
        self._ended = True
        await asyncio.gather(*producing)

    async def stop(self) -> None:
        """Ends everything."""
        for task in (*self._producing, *self._working):
            task.cancel()
        await asyncio.gather(*self._producing, *self._working, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    def check(self) -> None:
        """Raises what a worker or a producer met that it should not have met."""
        for task in (*self._producing, *self._working):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _produce(self) -> None:
        ledger, loop = self.ledger, asyncio.get_running_loop()
        while not self._ended:
            if len(ledger.enqueued) - len(ledger.completed) > MOST_OPEN:
                await asyncio.sleep(0.01)
                continue
            resource = f"table-{self._chance.randrange(RESOURCES)}"
            enqueued = await self._producer.enqueue("table", resource, b'{"day": 1}')
            ledger.note_enqueued(enqueued.sequence_id, loop.time())

    async def _work(self, stream: "LeaseStream") -> None:
        from resourcelease.client import AlreadySettled, LeaseLost, NotFound

        ledger, loop = self.ledger, asyncio.get_running_loop()
        async for lease in stream:
            if lease.deadline <= loop.time():
                # It ran out while it waited for us: nothing that one may begin with.
                continue
            ledger.granted(lease, loop.time())
            try:
                async with lease:
                    ledger.write(lease.sequence_id, lease.fence)
                ledger.note_completed(lease.sequence_id, loop.time())
            except (LeaseLost, AlreadySettled, NotFound):
                # Taken away while it was worked on: it is somebody else's, under a higher fence.
                ledger.lost_leases += 1
