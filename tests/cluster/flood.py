"""Lifecycles in large calls, as fast as a cluster takes them, and a subscriber that misses nothing."""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from resourcelease import v1
from resourcelease.model import limits
from resourcelease.v1.admin_service_pb2_grpc import AdminServiceStub
from resourcelease.v1.event_service_pb2_grpc import EventServiceStub
from resourcelease.v1.lease_service_pb2_grpc import LeaseServiceStub

# After these a call is made again under its operation id. gRPC itself cancels what a stopping node had not begun.
_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
]


def cut_segments_at(size: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of another size, here and in the processes of nodes, which import what is written here unasked."""
    monkeypatch.setattr(limits, "SEGMENT_BYTES", size)
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"from resourcelease.model import limits\n\nlimits.SEGMENT_BYTES = {size}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))


class Flood:
    """Some callers that each enqueue, lease and complete in calls of ``size`` items; in ``async with``.

    A call whose answer was lost is asked again under its operation id, on another node, until it is answered; so what
    is counted here is what the history has to hold, neither more nor less.
    """

    def __init__(self, endpoints: list[str], *, callers: int, size: int, namespaces: list[str]) -> None:
        # Where to call, and may be changed while it does.
        self.endpoints = endpoints
        self._callers = callers
        self._size = size
        self._namespaces = namespaces
        self._run = os.urandom(4).hex()
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._ending = asyncio.Event()
        # What was answered: items by namespace and what was done with them.
        self.done: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> "Flood":
        self._tasks = [asyncio.ensure_future(self._work(number)) for number in range(self._callers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.finish()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for channel in self._channels.values():
                await channel.close()

    @property
    def events(self) -> int:
        """Events that the answered calls made, one an item."""
        return sum(self.done.values())

    async def finish(self) -> None:
        """Begins no more cycles, and waits until those that are under way have ended."""
        self._ending.set()
        await asyncio.gather(*self._tasks)

    async def reach(self, events: int) -> None:
        """Waits until so many events were made."""
        while self.events < events:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def _work(self, number: int) -> None:
        namespace = self._namespaces[number % len(self._namespaces)]
        items = [
            v1.ItemPayload(resource_type="table", resource_id=f"{number}-{place}", body=b"x" * 16)
            for place in range(self._size)
        ]
        shared: dict[str, Any] = {"namespace": namespace, "peer_id": f"flood-{number}"}
        for turn in itertools.count():
            if self._ending.is_set():
                return
            name = f"{self._run}-{number}-{turn}"
            put = v1.EnqueueRequest(operation_id=f"{name}-put", items=items, **shared)
            told = await self._ask("Enqueue", put, number)
            self._count(namespace, "ENQUEUE", sum(result.HasField("enqueued") for result in told.results))
            take = v1.LeaseRequest(operation_id=f"{name}-take", max_items=self._size, **shared)
            leases = (await self._ask("Lease", take, number)).leases
            self._count(namespace, "LEASE_GRANTED", len(leases))
            if leases:
                entries = [v1.CompleteEntry(handle=lease.handle) for lease in leases]
                done = v1.CompleteRequest(operation_id=f"{name}-done", entries=entries, **shared)
                told = await self._ask("Complete", done, number)
                bad = [result for result in told.results if result.HasField("error")]
                assert not bad, bad[:3]
                self._count(namespace, "COMPLETED", len(leases))

    def _count(self, namespace: str, what: str, size: int) -> None:
        self.done[namespace, what] += size

    async def _ask(self, method: str, request: Any, number: int) -> Any:
        """Asks one node after the other until one answers; always under the same operation id."""
        for attempt in itertools.count(number):
            address = self.endpoints[attempt % len(self.endpoints)]
            if address not in self._channels:
                self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
            stub = LeaseServiceStub(self._channels[address])
            try:
                return await getattr(stub, method)(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    raise
                await asyncio.sleep(0.05)
        raise AssertionError


class Reader:
    """Follows the history from event 1, on a node that may be taken away from it; in ``async with``."""

    def __init__(self, endpoints: list[str]) -> None:
        # Where it may read, and may be changed while it does.
        self.endpoints = endpoints
        self._task: asyncio.Task[None] | None = None
        self.next = 1
        self.head = 0
        # Where it reads now, and where it ever did.
        self.address = ""
        self.addresses: list[str] = []
        self.seen: Counter[tuple[str, int]] = Counter()

    async def __aenter__(self) -> "Reader":
        self._task = asyncio.ensure_future(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def reach(self, number: int) -> None:
        """Waits until it has every event up to this one."""
        await self._until(lambda: self.next > number)

    async def moved_from(self, address: str) -> None:
        """Waits until it reads elsewhere, and has been sent something there."""
        at = self.next
        await self._until(lambda: self.address != address and self.next > at)

    async def _until(self, good: Callable[[], bool]) -> None:
        assert self._task is not None
        while not good():
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.02)

    async def _follow(self) -> None:
        for turn in itertools.count():
            address = self.endpoints[turn % len(self.endpoints)]
            async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
                with suppress(grpc.aio.AioRpcError):
                    call = EventServiceStub(channel).Subscribe(v1.SubscribeRequest(from_sequence=self.next))
                    async for answer in call:
                        self._take(answer, address)
            await asyncio.sleep(0.05)

    def _take(self, answer: v1.SubscribeResponse, address: str) -> None:
        if address != self.address:
            self.address = address
            self.addresses.append(address)
        expected, seen = self.next, self.seen
        for event in answer.events:
            number = event.sequence_number
            assert number == expected, f"event {number} came where {expected} belongs"
            expected += 1
            seen[event.namespace, event.type] += 1
        assert answer.next_sequence == expected
        self.next, self.head = expected, answer.head_sequence


async def status_of(address: str, *, linearizable: bool = True) -> v1.StatusResponse:
    """What a node says of itself, everything that was acknowledged before included if ``linearizable``."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        answer: v1.StatusResponse = await AdminServiceStub(channel).Status(
            v1.StatusRequest(linearizable=linearizable), timeout=30, wait_for_ready=True
        )
        return answer
