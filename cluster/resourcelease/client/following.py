"""Streams that only look: events and backpressure, on another node when one goes."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

from grpc import aio

from resourcelease import v1
from resourcelease.client.core import Core
from resourcelease.client.errors import ResourceLeaseError, error_of_status

__all__ = ["Following", "answers", "event_type"]


class Following(Core):
    """Events, and changes of backpressure."""

    async def events(
        self,
        from_sequence: int = 1,
        *,
        to_sequence: int = 0,
        namespaces: Iterable[str] = (),
        types: Iterable[str | int] = (),
        resource_types: Iterable[str] = (),
        include_bodies: bool = False,
    ) -> AsyncIterator[v1.Event]:
        """The history from a sequence number on, then what happens live, without a gap: across nodes too.

        ``from_sequence=0`` begins with what comes next. Ends after ``to_sequence``, if that is given. ``types`` are
        names such as ``"COMPLETED"``.

        ```py
        async for event in client.events(types=["DEAD_LETTERED"]):
            print(event.sequence_number, event.handle.sequence_id)
        ```
        """
        self._must_be_open()
        request = v1.SubscribeRequest(
            from_sequence=from_sequence,
            to_sequence=to_sequence,
            namespaces=namespaces,
            types=[event_type(name) for name in types],
            resource_types=resource_types,
            include_bodies=include_bodies,
        )
        async for answer in self._follow("Subscribe", request, ends=bool(to_sequence)):
            for event in answer.events:
                yield event
            # From here on, should the node go.
            request.from_sequence = answer.next_sequence
            if to_sequence and answer.next_sequence > to_sequence:
                return

    async def watch_backpressure(self, *namespaces: str) -> AsyncIterator[v1.WatchBackpressureResponse]:
        """How backpressure stands in each namespace (or in those named), then every change.

        After a change of node the state comes again, as ``initial``.
        """
        self._must_be_open()
        request = v1.WatchBackpressureRequest(namespaces=namespaces)
        async for change in self._follow("WatchBackpressure", request):
            yield change

    async def _follow(self, method: str, request: Any, *, ends: bool = False) -> AsyncIterator[Any]:
        """What a stream sends; begun again on another node when it breaks, until none can be reached in time."""
        nodes, caller = self._nodes, self._caller
        loop = asyncio.get_running_loop()
        broken_at: float | None = None
        for attempt in itertools.count():
            node = nodes.current()
            call = node.method(method)(request, metadata=nodes.metadata or None)
            error: ResourceLeaseError | None = None
            try:
                while (answer := await call.read()) is not aio.EOF:
                    nodes.answered(node)
                    broken_at = None
                    yield answer
            except aio.AioRpcError as met:
                error = error_of_status(met, node.address)
            finally:
                call.cancel()
            if error is None and ends:
                return
            if error is not None and not error.transient:
                raise error
            broken_at = loop.time() if broken_at is None else broken_at
            nodes.failed(node)
            if error is not None and loop.time() - broken_at > caller.timeout:
                raise error
            if nodes.current().resting_until > loop.time():
                await asyncio.sleep(caller.backoff.wait(min(attempt, 5), caller.chance))


async def answers(
    client: Following, first: int, *, include_bodies: bool = False
) -> AsyncGenerator[v1.SubscribeResponse, None]:
    """The whole history from an event on, as it arrives: many events together, and how far the cluster is."""
    request = v1.SubscribeRequest(from_sequence=first, include_bodies=include_bodies)
    async for answer in client._follow("Subscribe", request, ends=False):
        yield answer
        request.from_sequence = answer.next_sequence


def event_type(name: str | int) -> Any:
    """The number of an event type, by its name with or without the prefix.

    >>> event_type("completed") == event_type("EVENT_TYPE_COMPLETED") == event_type(4)
    True
    """
    if isinstance(name, int):
        return name
    full = name.upper() if name.upper().startswith("EVENT_TYPE_") else f"EVENT_TYPE_{name.upper()}"
    names = v1.EventType.keys()
    if full not in names:
        known = ", ".join(key.removeprefix("EVENT_TYPE_") for key in names[1:])
        raise ValueError(f"there is no event type {name!r}; there are {known}")
    return v1.EventType.Value(full)
