"""Writes the log of events behind the machine, on a thread of its own.

>>> import tempfile
>>> from resourcelease.machine import Machine
>>> from resourcelease.storage.segments.directory import Owner
>>> machine = Machine("cluster-1")
>>> with tempfile.TemporaryDirectory() as directory:
...     writer = SegmentWriter.resume(Path(directory) / "segments", machine, Owner("cluster-1", "node-1"))
...     writer.append(1, [], b"", sealed=False)
...     writer.flush().result()
...     writer.close()
...     writer.durable_index
1
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from resourcelease.model.events import Record
from resourcelease.storage.background import unstoppable
from resourcelease.storage.layout import make_directories
from resourcelease.storage.segments.directory import Owner, Register
from resourcelease.storage.segments.errors import SegmentsStopped
from resourcelease.storage.segments.options import LogOptions, LogState, LogStats
from resourcelease.storage.segments.pen import Pen
from resourcelease.storage.segments.resume import LogMachine, Position, find_ending, join
from resourcelease.storage.segments.retention import retire

__all__ = ["SegmentWriter"]

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_RETIRE_EVERY_S = 60.0


class _Entry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    records: Sequence[Record]
    chain: bytes
    sealed: bool
    size: int


class _Task(NamedTuple):
    """Something to be done between two entries."""

    run: Callable[[], None]
    done: "Future[None]"


class SegmentWriter:
    """Takes applied entries in order and makes them durable, a little later.

    ``append``, ``restart``, ``hurry`` and ``flush`` are for the thread that applies; the rest may be used from any.
    """

    def __init__(self, pen: Pen, register: Register, index: int, options: LogOptions) -> None:
        self.directory = pen.directory
        self.register = register
        self.options = options
        self._pen = pen
        pen.patiently = self._patiently
        self._durable_index = index
        self._durable_sequence = pen.last
        self._queue: deque[_Entry | _Task] = deque()
        # Those who wait for the write that is under way.
        self._ended: list[Future[None]] = []
        # What was handed over ever, and what was taken: each is counted by one thread only.
        self._handed = self._taken = 0
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        self._state, self._reason = LogState.OPEN, ""
        self._failure: BaseException | None = None
        self._cpu_s = 0.0
        self._retired_at = time.monotonic()
        self.on_durable: Callable[[int], None] | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    @classmethod
    def resume(
        cls, directory: Path, machine: LogMachine, owner: Owner, options: LogOptions | None = None
    ) -> "SegmentWriter":
        """Goes on with the log in a directory, where a machine just loaded from rows stands.

        Entries that are applied again are skipped as far as they are held already. Raises ``WrongIdentity`` for another
        node's or cluster's directory, and ``SegmentsDiverged`` if the log is not this machine's.
        """
        options = options or LogOptions()
        make_directories(directory)
        register = Register.open(directory, owner)
        position = Position.of(machine)
        ending = join(find_ending(directory, owner), position)
        pen = Pen(directory, owner, ending, options)
        return cls(pen, register, position.index, options)

    # For the thread that applies.

    def append(self, index: int, records: Sequence[Record], chain: bytes, *, sealed: bool) -> None:
        """One applied entry, also if it made no events. Returns at once; raises ``SegmentsStopped`` if it is no use."""
        if self._failure is not None or self._closing:
            raise self._stopped() from self._failure
        size = 0
        for record in records:
            size += len(record.encoded)
        self._queue.append(_Entry(index, records, chain, sealed, size))
        self._handed += size
        waiting = self._handed - self._taken
        if waiting > self.options.queue_bytes_max:
            error = SegmentsStopped(f"{waiting} bytes of events wait for the disk: {self._reason or 'it is too slow'}")
            self._fail(error)
            raise error
        if waiting >= self.options.write_bytes:
            self.hurry()
        elif not self._wake.is_set():
            self._wake.set()

    def restart(self, machine: LogMachine) -> None:
        """The machine was replaced by a snapshot; what it lived through meanwhile is missing here."""
        position = Position.of(machine)
        self._do(lambda: self._pen.rejoin(position))
        self._queue.append(_Entry(position.index, (), b"", False, 0))

    def hurry(self) -> None:
        """Has what waits written now."""
        if not self._hurry.is_set():
            self._hurry.set()
        if not self._wake.is_set():
            self._wake.set()

    def flush(self) -> "Future[None]":
        """Ends when all that was appended before is durable."""
        return self._do(lambda: None)

    def close(self) -> None:
        """Writes what waits, and ends; on a full disk what waits is left to be derived again."""
        self._closing = True
        self.hurry()
        self._thread.join()
        if self._state is not LogState.STOPPED:
            self._state = LogState.CLOSED

    # For anyone.

    @property
    def durable_index(self) -> int:
        """The Raft entry up to which all events are on disk: as far as this rows may be stored and the journal cut."""
        return self._durable_index

    @property
    def waiting_bytes(self) -> int:
        """What was appended and is not on disk."""
        return self._handed - self._taken

    @property
    def has_room(self) -> bool:
        """Whether the node may take more work."""
        return self.waiting_bytes < self.options.queue_bytes_full

    def stats(self) -> LogStats:
        """For people and probes."""
        return LogStats(
            self._state,
            self._reason,
            self._durable_sequence,
            self._durable_index,
            self.waiting_bytes,
            *self._pen.totals(),
            self._cpu_s,
        )

    # The thread.

    def _do(self, run: Callable[[], None]) -> "Future[None]":
        task = _Task(run, unstoppable())
        if self._failure is not None or self._closing:
            task.done.set_exception(self._stopped())
        else:
            self._queue.append(task)
            self.hurry()
        return task.done

    def _run(self) -> None:
        try:
            while self._failure is None and (self._queue or not self._closing):
                self._wake.wait(_RETIRE_EVERY_S)
                self._wake.clear()
                if not self._closing:
                    self._hurry.wait(self.options.flush_s if self._queue else 0)
                self._hurry.clear()
                while self._queue:
                    self._write_some()
                self._retire()
                self._cpu_s = time.thread_time()
        except BaseException as error:
            self._fail(error)
        finally:
            self._pen.close()
            self._end_waiting()

    def _write_some(self) -> None:
        """Takes what waits, as much as makes a good write, and makes it durable."""
        index, size = self._durable_index, 0
        while self._queue and size < self.options.write_bytes:
            item = self._queue.popleft()
            if isinstance(item, _Task):
                self._ended.append(item.done)
                item.run()
                continue
            index = item.index
            if item.records:
                size += item.size
                self._pen.add(item.records, item.chain, sealed=item.sealed)
        self._pen.sync()
        self._taken += size
        self._durable_sequence = self._pen.last
        moved, self._durable_index = index > self._durable_index, index
        while self._ended:
            self._ended.pop(0).set_result(None)
        if moved and self.on_durable is not None:
            self.on_durable(index)

    def _patiently(self, step: Callable[[], object]) -> object:
        """Does a step, and while the disk is full, again and again."""
        while True:
            try:
                result = step()
            except OSError as error:
                if error.errno not in _FULL or self._closing:
                    raise
                self._reason = f"no space: {error}"
                if self._state is not LogState.FULL:
                    logger.warning("%s: %s; events wait in memory", self.directory, self._reason)
                self._state = LogState.FULL
                time.sleep(self.options.full_retry_s)
                continue
            if self._state is LogState.FULL:
                self._state, self._reason = LogState.OPEN, ""
            return result

    def _retire(self) -> None:
        now = time.monotonic()
        if self._pen.ended_one or now - self._retired_at >= _RETIRE_EVERY_S:
            self._pen.ended_one = False
            self._retired_at = now
            try:
                retire(self.directory, self.register, self.options.retention, time.time_ns() // 1_000_000)
            except OSError as error:
                logger.warning("%s: old history cannot be deleted: %s", self.directory, error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._state, self._reason = LogState.STOPPED, str(error)
        self._closing = True
        self.hurry()
        logger.error("the event log in %s stops: %s", self.directory, error)
        if self.on_failure is not None:
            self.on_failure(error)

    def _end_waiting(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, _Task):
                self._ended.append(item.done)
        for future in self._ended:
            future.set_exception(self._stopped())

    def _stopped(self) -> SegmentsStopped:
        return SegmentsStopped(f"the event log in {self.directory} takes no more: {self._reason or 'it was closed'}")
