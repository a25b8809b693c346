"""EventService: the history as a stream, from a place in it on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc

from resourcelease import v1
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.eventwire import Filter
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.tail import History
from resourcelease.model.errors import Reason

__all__ = ["Events"]

_EVENTS_MAX = 500
_BYTES_MAX = 1 << 20
# A subscriber whose filter lets nothing through hears so often how far it is.
_WORD_EVERY_S = 5.0


class Events:
    """Subscribe, and Publish in its time."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._stopping: Refused | None = None

    async def subscribe(self, caller: Caller, request: v1.SubscribeRequest) -> AsyncIterator[v1.SubscribeResponse]:
        """Sends events until the end that was asked for, if any."""
        _check(request)
        history = self._history
        position = request.from_sequence or history.next_sequence
        wanted = Filter(request)
        self._check_kept(position)
        batch = _Batch(history, position)
        yield batch.taken()
        while not request.to_sequence or batch.position <= request.to_sequence:
            if self._stopping is not None:
                raise self._stopping
            self._check_kept(batch.position)
            for record in history.records(batch.position):
                if record.sequence + record.count <= batch.position:
                    continue
                if not wanted.wants_of(record):
                    batch.position = record.sequence + record.count
                    continue
                for number, message in wanted.messages(record, batch.position):
                    batch.add(number, message)
                    if batch.full:
                        yield batch.taken()
            if batch.events or (request.to_sequence and batch.position > request.to_sequence):
                yield batch.taken()
            elif batch.position >= history.next_sequence:
                told = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WORD_EVERY_S):
                        await history.news()
                        told = True
                if not told:
                    yield batch.taken()
            else:
                await asyncio.sleep(0)

    async def publish(self, caller: Caller, request: v1.PublishRequest) -> v1.PublishResponse:
        """What a hub would accept; no cluster is one yet."""
        await caller.context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "this release collects no events of other clusters; subscribe at the source, or wait for a hub",
        )
        raise AssertionError("abort raises")

    def stop(self, refused: Refused) -> None:
        """The node stops: subscribers go on elsewhere."""
        self._stopping = refused

    def _check_kept(self, position: int) -> None:
        first = self._history.first_sequence
        if position < first:
            raise Refused(
                Reason.NOT_FOUND,
                f"event {position} is not kept here any more; the first that is available is {first}. A subscriber "
                "that fell behind has missed what lies between",
                "from_sequence",
            )


class _Batch:
    """The next message of one subscriber, and how far it takes it."""

    def __init__(self, history: History, position: int) -> None:
        self._history = history
        self.position = position
        self.events: list[v1.Event] = []
        self._bytes = 0

    def add(self, number: int, event: v1.Event | None) -> None:
        """Passes an event, which is sent if it is wanted."""
        self.position = number + 1
        if event is not None:
            self.events.append(event)
            self._bytes += len(event.payload.body) + len(event.payload.resource_id) + 64

    @property
    def full(self) -> bool:
        """Whether it is time to send it."""
        return len(self.events) >= _EVENTS_MAX or self._bytes >= _BYTES_MAX

    def taken(self) -> v1.SubscribeResponse:
        """The message; the next one begins."""
        events, self.events, self._bytes = self.events, [], 0
        return v1.SubscribeResponse(
            events=events, next_sequence=self.position, head_sequence=self._history.next_sequence - 1
        )


def _check(request: v1.SubscribeRequest) -> None:
    if request.from_sequence < 0:
        refuse(f"must be from 0 (what comes from now on), not {request.from_sequence}", "from_sequence")
    if request.to_sequence < 0 or 0 < request.to_sequence < request.from_sequence:
        refuse(f"must be 0 (no end) or not below from_sequence, not {request.to_sequence}", "to_sequence")
    for field in ("namespaces", "types", "resource_types"):
        if len(getattr(request, field)) > 1024:
            refuse("has more than 1024 entries", field)
