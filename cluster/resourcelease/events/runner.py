"""Carries the history to a sink: from where the sink stands, for as long as there is a lease to do so."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from resourcelease import v1
from resourcelease.events.sink import Checkpoint, Sink, SinkError

__all__ = ["Counters", "Runner"]

logger = logging.getLogger(__name__)

_BATCH_EVENTS = 5_000
_WAIT_MIN_S = 0.2
_WAIT_MAX_S = 30.0
# How long a batch that is not full waits for more.
_GATHER_S = 1.0

# From an event on, without an end.
Source = Callable[[int], AsyncGenerator[v1.SubscribeResponse, None]]


@dataclass(slots=True)
class Counters:
    """What the runner has done since its start, and how far behind the sink is."""

    events: int = 0
    batches: int = 0
    retries: int = 0
    # The last event in the sink, and the last that the cluster is known to have.
    position: int = 0
    head: int = 0
    # Whether the sink has said where it stands.
    opened: bool = False

    @property
    def lag(self) -> int:
        """Events that the sink has yet to take."""
        return max(0, self.head - self.position)


class Runner:
    """One source, one sink.

    Whatever the store does not take is tried again, with growing pauses; a ``SinkError`` ends the run.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        cluster_id: str,
        *,
        start: int = 1,
        gather_s: float = _GATHER_S,
        batch_events: int = _BATCH_EVENTS,
    ) -> None:
        self.counters = Counters()
        # The sink has said where it stands, for the first time.
        self.opened = asyncio.Event()
        self._source = source
        self._sink = sink
        self._cluster_id = cluster_id
        self._start = start
        self._gather_s = gather_s
        self._batch_events = batch_events
        # The sink sees one thread only.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sink")

    async def run(self, fence: int, *, until: int = 0) -> None:
        """Goes on until it is cancelled, or the sink has event ``until``."""
        wait_s = _WAIT_MIN_S
        while True:
            before = self.counters.position
            try:
                checkpoint = await self._do(self._sink.open, self._cluster_id, self._start)
                self._note(checkpoint)
                await self._carry(checkpoint, fence, until)
                return
            except SinkError:
                raise
            except Exception as error:  # stores of many kinds fail in many ways, and come back
                wait_s = _WAIT_MIN_S if self.counters.position > before else min(wait_s * 2, _WAIT_MAX_S)
                self.counters.retries += 1
                logger.warning("the sink is tried again in %.1f s: %s: %s", wait_s, type(error).__name__, error)
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Lets go of the sink."""
        await self._do(self._sink.close)
        self._pool.shutdown(wait=False)

    async def _carry(self, checkpoint: Checkpoint, fence: int, until: int) -> None:
        if until and checkpoint.position >= until:
            return
        answers: asyncio.Queue[v1.SubscribeResponse | BaseException] = asyncio.Queue(4)
        reading = asyncio.ensure_future(self._read(checkpoint.position + 1, answers))
        try:
            while not until or self.counters.position < until:
                batch = await self._gathered(answers)
                if batch:
                    self._note(await self._do(self._sink.apply, batch, fence))
                    self.counters.events += len(batch)
                    self.counters.batches += 1
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, first: int, answers: "asyncio.Queue[v1.SubscribeResponse | BaseException]") -> None:
        try:
            async with aclosing(self._source(first)) as source:
                async for answer in source:
                    self.counters.head = max(self.counters.head, answer.head_sequence)
                    await answers.put(answer)
            await answers.put(EOFError("the history ended"))
        except Exception as error:
            await answers.put(error)

    async def _gathered(self, answers: "asyncio.Queue[v1.SubscribeResponse | BaseException]") -> list[v1.Event]:
        """What there is, and a little while's worth more: few large batches cost less than many small ones."""
        batch: list[v1.Event] = []
        until = asyncio.get_running_loop().time() + self._gather_s
        while len(batch) < self._batch_events:
            try:
                async with asyncio.timeout_at(until if batch else None):
                    answer = await answers.get()
            except TimeoutError:
                break
            if isinstance(answer, BaseException):
                if batch:
                    answers.put_nowait(answer)
                    break
                raise answer
            if not batch:
                until = asyncio.get_running_loop().time() + self._gather_s
            batch += answer.events
        return batch

    def _note(self, checkpoint: Checkpoint) -> None:
        self.counters.opened = True
        self.opened.set()
        self.counters.position = checkpoint.position
        self.counters.head = max(self.counters.head, checkpoint.position)

    async def _do(self, work: Callable[..., Any], *values: Any) -> Any:
        # What the thread has begun ends before whoever was cancelled goes on: the sink is never used by two.
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *values)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
