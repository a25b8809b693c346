"""Enqueueing: one item, or many."""

import asyncio
from collections.abc import Iterable, Mapping

from resourcelease.client.core import Core
from resourcelease.client.errors import Backpressure, QueueFull, ResourceLeaseError, SomeRefused
from resourcelease.client.items import Enqueued, GivenItem, NewItem, item_of, new_item
from resourcelease.client.lane import MOST_BYTES, MOST_ENTRIES, MOST_JOINED

__all__ = ["Producing"]

# What each item costs on the wire beside its body, roughly.
OVERHEAD_BYTES = 64
FULL = (QueueFull, Backpressure)


class Producing(Core):
    """The producer's calls."""

    async def enqueue(
        self,
        resource_type: str,
        resource_id: str,
        body: bytes = b"",
        *,
        priority: int | None = None,
        delay: float = 0.0,
        request_id: str = "",
        partition_key: str = "",
        payload_encoding: str = "",
        attributes: Mapping[str, str] | None = None,
        wait: float | None = None,
        namespace: str | None = None,
    ) -> Enqueued:
        """Appends one item; its answer means that a majority of the nodes has it on disk.

        ``delay`` are seconds before which nobody gets the item. ``request_id`` makes a second enqueue of the same item
        harmless, for the item's life and a while after. While the queue is full the call waits for room, up to
        ``wait`` seconds (the client's timeout if not given), then raises ``Backpressure`` or ``QueueFull``.

        ```py
        (await client.enqueue("table", "orders", b"...")).sequence_id
        ```
        """
        item = new_item(
            resource_type,
            resource_id,
            body,
            priority=priority,
            delay=delay,
            request_id=request_id,
            partition_key=partition_key,
            payload_encoding=payload_encoding,
            attributes=attributes,
        )
        lane = self._lane(namespace or self.namespace, wait)
        try:
            return await lane.put(item, len(body) + OVERHEAD_BYTES)
        except QueueFull as error:
            refused = error
        # The refusal belongs to its operation id: each further try is a new operation, under a new one.
        until = asyncio.get_running_loop().time() + (self.timeout if wait is None else wait)
        for attempt in range(1 << 30):
            await self._wait_for_room(refused, attempt, until)
            try:
                return await lane.put(item, len(body) + OVERHEAD_BYTES)
            except QueueFull as error:
                refused = error
        raise refused

    async def enqueue_many(
        self,
        items: Iterable[GivenItem],
        *,
        wait: float | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> list[Enqueued]:
        """Appends many items in order, in as few calls as they fit into.

        An item is what ``new_item`` makes, or its arguments as a mapping. If some are refused, the others are in the
        queue, and ``SomeRefused.results`` says which is which.

        ```py
        await client.enqueue_many({"resource_type": "table", "resource_id": name} for name in names)
        ```
        """
        self._must_be_open()
        results: list[Enqueued | ResourceLeaseError] = []
        for batch, size in _batches(items):
            results += await self._enqueue_batch(batch, size, wait, timeout, namespace or self.namespace)
        kept = [result for result in results if isinstance(result, Enqueued)]
        if len(kept) < len(results):
            raise SomeRefused(results)
        return kept

    async def _enqueue_batch(
        self, items: list[NewItem], size: int, wait: float | None, timeout: float | None, namespace: str
    ) -> list[Enqueued | ResourceLeaseError]:
        """One call, and further ones for those that found no room."""
        patience = timeout or self.timeout
        until = asyncio.get_running_loop().time() + (patience if wait is None else wait)
        if timeout is None and len(items) <= MOST_JOINED:
            # In one call with what others enqueue at the same time.
            results = list(await self._lane(namespace, wait).put_many(items, size))
        else:
            results = await self._enqueue(namespace, items, wait, patience)
        for attempt in range(1 << 30):
            left = [at for at, result in enumerate(results) if isinstance(result, FULL)]
            if not left:
                break
            refused = results[left[0]]
            assert isinstance(refused, ResourceLeaseError)
            try:
                await self._wait_for_room(refused, attempt, until)
            except FULL:
                break
            again = await self._enqueue(namespace, [items[at] for at in left], wait, patience)
            for at, result in zip(left, again, strict=True):
                results[at] = result
        return results

    async def _wait_for_room(self, refused: ResourceLeaseError, attempt: int, until: float) -> None:
        pause = self._caller.backoff.wait(attempt, self._caller.chance, refused.retry_after)
        if asyncio.get_running_loop().time() + pause >= until:
            raise refused
        await asyncio.sleep(pause)


def _batches(items: Iterable[GivenItem]) -> Iterable[tuple[list[NewItem], int]]:
    """As many at a time as a call carries, with what they weigh."""
    batch: list[NewItem] = []
    size = 0
    for given in items:
        item = item_of(given)
        more = len(item.body) + OVERHEAD_BYTES
        if batch and (size + more > MOST_BYTES or len(batch) >= MOST_ENTRIES):
            yield batch, size
            batch, size = [], 0
        batch.append(item)
        size += more
    if batch:
        yield batch, size
