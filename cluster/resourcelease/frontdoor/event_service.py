"""EventService: the history as a stream, from a place in it on.

What is old comes from the files, read on threads; what is new from memory, which all subscribers share. Whoever falls
behind what memory holds goes on with the files, and comes back when it has caught up.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import grpc

from resourcelease import v1
from resourcelease.events import Archive
from resourcelease.events.sink import NotKept
from resourcelease.frontdoor.batches import Batch
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.tail import Tail
from resourcelease.frontdoor.wishes import Filter, Spelled
from resourcelease.model.errors import Reason
from resourcelease.storage.segments import CorruptSegment, HistoryGone, HistoryMissing

__all__ = ["Events"]

# A subscriber whose filter lets nothing through hears so often how far it is.
_WORD_EVERY_S = 5.0
_NotHere = (HistoryGone, HistoryMissing, CorruptSegment)


class _Subscriber:
    """Somebody who may have to go on elsewhere: since when, whose wait for news that ends, and why."""

    __slots__ = ("away", "since", "wait")

    def __init__(self, since: float) -> None:
        self.since = since
        self.wait: asyncio.Timeout | None = None
        self.away: Refused | None = None


class Events:
    """Subscribe, and Publish in its time."""

    def __init__(self, tail: Tail, archive: Archive) -> None:
        self._tail = tail
        self._archive = archive
        self._spelled = Spelled()
        self._stopping: Refused | None = None
        # Those who have all there is, and wait for news.
        self._idle: set[_Subscriber] = set()

    def subscribe(self, caller: Caller, request: v1.SubscribeRequest) -> AsyncGenerator[v1.SubscribeResponse, None]:
        """Sends events until the end that was asked for, if any."""
        return self.follow(request, _Subscriber(asyncio.get_running_loop().time()))

    async def history(self, first: int, *, bodies: bool) -> AsyncGenerator[v1.SubscribeResponse, None]:
        """The history for a part of this node itself; ``NotKept`` where it is gone for good."""
        request = v1.SubscribeRequest(from_sequence=first, include_bodies=bodies)
        try:
            async with aclosing(self.follow(request)) as answers:
                async for answer in answers:
                    yield answer
        except Refused as error:
            if error.refusal.reason is not Reason.NOT_FOUND:
                raise
            raise NotKept(f"{error}. This copy cannot be continued: begin another one") from error

    async def follow(
        self, request: v1.SubscribeRequest, subscriber: _Subscriber | None = None
    ) -> AsyncGenerator[v1.SubscribeResponse, None]:
        """What ``subscribe`` sends, for whoever asks; a part of the node itself is not sent away."""
        _check(request)
        tail, wanted = self._tail, Filter(request)
        batch = Batch(tail, wanted, request.from_sequence or tail.next_sequence)
        await self._check_kept(batch.position)
        yield batch.taken()
        while not request.to_sequence or batch.position <= request.to_sequence:
            if self._stopping is not None:
                raise self._stopping
            if batch.position < tail.first_sequence:
                async with aclosing(self._from_files(batch, wanted)) as old:
                    async for message in old:
                        yield message
                continue
            for record in tail.records(batch.position):
                for _ in batch.pass_spelled(record, self._spelled):
                    yield batch.taken()
            if batch.events or (request.to_sequence and batch.position > request.to_sequence):
                yield batch.taken()
            elif batch.position < tail.next_sequence:
                await asyncio.sleep(0)
            elif not await self._news(subscriber):
                yield batch.taken()

    async def publish(self, caller: Caller, request: v1.PublishRequest) -> v1.PublishResponse:
        """What a hub would accept; no cluster is one yet."""
        await caller.context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "this release collects no events of other clusters; subscribe at the source, or wait for a hub",
        )
        raise AssertionError("abort raises")

    def send_away(self, refused: Refused, since: float) -> None:
        """Subscribers who have been here since a time, and have all there is here, go on elsewhere."""
        for subscriber in self._idle:
            if subscriber.since <= since and subscriber.away is None and subscriber.wait is not None:
                subscriber.away = refused
                subscriber.wait.reschedule(asyncio.get_running_loop().time())

    def stop(self, refused: Refused) -> None:
        """The node stops: subscribers go on elsewhere."""
        self._stopping = refused

    async def _news(self, subscriber: _Subscriber | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_WORD_EVERY_S) as wait:
                if subscriber is not None:
                    subscriber.wait = wait
                    self._idle.add(subscriber)
                try:
                    await self._tail.news()
                finally:
                    if subscriber is not None:
                        self._idle.discard(subscriber)
                return True
        if subscriber is not None and subscriber.away is not None:
            raise subscriber.away
        return False

    async def _from_files(self, batch: Batch, wanted: Filter) -> AsyncGenerator[v1.SubscribeResponse, None]:
        """From where a subscriber stands to what is on disk by now."""
        archive = self._archive
        if archive.durable_sequence < batch.position:
            await archive.settle()
        end = wanted.until(archive.durable_sequence)
        if end < batch.position:
            # A snapshot took this node past these events.
            raise await self._not_here(HistoryMissing(archive.log.directory, batch.position, batch.position))
        passage = archive.passage(wanted.query(batch.position, end))
        try:
            while batch.position <= end:
                if self._stopping is not None:
                    raise self._stopping
                await passage.take(batch.fill)
                yield batch.taken()
        except _NotHere as error:
            raise await self._not_here(error) from error
        finally:
            passage.close()

    async def _check_kept(self, position: int) -> None:
        """Says at once if there is nothing to begin with."""
        archive = self._archive
        if position >= self._tail.first_sequence or position > archive.durable_sequence:
            return
        try:
            await archive.run(lambda: archive.log.holds(position))
        except _NotHere as error:
            raise await self._not_here(error) from error

    async def _not_here(self, error: HistoryGone | HistoryMissing | CorruptSegment) -> Refused:
        """History that is gone for good, or that this node does not have and another may."""
        archive = self._archive
        wanted = error.wanted if isinstance(error, HistoryGone) else getattr(error, "first", 0)
        if not (isinstance(error, HistoryGone) and archive.was_retired(wanted)):
            archive.on_trouble([error.path] if isinstance(error, CorruptSegment) else [])
            if archive.hopeful():
                message = f"this node lacks some of the history and fetches it: {error}"
                return Refused(Reason.NO_LEADER, f"{message}; subscribe again at the same place, to another node")
        first = error.last + 1 if isinstance(error, HistoryMissing) else await archive.first_sequence()
        if isinstance(error, CorruptSegment):
            return Refused(Reason.NOT_FOUND, f"this node cannot read its history: {error}", "from_sequence")
        return Refused(
            Reason.NOT_FOUND,
            f"event {wanted} is not kept here any more; the first that is available is "
            f"{first or self._tail.first_sequence}. A subscriber that fell behind has missed what lies between",
            "from_sequence",
        )


def _check(request: v1.SubscribeRequest) -> None:
    if request.from_sequence < 0:
        refuse(f"must be from 0 (what comes from now on), not {request.from_sequence}", "from_sequence")
    if request.to_sequence < 0 or 0 < request.to_sequence < request.from_sequence:
        refuse(f"must be 0 (no end) or not below from_sequence, not {request.to_sequence}", "to_sequence")
    for field in ("namespaces", "types", "resource_types"):
        if len(getattr(request, field)) > 1024:
            refuse("has more than 1024 entries", field)
