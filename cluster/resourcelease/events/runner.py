"""Carries the history to a sink: from where the sink stands, for as long as there is a lease to do so."""

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from resourcelease import v1
from resourcelease.events.sink import Checkpoint, Mark, NotKept, Sink, SinkError, WrongSource, check_writer

__all__ = ["Counters", "Runner"]

logger = logging.getLogger(__name__)

_BATCH_EVENTS = 5_000
_WAIT_MIN_S = 0.2
_WAIT_MAX_S = 30.0
# How long a batch that is not full waits for more.
_GATHER_S = 1.0
# So long a look at the sink waits for the event that it ends with.
_COMPARE_S = 10.0
_OTHER = "it is the copy of another history. Keep it, and begin another one"

# What does not pass by itself: a path that leads nowhere, or where nobody may write.
_NO_PLACE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS})

# From an event on, without an end.
Source = Callable[[int], AsyncGenerator[v1.SubscribeResponse, None]]
# The last event that the cluster has, no earlier one than when it was asked.
Head = Callable[[], Awaitable[int]]


@dataclass(slots=True)
class Counters:
    """What the runner has done since its start, and how far behind the sink is."""

    events: int = 0
    batches: int = 0
    retries: int = 0
    # The last event in the sink, and the last that the cluster is known to have.
    position: int = 0
    head: int = 0
    # Whether the sink has said where it stands, under the lease that holds.
    opened: bool = False

    @property
    def lag(self) -> int:
        """Events that the sink has yet to take."""
        return max(0, self.head - self.position)


class Runner:
    """One source, one sink.

    Whatever the store does not take is tried again, with growing pauses; a ``SinkError`` ends the run. So does a store
    that has no place for the copy the first time it is opened, one under a newer fence, and one with more events than
    ``head`` says there are, or whose last event is another than the cluster's: that is the copy of a history which the
    cluster has lost.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        cluster_id: str,
        *,
        start: int = 1,
        head: Head | None = None,
        gather_s: float = _GATHER_S,
        batch_events: int = _BATCH_EVENTS,
    ) -> None:
        self.counters = Counters()
        # The sink has said where it stands, since ``run`` began.
        self.opened = asyncio.Event()
        self._source = source
        self._sink = sink
        self._cluster_id = cluster_id
        self._start = start
        self._head = head
        self._gather_s = gather_s
        self._batch_events = batch_events
        # It was once opened, so there is a place for it.
        self._placed = False
        # The sink sees one thread only.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sink")

    async def run(self, fence: int, *, until: int = 0) -> None:
        """Goes on until it is cancelled, or the sink has event ``until``."""
        wait_s = _WAIT_MIN_S
        # Where it stood before is nobody's business: another one may have worked meanwhile.
        self.counters.opened = False
        self.opened.clear()
        while True:
            before = self.counters.position
            try:
                checkpoint = await self._opened()
                check_writer(checkpoint, fence)
                more = not until or checkpoint.position < until
                if more:
                    await self._compare(checkpoint)
                self._note(checkpoint)
                self.counters.opened = True
                self.opened.set()
                if more:
                    await self._carry(checkpoint, fence, until)
                return
            except SinkError:
                raise
            except Exception as error:  # stores of many kinds fail in many ways, and come back
                wait_s = _WAIT_MIN_S if self.counters.position > before else min(wait_s * 2, _WAIT_MAX_S)
                self.counters.retries += 1
                logger.warning("the sink is tried again in %.1f s: %s: %s", wait_s, type(error).__name__, error)
            await asyncio.sleep(wait_s)

    async def check(self) -> None:
        """Raises ``SinkError`` if the sink is known to be none for this history; ``run`` sees to all else.

        Then ``counters`` tell where the sink stands.
        """
        try:
            checkpoint = await self._opened()
            async with asyncio.timeout(_COMPARE_S):
                await self._compare(checkpoint)
            self._note(checkpoint)
        except SinkError:
            raise
        except Exception as error:
            logger.info("the sink was not compared with the history: %s: %s", type(error).__name__, error)

    async def _opened(self) -> Checkpoint:
        try:
            checkpoint: Checkpoint = await self._do(self._sink.open, self._cluster_id, self._start)
        except OSError as error:
            if self._placed or not (isinstance(error, FileNotFoundError) or error.errno in _NO_PLACE):
                raise
            told = f"{error.filename}: {error.strerror}" if error.filename else error
            raise SinkError(f"there is no place for the copy: {told}") from error
        self._placed = True
        # Without a fence nothing was copied yet, and the copy may be meant to begin with an event that is to come.
        if self._head is not None and checkpoint.fence and checkpoint.position > (last := await self._head()):
            raise WrongSource(
                f"the copy goes up to event {checkpoint.position}, and the cluster's history ends with {last}: {_OTHER}"
            )
        return checkpoint

    async def _compare(self, checkpoint: Checkpoint) -> None:
        """``WrongSource`` if the last event of the copy is not the cluster's, as far as the cluster still keeps it."""
        position, mark = checkpoint.position, checkpoint.mark
        if mark is None:
            return
        with suppress(NotKept):
            async with aclosing(self._source(position)) as source:
                async for answer in source:
                    if not answer.events:
                        continue
                    event = answer.events[0]
                    if event.sequence_number == position and Mark.of(event) != mark:
                        raise WrongSource(f"event {position}, the copy's last, is not that of the cluster: {_OTHER}")
                    return

    async def close(self) -> None:
        """Lets go of the sink."""
        await self._do(self._sink.close)
        self._pool.shutdown(wait=False)

    async def _carry(self, checkpoint: Checkpoint, fence: int, until: int) -> None:
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
