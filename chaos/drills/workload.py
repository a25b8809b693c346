"""Clients at work: they enqueue, lease, write, heartbeat, ack in time, late and twice, fail, and die holding leases."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from chaos.drills.history import OK, REFUSED, UNKNOWN, Call, History
from chaos.drills.store import ProtectedStore
from resourcelease.client import (
    Client,
    Lease,
    OutcomeUnknown,
    ResourceLeaseError,
)

__all__ = ["Plan", "Workload"]

_REQUEST = "request-"
# Of an hour for which a request id is remembered after its item has ended, half.
_REMEMBERED_S = 1800.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done at the same time, and for how long leases run."""

    producers: int = 6
    workers: int = 10
    stream_workers: int = 2
    # Items that are open at most, and items enqueued a second in all.
    open_max: int = 250
    rate: float = 120.0
    lease_ms: int = 2_500
    timeout_s: float = 12.0


class Workload:
    """Producers and workers on some clients, all of whose calls go into the history."""

    def __init__(self, endpoints: Iterable[str], plan: Plan, history: History, seed: int) -> None:
        self._plan = plan
        self._history = history
        self._chance = random.Random(seed)
        self.store = ProtectedStore()
        self._clients = [
            Client(list(endpoints), peer_id=f"drill-{number}", timeout=plan.timeout_s) for number in range(3)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._producing: list[asyncio.Task[None]] = []
        self._ended = False
        # How many there have been; each has its number in its name.
        self.requests = 0
        self._open: set[int] = set()
        self._late: set[asyncio.Task[None]] = set()

    @property
    def streams(self) -> list[str]:
        """The workers on streams."""
        return [f"stream-{number}" for number in range(self._plan.stream_workers)]

    @staticmethod
    def number_of(request: str) -> int:
        """Which request it is, from 1 on."""
        return int(request.removeprefix(_REQUEST) or 0)

    def start(self) -> None:
        """Begins."""
        plan, loop = self._plan, asyncio.get_running_loop()
        self._producing = [loop.create_task(self._produce(number)) for number in range(plan.producers)]
        self._tasks = [loop.create_task(self._work(number)) for number in range(plan.workers)]
        self._tasks += [loop.create_task(self._stream(number, name)) for number, name in enumerate(self.streams)]

    async def stop_producing(self) -> None:
        """Nothing new; calls under way end first."""
        self._ended = True
        await asyncio.gather(*self._producing)

    async def stop(self) -> None:
        """Everyone goes home; what they still hold runs out."""
        self._ended = True
        for task in (*self._producing, *self._tasks, *self._late):
            task.cancel()
        await asyncio.gather(*self._producing, *self._tasks, *self._late, return_exceptions=True)
        for client in self._clients:
            await client.close()

    def check(self) -> None:
        """Raises what somebody met that should not have been met."""
        for task in (*self._producing, *self._tasks):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    # Producers.

    async def _produce(self, number: int) -> None:
        client, name = self._clients[number % len(self._clients)], f"producer-{number}"
        pause = self._plan.producers / self._plan.rate
        while not self._ended:
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))
            if len(self._open) >= self._plan.open_max:
                continue
            self.requests += 1
            request = f"{_REQUEST}{self.requests}"
            await self._enqueue(client, name, request)
            if self._chance.random() < 0.03:
                await self._enqueue(client, name, request)
            if self._chance.random() < 0.05:
                # Long after: mostly of an item that has ended, and from before the last fault. But not so long that the
                # cluster may have forgotten it.
                oldest = max(1, self.requests - int(self._plan.rate * _REMEMBERED_S))
                await self._enqueue(client, name, f"{_REQUEST}{self._chance.randint(oldest, self.requests)}")

    async def _enqueue(self, client: Client, name: str, request: str) -> None:
        call = self._begin(name, "enqueue", request=request)
        delay = 0.3 if self._chance.random() < 0.05 else 0.0

        async def ask() -> None:
            done = await client.enqueue("row", request, b"{}", request_id=request, delay=delay)
            call.item = done.sequence_id
            call.detail = "again" if done.duplicate else ""
            if not done.duplicate:
                self._open.add(done.sequence_id)

        await self._tell(call, ask())

    # Workers.

    async def _work(self, number: int) -> None:
        client, name = self._clients[number % len(self._clients)], f"worker-{number}"
        habits: list[tuple[Callable[[Client, str, Lease], Awaitable[None]], int]] = [
            (self._steady, 60),
            (self._beating, 10),
            (self._failing, 8),
            (self._giving_back, 5),
            (self._twice, 6),
            (self._too_late, 4),
            (self._dying, 4),
            (self._burying, 3),
        ]
        while True:
            leases = await self._lease(client, name, self._chance.choice((1, 1, 2, 4)))
            for lease in leases:
                habit = self._chance.choices([each for each, _ in habits], [weight for _, weight in habits])[0]
                await habit(client, name, lease)

    async def _lease(self, client: Client, name: str, many: int) -> list[Lease]:
        call = self._begin(name, "lease")
        leases: list[Lease] = []

        async def ask() -> None:
            leases.extend(await client.lease(many, wait=1.0, peer_id=f"{client.peer_id}/{name}"))

        try:
            await self._tell(call, ask())
        finally:
            for lease in leases:
                self._granted(name, lease, call.start)
        if call.outcome != OK:
            await asyncio.sleep(0.1)
        return leases

    def _granted(self, name: str, lease: Lease, start: float) -> None:
        call = self._of(name, "grant", lease)
        call.start, call.end, call.outcome = start, self._history.now(), OK
        call.request = lease.payload.request_id
        self._history.add(call)

    async def _steady(self, client: Client, name: str, lease: Lease) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 0.05))
        self._write(name, lease)
        await self._complete(client, name, lease)

    async def _beating(self, client: Client, name: str, lease: Lease) -> None:
        for _ in range(2):
            await asyncio.sleep(self._plan.lease_ms / 1000 * 0.3)
            call = self._of(name, "beat", lease)
            await self._tell(call, client.heartbeat(lease.handle, peer_id=lease.peer_id))
        await self._steady(client, name, lease)

    async def _failing(self, client: Client, name: str, lease: Lease) -> None:
        call = self._of(name, "fail", lease)
        await self._tell(call, client.fail(lease.handle, "not today", code="LATER", peer_id=lease.peer_id))

    async def _burying(self, client: Client, name: str, lease: Lease) -> None:
        call = self._of(name, "bury", lease)
        work = client.fail(lease.handle, "never", code="NEVER", requeue=False, peer_id=lease.peer_id)
        await self._tell(call, work)
        if call.outcome == OK:
            self._open.discard(lease.sequence_id)

    async def _giving_back(self, client: Client, name: str, lease: Lease) -> None:
        call = self._of(name, "give-back", lease)
        await self._tell(call, client.give_back(lease.handle, peer_id=lease.peer_id))

    async def _twice(self, client: Client, name: str, lease: Lease) -> None:
        self._write(name, lease)
        await self._complete(client, name, lease)
        await self._complete(client, name, lease)

    async def _dying(self, client: Client, name: str, lease: Lease) -> None:
        """Takes it to the grave."""

    async def _too_late(self, client: Client, name: str, lease: Lease) -> None:
        """Somebody who slept past the deadline and does not know it; others go on meanwhile."""

        async def late() -> None:
            await asyncio.sleep(self._plan.lease_ms / 1000 * self._chance.uniform(0.8, 1.6))
            self._write(name, lease)
            await self._complete(client, name, lease)

        task = asyncio.create_task(late())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _complete(self, client: Client, name: str, lease: Lease) -> None:
        call = self._of(name, "complete", lease)
        await self._tell(call, client.complete(lease.handle, peer_id=lease.peer_id))
        if call.outcome != REFUSED:
            self._open.discard(lease.sequence_id)

    async def _stream(self, number: int, name: str) -> None:
        """A worker on a stream, as the client's documentation has it."""
        client = self._clients[number % len(self._clients)]
        loop = asyncio.get_running_loop()
        while True:
            asked = self._history.now()
            try:
                async with client.leases(f"{client.peer_id}/{name}", 8, exclusive=True) as stream:
                    async for lease in stream:
                        self._granted(name, lease, asked)
                        if lease.deadline > loop.time():
                            await self._under(name, lease)
                        else:
                            self._may_go_back(name, lease)
            except ResourceLeaseError:
                await asyncio.sleep(0.2)

    async def _under(self, name: str, lease: Lease) -> None:
        call = self._of(name, "complete", lease)
        try:
            async with lease:
                await asyncio.sleep(self._chance.uniform(0.0, 0.03))
                self._write(name, lease)
                call.start = self._history.now()
            call.outcome = OK
            self._open.discard(lease.sequence_id)
        except ResourceLeaseError as error:
            # Also said by the client itself, by its own clock; the ack may have gone out before.
            call.outcome, call.detail = UNKNOWN, error.reason
        finally:
            call.end = self._history.now()
            self._history.add(call)
            if call.outcome != OK:
                self._may_go_back(name, lease)

    def _may_go_back(self, name: str, lease: Lease) -> None:
        """A stream gives back what was not settled, and tells nobody."""
        self._history.add(self._of(name, "give-back", lease))

    def _write(self, name: str, lease: Lease) -> None:
        call = self._of(name, "write", lease)
        taken = self.store.write(lease.sequence_id, fence=lease.fence, writer=name)
        call.outcome, call.end = OK if taken else REFUSED, call.start
        self._history.add(call)

    # The books.

    def _begin(self, name: str, kind: str, request: str = "") -> Call:
        return Call(name, kind, self._history.now(), 0.0, UNKNOWN, request=request)

    def _of(self, name: str, kind: str, lease: Lease) -> Call:
        now = self._history.now()
        return Call(name, kind, now, now, UNKNOWN, lease.sequence_id, lease.attempt, lease.fence)

    async def _tell(self, call: Call, asking: Awaitable[None]) -> None:
        """Waits for a call and writes down how it ended."""
        try:
            await asking
            call.outcome = OK
        except OutcomeUnknown as error:
            call.detail = error.reason if call.kind != "lease" else ""
        except ResourceLeaseError as error:
            call.outcome, call.detail = REFUSED, error.reason
        finally:
            call.end = self._history.now()
            self._history.add(call)
