"""Brings the end of a write back to an asyncio loop."""

import asyncio
from collections import deque

from resourcelease.storage.api import WriteBatch
from resourcelease.storage.store import LmdbStore

__all__ = ["LoopWriter"]


class LoopWriter:
    """Hands batches to a store from a loop, and wakes the loop once for each group commit, not once for each batch.

    One for each loop, for as long as the store is open.

    >>> async def write_all(store: LmdbStore, batches: list[WriteBatch]) -> None:
    ...     writer = LoopWriter(store)
    ...     await asyncio.gather(*[writer.write(batch) for batch in batches])
    """

    def __init__(self, store: LmdbStore, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._store = store
        self._loop = loop or asyncio.get_running_loop()
        # Filled on the storage thread, emptied on the loop; both ends of a deque are safe to use so.
        self._ended: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        store.after_group(self._wake)

    def write(self, batch: WriteBatch) -> "asyncio.Future[None]":
        """Queues a batch; the future ends on the loop, in the order of the writes, after the fsync that covers it."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._store.submit(batch, lambda error: self._ended.append((future, error)))
        return future

    def _wake(self) -> None:
        if self._ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._ended:
            future, error = self._ended.popleft()
            # A caller that stopped waiting has cancelled it; the batch is written all the same.
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
