"""The load of one client process: workers in a closed loop, at a steady rate, or while a leader dies."""

import asyncio
import contextlib
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from bench.comparison.ledger import Ledger
from bench.peers.base import Session, Worker

__all__ = ["STEPS", "Load"]

STEPS = ("enqueue", "lease", "complete", "whole")
# After its time is up a load may finish what it has begun.
FINISH_SECONDS = 20.0
# While a leader dies: a new life begins so often, on one of so many workers.
_BEGIN_SECONDS = 0.02
_SPARE_WORKERS = 128


class Load:
    """Workers over one session. Times are kept of what ends within the window."""

    def __init__(self, session: Session, ledger: Ledger, client: int) -> None:
        self._session = session
        self._ledger = ledger
        self._client = client
        self._workers: list[tuple[str, Worker]] = []
        self._window = (0.0, 0.0)
        self._done = 0
        self._times = {step: array("d") for step in STEPS}
        self._hammering: asyncio.Task[None] | None = None
        self.successes: list[tuple[float, float]] = []
        self.lives: list[tuple[float, float]] = []
        self.errors: dict[str, int] = {}

    async def prepare(self, workers: int) -> None:
        """Makes the workers that are missing."""
        for number in range(len(self._workers), workers):
            name = f"worker-{self._client}-{number}"
            self._workers.append((name, await self._session.worker(name)))

    async def closed(self, workers: int, batch: int, warm: float, seconds: float) -> dict[str, Any]:
        """Each worker begins the next life when the last one is over."""
        self._begin(warm, seconds)

        async def work(name: str, worker: Worker) -> None:
            while time.monotonic() < self._window[1]:
                await self._life(name, worker, batch, time.monotonic())
            await worker.close()

        await self._all([work(name, worker) for name, worker in self._workers[:workers]], warm + seconds)
        del self._workers[:workers]
        return self._result(seconds)

    async def steady(self, workers: int, rate: float, warm: float, seconds: float) -> dict[str, Any]:
        """Lives begin at a rate, whether the peer keeps up or not; waiting for a worker counts."""
        self._begin(warm, seconds)
        due: asyncio.Queue[float | None] = asyncio.Queue()

        async def arrive() -> None:
            begun = time.monotonic()
            for number in range(int(rate * (warm + seconds))):
                at = begun + number / rate
                if (early := at - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                due.put_nowait(at)
            for _ in range(workers):
                due.put_nowait(None)

        async def work(name: str, worker: Worker) -> None:
            while (at := await due.get()) is not None:
                await self._life(name, worker, 1, at)
            await worker.close()

        tasks = [work(name, worker) for name, worker in self._workers[:workers]]
        await self._all([arrive(), *tasks], warm + seconds)
        del self._workers[:workers]
        return self._result(seconds)

    def _begin(self, warm: float, seconds: float) -> None:
        now = time.monotonic()
        self._window = (now + warm, now + warm + seconds)
        self._done = 0
        self._times = {step: array("d") for step in STEPS}

    async def _all(self, works: list[Any], seconds: float) -> None:
        async with asyncio.timeout(seconds + FINISH_SECONDS), asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)

    async def _life(self, name: str, worker: Worker, batch: int, due: float) -> None:
        """So many items: put in, taken out (perhaps others), ended."""
        items = self._ledger.draw(batch)
        start = time.monotonic()
        await worker.enqueue(items)
        self._ledger.note_enqueued(items)
        enqueued = time.monotonic()
        self._keep("enqueue", enqueued - start, enqueued)
        left = batch
        while left:
            begun = time.monotonic()
            claims = await worker.lease(left)
            self._ledger.note_leased([claim.number for claim in claims], name)
            leased = time.monotonic()
            self._keep("lease", leased - begun, leased)
            await worker.complete(claims)
            self._ledger.note_completed([claim.number for claim in claims], name)
            done = time.monotonic()
            self._keep("complete", done - leased, done)
            left -= len(claims)
            if self._window[0] <= done < self._window[1]:
                self._done += len(claims)
        self._keep("whole", done - due, done)

    def _keep(self, step: str, took: float, at: float) -> None:
        if self._window[0] <= at < self._window[1]:
            self._times[step].append(took)

    def _result(self, seconds: float) -> dict[str, Any]:
        """Times in microseconds."""
        times = {step: [round(took * 1e6) for took in kept] for step, kept in self._times.items()}
        return {"rate": self._done / seconds, "times_us": times}

    # While a leader dies.

    async def hammer(self) -> None:
        """Begins a life every few milliseconds, and counts errors instead of raising them, until ``rest``."""
        await self.prepare(_SPARE_WORKERS)
        self._hammering = asyncio.create_task(self._hammer())

    async def _hammer(self) -> None:
        idle = list(self._workers)
        under_way: dict[asyncio.Task[None], None] = {}

        async def live(name: str, worker: Worker) -> None:
            try:
                await self._try(name, worker)
            except Exception as error:
                kind = type(error).__name__
                self.errors[kind] = self.errors.get(kind, 0) + 1
            finally:
                idle.append((name, worker))

        try:
            while True:
                if idle:
                    task = asyncio.create_task(live(*idle.pop(0)))
                    under_way[task] = None
                    task.add_done_callback(under_way.pop)
                await asyncio.sleep(_BEGIN_SECONDS)
        finally:
            if under_way:
                _, late = await asyncio.wait(under_way, timeout=FINISH_SECONDS / 4)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    async def _try(self, name: str, worker: Worker) -> None:
        begun = time.monotonic()
        await self._step(lambda: self._put(worker))
        # No step that counts: a client may have had the lease in hand before the leader died.
        claims = await worker.lease(1)
        await self._step(lambda: worker.complete(claims))
        self._ledger.completed.extend(claim.number for claim in claims)
        self.lives.append((begun, time.monotonic()))

    async def _put(self, worker: Worker) -> None:
        items = self._ledger.draw(1)
        await worker.enqueue(items)
        self._ledger.note_enqueued(items)

    async def _step(self, call: Callable[[], Awaitable[Any]]) -> Any:
        begun = time.monotonic()
        result = await call()
        self.successes.append((begun, time.monotonic()))
        return result

    async def rest(self) -> None:
        """Ends the hammering."""
        if self._hammering is not None:
            self._hammering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._hammering
            self._hammering = None

    async def drain(self, seconds: float) -> None:
        """Completes what is still there, as far as it can be had in time."""
        end = time.monotonic() + seconds

        async def work(worker: Worker) -> None:
            while time.monotonic() < end:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(min(3.0, seconds)):
                        claims = await worker.lease(1)
                        await worker.complete(claims)
                        self._ledger.completed.extend(claim.number for claim in claims)

        async def watch() -> None:
            while await self._session.depth():  # noqa: ASYNC110 - a peer sets no event
                await asyncio.sleep(0.2)

        workers = [asyncio.create_task(work(worker)) for _, worker in self._workers[:8]]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await watch()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
