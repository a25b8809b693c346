"""Where batches arrive. Most are durable in the log ahead at once and settle in LMDB later; others go there directly.

The order is kept whichever way they take. A batch that goes to LMDB directly, because it is large, or because the log
ahead has no room, or a task, holds back all that come after it until it is done. Rows that may come later hold nothing
back: they settle between what came before and after them, and what the log ahead tells after a crash is as true without
them, since it holds no other rows meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from resourcelease.storage.ahead import Ahead, AheadFull
from resourcelease.storage.api import Loaded, WriteBatch
from resourcelease.storage.committer import Committer, Task, Write
from resourcelease.storage.durable import Durable
from resourcelease.storage.errors import StorageError
from resourcelease.storage.options import StoreOptions
from resourcelease.storage.writer import batch_bytes

__all__ = ["Front"]

# A batch beyond this is not written on the caller's thread, and one beyond the second not into the log ahead.
_AT_ONCE_BYTES = 256 << 10
_AHEAD_BYTES = 2 << 20
# How much one flush weighs in what is expected of the next.
_NEWEST = 0.2


class Front:
    """Hands batches to the log ahead, where there is one, and to the committer."""

    def __init__(
        self, ahead: Ahead | None, committer: Committer, durable: Callable[[], Durable], options: StoreOptions
    ) -> None:
        self._ahead = ahead
        self._committer = committer
        self._durable = durable
        self._options = options
        self._queue: deque[Write | Task] = deque()
        # Guards the queue, and the log ahead with all that is counted below.
        self._changed = Condition()
        self._busy = False
        self._closing = False
        # Batches and tasks that went to LMDB directly, and how many of them have ended there.
        self._direct = 0
        self._direct_done = 0
        # Batches that may come later, and how many of them LMDB has.
        self._later = 0
        self._later_done = 0
        # What was durable after the last batch of the log ahead.
        self._told = durable()
        self._flush_s = 0.0
        self._worker: Thread | None = None

    def loaded(self) -> Loaded:
        """What is durable, here or there."""
        return self._newest().loaded()

    def _newest(self) -> Durable:
        # Looked at in this order: what settles in between is in the second.
        told, durable = self._told, self._durable()
        return told.with_rows(durable) if told.ahead > durable.ahead else durable

    @property
    def settled(self) -> bool:
        """Whether LMDB holds all that is durable, and the rows that may come later."""
        return self._later == self._later_done and self.settled_but_for_rows

    @property
    def settled_but_for_rows(self) -> bool:
        """Whether nothing is on its way but rows that may come later."""
        return self._ahead is None or self._ahead.settled

    def came(self, error: Exception | None) -> None:
        """Who is told of a batch that may come later: nobody waits for it, and that the store has stopped all see."""
        if error is None:
            self._later_done += 1

    def hurry(self) -> None:
        """Has what is in the log ahead settle now."""
        self._committer.hurry()

    def at_once(self, batch: WriteBatch) -> bool:
        """Makes a batch durable on the caller's thread; False, and nothing done, when it had better be ``put``."""
        if self._flush_s > self._options.at_once_s or self._ahead is None or batch_bytes(batch) > _AT_ONCE_BYTES:
            return False
        if not self._changed.acquire(blocking=False):
            return False
        try:
            idle = not self._queue and not self._busy and not self._closing
            return idle and self._append(self._ahead, [Write(batch, _ignore)])
        finally:
            self._changed.release()

    def put(self, item: Write | Task) -> bool:
        """Queues an item behind all others; False when the store has stopped."""
        if self._committer.stopped:
            return False
        with self._changed:
            if self._closing:
                return False
            if isinstance(item, Write) and item.later:
                self._later += 1
            if self._ahead is None:
                return self._committer.put(item)
            if self._worker is None:
                self._worker = Thread(target=self._run, name="log-ahead", daemon=True)
                self._worker.start()
            self._queue.append(item)
            self._changed.notify()
        return True

    def close(self) -> None:
        """Ends the thread once it has handed everything on."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._worker is not None:
            self._worker.join()
        if self._ahead is not None:
            self._ahead.close()

    def _run(self) -> None:
        assert self._ahead is not None
        while True:
            with self._changed:
                while not self._queue:
                    if self._closing:
                        return
                    self._changed.wait()
                group = self._next_group()
                self._busy = True
            try:
                self._write(self._ahead, group)
            finally:
                with self._changed:
                    self._busy = False

    def _next_group(self) -> list[Write | Task]:
        """One task, or batches for one record."""
        group: list[Write | Task] = []
        size = 0
        while self._queue:
            item = self._queue[0]
            size += batch_bytes(item.batch) if isinstance(item, Write) and not item.later else 0
            if group and (isinstance(item, Task) or size > _AHEAD_BYTES):
                break
            group.append(self._queue.popleft())
            if isinstance(item, Task):
                break
        return group

    def _write(self, ahead: Ahead, group: list[Write | Task]) -> None:
        writes = [item for item in group if isinstance(item, Write)]
        if len(writes) == len(group) and self._append(ahead, writes):
            for write in writes:
                if not write.later:
                    self._committer.tell(write.done, None)
            self._committer.tell_listeners()
            return
        for item in group:
            self._go_direct(item)

    def _append(self, ahead: Ahead, writes: list[Write]) -> bool:
        """Makes batches durable in the log ahead; False when they have to go another way."""
        if self._direct != self._direct_done or self._committer.stopped:
            return False
        urgent = [write.batch for write in writes if not write.later]
        if sum(map(batch_bytes, urgent)) > _AHEAD_BYTES:
            return False
        if self._later != self._later_done and any(batch.rows_index or batch.compact_through for batch in urgent):
            return False
        payload = ahead.pack(urgent)
        if not ahead.has_room(len(payload)):
            return False
        began = time.perf_counter()
        told = self._newest()
        number = ahead.number
        try:
            if urgent:
                ahead.append(payload, len(urgent))
        except AheadFull:
            return False
        except Exception as error:
            failure = StorageError(f"the log ahead of LMDB cannot be written: {error}")
            failure.__cause__ = error
            self._committer.halt(failure)
            return False
        if urgent:
            self._flush_s += _NEWEST * (time.perf_counter() - began - self._flush_s)
        for write in writes:
            if write.later:
                self._committer.put_behind(write)
                continue
            number += 1
            told = told.after(write.batch, number)
            self._committer.put_behind(Write(write.batch, _ignore, number))
        self._told = told
        if ahead.filling:
            self._committer.hurry()
        return True

    def _go_direct(self, item: Write | Task) -> None:
        self._direct += 1
        done = item.done

        def ended(error: Exception | None) -> None:
            self._direct_done += 1
            done(error)

        direct = Write(item.batch, ended) if isinstance(item, Write) else Task(item.what, item.run, ended)
        if not self._committer.put(direct):
            self._committer.refuse(direct)


def _ignore(_error: Exception | None) -> None:
    """Who wrote at once knows, and who waited for the log ahead was told: nobody waits for LMDB."""
