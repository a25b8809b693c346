"""The exporter of a node: of all nodes that have the option, the one with the lease copies the history to a sink."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from resourcelease.events.readers import EXPORTS, POSITION, REGISTERED, standing_item
from resourcelease.events.runner import Runner, Source
from resourcelease.events.sink import Sink, SinkError
from resourcelease.events.stores import sink_at
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Complete, Configure, Enqueue, GiveBack, Heartbeat, Lease, Op
from resourcelease.model.results import Acked, Granted, Result

__all__ = ["EXPORT_OPTIONS", "REQUEST_ID", "Export", "Exporter", "Replicated", "export_name"]

logger = logging.getLogger(__name__)

REQUEST_ID = "the-one-exporter"
_LEASE_MS = 15_000
# Every change of exporter that was not in order costs the item an attempt.
EXPORT_OPTIONS = {"max_attempts": 1 << 20, "lease_duration_ms": _LEASE_MS, "dedup_window_ms": 0}


class Replicated(Protocol):
    """What the exporter asks of the node: its state, and to have ops applied."""

    @property
    def machine(self) -> Machine:
        """The state here."""

    async def run(self, op: Op, remaining_s: float | None = None) -> Result:
        """One op; raises if it could not be decided."""


class Export(NamedTuple):
    """What is to be exported, and to where."""

    url: str
    name: str = ""
    # Where an empty sink begins.
    first: int = 1
    batch_events: int = 5_000
    gather_s: float = 1.0


class _Handle(NamedTuple):
    sequence_id: int
    attempt: int
    fence: int


def export_name(url: str) -> str:
    """The name of an export that was given none; the same for whoever exports to one URL.

    >>> export_name("s3://bucket/history")
    '6ed97bce7d52'
    """
    return hashlib.sha256(url.encode()).hexdigest()[:12]


class Exporter:
    """Waits for the lease, and copies while it holds; ``start`` and ``stop`` belong to the loop."""

    look_s = 1.0
    lease_s = _LEASE_MS / 1000.0
    # After a sink that refused, so that another node may try before this one does again.
    rest_s = 30.0
    tell_every_s = 60.0
    stop_s = 4.0

    def __init__(
        self,
        export: Export,
        node_id: str,
        cluster_id: str,
        replica: Replicated,
        source: Source,
        make_sink: Callable[[str], Sink] = sink_at,
    ) -> None:
        self.export = export
        self.name = export.name or export_name(export.url)
        self.namespace = EXPORTS + self.name
        self.peer = f"resourcelease.node/{node_id}"
        self._cluster_id = cluster_id
        self._replica = replica
        self._source = source
        self._make_sink = make_sink
        self._run = f"export-{os.urandom(6).hex()}"
        self._count = count(1)
        self._task: asyncio.Task[None] | None = None
        # What works now; None while another node does.
        self.runner: Runner | None = None
        self.fence = 0

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        """Lets another node go on at once."""
        if self._task is not None:
            self._task.cancel()
            # A store may hang; what it is still told is refused once somebody else writes under a newer fence.
            await asyncio.wait([self._task], timeout=self.stop_s)

    async def _keep(self) -> None:
        while True:
            wait_s = self.look_s
            try:
                handle = await self._take()
                if handle is not None:
                    await self._work(handle)
            except SinkError as error:
                logger.error("export %s: %s: %s", self.name, self.export.url, error)
                wait_s = self.rest_s
            except Exception as error:  # no leader, a full disk, a call that came too late: the next look may do better
                logger.info("export %s waits: %s: %s", self.name, type(error).__name__, error)
            await asyncio.sleep(wait_s)

    async def _take(self) -> _Handle | None:
        """The lease, if nobody has it. While somebody has, this costs the cluster nothing."""
        machine = self._replica.machine
        # One from before a restart, or whose grant was not heard of: a heartbeat will tell whether it holds.
        for held in machine.leases_of(self.namespace, self.peer):
            return _Handle(*held)
        item = standing_item(machine, self.namespace)
        if item is None:
            await self._register()
            return None
        if item.place != "pending":
            return None
        granted = await self._replica.run(Lease(self._call(memorable=True), 1))
        if not isinstance(granted, Granted) or not granted.sequence_ids:
            return None
        handle = _Handle(granted.sequence_ids[0], granted.attempts[0], granted.fences[0])
        if item.item.resource_type != REGISTERED:
            # It stands for exports by the command line, which nothing is kept for.
            await self._configure()
            await self._replica.run(Complete(self._call(memorable=True), *handle))
            await self._register()
            return None
        return handle

    async def _configure(self) -> None:
        await self._replica.run(Configure(self._call(memorable=True), EXPORT_OPTIONS))

    async def _register(self) -> None:
        await self._configure()
        item = ItemColumns(1, REGISTERED, self.namespace, request_id=[REQUEST_ID])
        await self._replica.run(Enqueue(self._call(memorable=True), item.packed()))

    async def _work(self, handle: _Handle) -> None:
        if not await self._beat(handle, None):
            return
        export = self.export
        runner = Runner(
            self._source,
            self._make_sink(export.url),
            self._cluster_id,
            start=export.first,
            head=partial(self._head, handle),
            gather_s=export.gather_s,
            batch_events=export.batch_events,
        )
        self.runner, self.fence = runner, handle.fence
        logger.info("export %s: this node copies to %s, under fence %d", self.name, export.url, handle.fence)
        parts = [asyncio.ensure_future(each) for each in (runner.run(handle.fence), self._hold(handle, runner))]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            self.runner = None
            await runner.close()
            await self._give_back(handle, runner)

    async def _hold(self, handle: _Handle, runner: Runner) -> None:
        """Ends when the lease is lost, or may be: its clock stands still only while there is no leader anywhere."""
        loop = asyncio.get_running_loop()
        good_at = told_at = loop.time()
        told_events, knows = 0, False
        while loop.time() - good_at < self.lease_s:
            if knows:
                await asyncio.sleep(self.lease_s / 3)
            else:
                # Where the copy stands is told as soon as it is known.
                with suppress(TimeoutError):
                    await asyncio.wait_for(runner.opened.wait(), self.lease_s / 3)
            knows = runner.counters.opened
            try:
                asked_at = loop.time()
                async with asyncio.timeout(max(0.1, self.lease_s - (asked_at - good_at))):
                    if not await self._beat(handle, runner):
                        break
                good_at = asked_at
            except Exception as error:
                logger.info("export %s: no heartbeat: %s: %s", self.name, type(error).__name__, error)
            counters, now = runner.counters, loop.time()
            if now - told_at >= self.tell_every_s:
                rate = (counters.events - told_events) / (now - told_at)
                told_at, told_events = now, counters.events
                logger.info(
                    "export %s: up to event %d, %d behind, %.0f a second",
                    self.name,
                    counters.position,
                    counters.lag,
                    rate,
                )
        logger.warning("export %s: the lease under fence %d is lost", self.name, handle.fence)

    async def _head(self, handle: _Handle) -> int:
        # What was committed before the heartbeat is applied here when it is answered, whatever came of it.
        await self._beat(handle, None)
        return self._replica.machine.sequence_number

    async def _beat(self, handle: _Handle, runner: Runner | None) -> bool:
        """Whether the lease holds; every node learns how far the copy is."""
        told = {POSITION: str(runner.counters.position)} if runner is not None and runner.counters.opened else None
        call = self._call()._replace(metadata=told)
        acked = await self._replica.run(Heartbeat(call, [handle.sequence_id], [handle.attempt], [handle.fence]))
        return isinstance(acked, Acked) and not acked.refused

    async def _give_back(self, handle: _Handle, runner: Runner) -> None:
        with suppress(Exception):  # it runs out by itself
            async with asyncio.timeout(2.0):
                await self._beat(handle, runner)
                ids, attempts, fences = ([number] for number in handle)
                await self._replica.run(GiveBack(self._call(memorable=True), ids, attempts, fences))

    def _call(self, *, memorable: bool = False) -> Call:
        operation_id = f"{self._run}.{next(self._count)}" if memorable else ""
        return Call(self.namespace, self.peer, "", operation_id)
