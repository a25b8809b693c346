"""The storage thread: everything that is written is written here, in the order it was handed over.

While one group is committed the next one gathers; a group is one transaction and one fsync. What does not fit on the
disk is held, in order, until it does. Any other error stops the store for good.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from resourcelease.storage.api import WriteBatch
from resourcelease.storage.durable import Durable
from resourcelease.storage.errors import SnapshotFailed, StoreStopped
from resourcelease.storage.options import StoreOptions, StoreState, StoreStatus
from resourcelease.storage.points import reach
from resourcelease.storage.writer import Writer, batch_bytes, is_no_space

__all__ = ["Committer", "Done", "Task", "Write"]

_log = logging.getLogger("resourcelease.storage")

# Called on the storage thread when a batch is durable (None) or will never be (the error).
Done = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class Write:
    """A batch, and who waits for it."""

    batch: WriteBatch
    done: Done
    # Its number in the log ahead, if it is durable there.
    ahead: int = 0
    # Whether it may come to be durable after what follows it.
    later: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Work that needs a place in the order of writes: what came before is durable, what came after is not begun.

    ``run`` takes and returns what is durable. If it finds the disk full it must be safe to run again.
    """

    what: str
    run: Callable[[Durable], Durable]
    done: Done


class Committer:
    """Owns the thread, and the queue in front of it."""

    def __init__(
        self,
        writer: Writer,
        options: StoreOptions,
        where: str,
        on_status: Callable[[StoreStatus], None] | None = None,
    ) -> None:
        self._writer = writer
        self._options = options
        # The directory, for messages.
        self._where = where
        self._on_status = on_status
        self._status = StoreStatus(StoreState.OPEN)
        # Called after everyone who waited for a group has been told, once a group.
        self.after_group: list[Callable[[], None]] = []
        self.batches = 0
        self.last_commit_s = 0.0
        # None wakes the thread without giving it anything to do.
        self._inbox: SimpleQueue[Write | Task | None] = SimpleQueue()
        self._waiting: deque[Write | Task] = deque()
        # What is durable in the log ahead and may wait a while, so that many settle in one transaction.
        self._behind: deque[Write] = deque()
        self._behind_since: float | None = None
        self._hurried = False
        self._gate = threading.Lock()
        self._stopped_by: Exception | None = None
        self._closing = False
        # How many batches a group may have; small while the disk is full, to write what little fits.
        self._group_max: int | None = None
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def put(self, item: Write | Task) -> bool:
        """Queues behind everything that was queued before; False when the store has stopped, see ``refuse``."""
        with self._gate:
            if self._stopped_by is not None:
                return False
            self._inbox.put(item)
            return True

    def put_behind(self, write: Write) -> None:
        """Queues what is durable already; it is written within a while, or as soon as anything else is."""
        self._behind.append(write)
        if self._behind_since is None:
            self._behind_since = time.monotonic()
            self._inbox.put(None)
        if len(self._behind) >= self._options.settle_batches and not self._hurried:
            self.hurry()

    def hurry(self) -> None:
        """Has what may wait a while written now."""
        self._hurried = True
        self._inbox.put(None)

    @property
    def stopped(self) -> bool:
        """Whether nothing will be written any more."""
        return self._stopped_by is not None

    @property
    def is_here(self) -> bool:
        """Whether this is the storage thread."""
        return threading.current_thread() is self._thread

    def refuse(self, item: Write | Task) -> None:
        """Ends what came too late, on the caller's thread."""
        self.tell(item.done, self._refusal(self._stopped_by))
        self.tell_listeners()

    @property
    def waiting(self) -> int:
        """What was handed over and has not ended."""
        return len(self._waiting) + self._inbox.qsize()

    @property
    def status(self) -> StoreStatus:
        """What the store can do; damage that a reader found counts at once."""
        status, stopped_by = self._status, self._stopped_by
        if stopped_by is not None and status.state in (StoreState.OPEN, StoreState.FULL):
            return StoreStatus(StoreState.STOPPED, str(stopped_by))
        return status

    def halt(self, error: Exception) -> None:
        """Stops the store from another thread, because of damage found while reading."""
        with self._gate:
            if self._stopped_by is None:
                self._stopped_by = error
        self._inbox.put(None)

    def close(self) -> None:
        """Ends the thread once all that waits is written; what a full disk still holds back fails."""
        self._closing = True
        self._inbox.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            with self._gate:
                closed = self._stopped_by is None
                if closed:
                    self._stopped_by = StoreStopped("it was closed")
            if closed:
                self._show(StoreState.CLOSED)
        except Exception as error:
            self._stop(error, "the storage thread")
        self._fail_waiting()

    def _turn(self) -> bool:
        """Writes one group, or does one task; False when there is nothing more to do, for good."""
        waiting = self._waiting
        deletion_due = self._writer.durable.deletion_due
        if not waiting and not deletion_due and not self._closing:
            self._await()
        self._drain()
        if self._hurried or self._closing or self._behind_left_s() <= 0:
            self._hurried = False
            self._take_behind()
        if self._stopped_by is not None:
            self._stop(self._stopped_by, "")
            return False
        if not waiting:
            if self._closing:
                return False
            return not deletion_due or self._attempt(self._writer.compact, lambda: "compaction")
        head = waiting[0]
        if isinstance(head, Task):
            return self._attempt(lambda: self._do(head), lambda: head.what)
        group = self._next_group()
        return self._attempt(lambda: self._commit(group), lambda: _describe(group))

    def _await(self) -> None:
        with suppress(Empty):
            self._receive(self._inbox.get(timeout=min(self._behind_left_s(), threading.TIMEOUT_MAX)))

    def _behind_left_s(self) -> float:
        since = self._behind_since
        return float("inf") if since is None else max(0.0, since + self._options.settle_s - time.monotonic())

    def _take_behind(self) -> None:
        # In this order: whoever adds something now sees that it has to say so.
        self._behind_since = None
        while self._behind:
            self._waiting.append(self._behind.popleft())

    def _receive(self, item: Write | Task | None) -> None:
        if item is not None:
            # What was handed over before comes before it.
            self._take_behind()
            self._waiting.append(item)

    def _drain(self) -> None:
        for _ in range(self._inbox.qsize()):
            self._receive(self._inbox.get_nowait())

    def _attempt(self, step: Callable[[], None], describe: Callable[[], str]) -> bool:
        """Runs a step; a full disk makes it wait and try again, any other error ends the store."""
        try:
            step()
        except Exception as error:
            if not is_no_space(error):
                self._stop(error, describe())
                return False
            if self._closing:
                self._stop(StoreStopped(f"it was closed while {describe()} waited for space"), "")
                return False
            self._group_max = 1
            self._show(StoreState.FULL, f"{describe()} waits for space: {error}")
            asked = max((item.batch.compact_through for item in self._waiting if isinstance(item, Write)), default=0)
            if not self._writer.make_room(asked):
                self._rest()
            return True
        if self._status.state is StoreState.FULL:
            self._group_max = (self._group_max or 1) * 2
            if not self._waiting:
                self._group_max = None
                self._writer.recovered()
                self._show(StoreState.OPEN)
        return True

    def _next_group(self) -> list[Write]:
        group: list[Write] = []
        size = 0
        for item in self._waiting:
            if isinstance(item, Task) or len(group) == self._group_max or size >= self._options.group_bytes_max:
                break
            group.append(item)
            size += batch_bytes(item.batch)
        return group

    def _commit(self, group: list[Write]) -> None:
        began = time.perf_counter()
        self._writer.write([write.batch for write in group], [write.ahead for write in group])
        self.last_commit_s = time.perf_counter() - began
        self.batches += len(group)
        for write in group:
            self._waiting.popleft()
            self.tell(write.done, None)
        self.tell_listeners()
        reach("commit.told")

    def _do(self, task: Task) -> None:
        failure: Exception | None = None
        try:
            self._writer.durable = task.run(self._writer.durable)
        except SnapshotFailed as error:
            failure = error
        self._waiting.popleft()
        self.tell(task.done, failure)
        self.tell_listeners()

    def _rest(self) -> None:
        """Leaves a full disk alone for a while, unless the store is to be closed."""
        deadline = time.monotonic() + self._options.full_retry_s
        while not self._closing and self._stopped_by is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            try:
                self._receive(self._inbox.get(timeout=left))
            except Empty:
                return

    def _stop(self, error: Exception, what: str) -> None:
        with self._gate:
            self._stopped_by = error
        reason = f"{what} failed: {error}" if what else str(error)
        _log.error("the store in %s has stopped: %s", self._where, reason)
        self._show(StoreState.STOPPED, reason)
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        self._drain()
        self._take_behind()
        if not self._waiting:
            return
        while self._waiting:
            self.tell(self._waiting.popleft().done, self._refusal(self._stopped_by))
        self.tell_listeners()

    def _refusal(self, stopped_by: Exception | None) -> StoreStopped:
        reason = self._status.reason or str(stopped_by)
        refusal = StoreStopped(f"the store in {self._where} takes no writes: {reason}")
        refusal.__cause__ = stopped_by
        return refusal

    def _show(self, state: StoreState, reason: str = "") -> None:
        changed = state is not self._status.state
        self._status = StoreStatus(state, reason)
        if changed and self._on_status is not None:
            try:
                self._on_status(self._status)
            except Exception:
                _log.exception("the listener for the store's state failed")

    def tell(self, done: Done, error: Exception | None) -> None:
        """Tells who waits for an item."""
        try:
            done(error)
        except Exception:
            _log.exception("a callback for a durable batch failed")

    def tell_listeners(self) -> None:
        """Those who wait for the end of a group."""
        for listener in self.after_group:
            try:
                listener()
            except Exception:
                _log.exception("a listener for finished groups failed")


def _describe(writes: list[Write]) -> str:
    entries = [write.batch.appends for write in writes if write.batch.appends]
    parts = [f"{len(writes)} batches" if len(writes) > 1 else "a batch"]
    if entries:
        parts.append(f"entries {entries[0][0].index} to {entries[-1][-1].index}")
    rows_index = max(write.batch.rows_index for write in writes)
    if rows_index:
        parts.append(f"rows at {rows_index}")
    return f"the commit of {', '.join(parts)}"
