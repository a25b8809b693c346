"""The log on disk for those who subscribe: read on threads, so that nobody on the loop waits for a disk."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from resourcelease.model.events import Record
from resourcelease.storage.segments import HistoryMissing, Log, Query, SegmentWriter

__all__ = ["Archive", "Passage"]

T = TypeVar("T")

_THREADS = 2


class Archive:
    """One node's log on disk. Belongs to the loop; ``close`` when nobody reads any more."""

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self.log = Log(writer.directory, writer.register.owner)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="history")
        # Whether what is missing here may still come from another node.
        self.hopeful: Callable[[], bool] = lambda: False
        # Somebody met a hole, or damage in these files.
        self.on_trouble: Callable[[Sequence[Path]], None] = lambda damaged: None

    @property
    def durable_sequence(self) -> int:
        """The last event on disk."""
        return self.writer.stats().durable_sequence

    async def first_sequence(self) -> int:
        """The first event that is kept, whatever is missing behind it; 0 if there is none."""
        return await self.run(lambda: self.log.first_sequence)

    async def settle(self) -> None:
        """Waits until all that was applied so far is on disk."""
        await asyncio.wrap_future(self.writer.flush())

    def passage(self, query: Query) -> "Passage":
        """Begins to read from ``query.first`` to ``query.last``, both of which are on disk."""
        return Passage(self, query)

    def was_retired(self, sequence: int) -> bool:
        """Whether an event was deleted on purpose."""
        return sequence <= self.writer.register.retired

    async def run(self, work: Callable[[], T]) -> T:
        """Does something on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def submit(self, work: Callable[[], None]) -> None:
        """The same, and nobody waits for it."""
        self._pool.submit(work)

    def close(self) -> None:
        """Ends the threads, once they have finished what they do."""
        self._pool.shutdown(wait=True)


class Passage:
    """A reader on its way through the files, one piece at a time."""

    def __init__(self, archive: Archive, query: Query) -> None:
        self._archive = archive
        self._query = query
        self._records = self._read()
        # A reader that has gone may leave a thread behind that is still at it.
        self._lock = threading.Lock()

    async def take(self, piece: Callable[[Iterator[Record | int]], T]) -> T:
        """Has a piece of work done with what comes next, on a thread.

        The iterator gives records, and numbers: all events before such a number have been passed.
        """

        def run() -> T:
            with self._lock:
                return piece(self._records)

        return await self._archive.run(run)

    def close(self) -> None:
        """Lets go of the file."""

        def run() -> None:
            with self._lock:
                self._records.close()

        self._archive.submit(run)

    def _read(self) -> Generator[Record | int, None, None]:
        log, query = self._archive.log, self._query
        with closing(log.frames(query)) as frames:
            for frame in frames:
                yield frame.meta.span.first
                for record in frame.records():
                    if query.wants(record):
                        yield record
                yield min(frame.meta.span.last, query.last) + 1
        # A hole at the very end looks like the end.
        if not log.holds(query.last):
            raise HistoryMissing(log.directory, query.first, query.last)
        yield query.last + 1
