"""The store of a real node."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from resourcelease.storage.api import Identity, JournalEntry, Loaded, WriteBatch
from resourcelease.storage.background import Background, unstoppable
from resourcelease.storage.committer import Committer, Done, Task, Write
from resourcelease.storage.durable import Durable
from resourcelease.storage.errors import CorruptStore, EntryNotHeld, InvalidBatch, SnapshotRefused, StorageError
from resourcelease.storage.founding import check_exists, open_ahead, open_environment
from resourcelease.storage.front import Front
from resourcelease.storage.install import Staged, after_install, install, stage
from resourcelease.storage.intake import RowsIntake
from resourcelease.storage.layout import DirectoryLock, Layout, make_directories
from resourcelease.storage.options import StoreOptions, StoreState, StoreStats, StoreStatus
from resourcelease.storage.positions import Positions
from resourcelease.storage.reading import read_entries, read_row, read_rows, read_rows_at
from resourcelease.storage.snapshots import Snapshot, Snapshots
from resourcelease.storage.space import Ballast
from resourcelease.storage.taking import SnapshotTaker
from resourcelease.storage.writer import Writer

__all__ = ["LmdbStore"]

_T = TypeVar("_T")

# Between two looks at whether the disk has become full while something waits to be read.
_LOOK_S = 0.05


class LmdbStore:
    """A node's durable memory: journal, vote and rows in one LMDB environment, snapshots beside it.

    Opening and closing block, and so do the iterators; what hands something over never does. Any thread may hand over;
    the order of the calls is the order of everything.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> store = LmdbStore(directory, cluster_id="demo", node_id="n1")
    >>> store.write(WriteBatch(appends=[JournalEntry(1, 1, b"hello")], vote=(1, "n1"))).result()
    >>> store.close()
    >>> store = LmdbStore(directory, cluster_id="demo", node_id="n1")
    >>> store.load()
    Loaded(term=1, voted_for='n1', rows_index=0, rows_term=0, first_index=1, last_index=1)
    >>> [entry.data for entry in store.entries(1, 1)]
    [b'hello']
    >>> store.close()
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        cluster_id: str,
        node_id: str,
        options: StoreOptions | None = None,
        create: bool = True,
        on_status: Callable[[StoreStatus], None] | None = None,
    ) -> None:
        """Opens the node's directory, and makes it when ``create`` allows; ``on_status`` is called on other threads."""
        self._options = options or StoreOptions()
        self._layout = Layout(Path(directory))
        if not create:
            check_exists(self._layout)
        make_directories(self._layout.root)
        self._lock = DirectoryLock(self._layout.lock)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            self._env, self._identity, durable = open_environment(self._layout, cluster_id, node_id, self._options)
            undo.callback(self._env.close)
            self.snapshots = Snapshots(self._layout, cluster_id, self._options.snapshots_kept)
            ballast = Ballast(self._layout.ballast, self._options.ballast_bytes)
            ballast.fill()
            self._writer = Writer(self._env, durable, ballast, self._options)
            ahead = open_ahead(self._layout, self._writer, ballast, self._options)
            undo.pop_all()
        self._committer = Committer(self._writer, self._options, str(self._layout.root), on_status)
        self._front = Front(ahead, self._committer, lambda: self._writer.durable, self._options)
        # Where things will stand once all that was handed over is written.
        self._ahead = self._writer.durable.positions
        self._order = threading.Lock()
        self._group_ended = threading.Event()
        self._committer.after_group.append(self._group_ended.set)
        self._background = Background()
        self._taker = SnapshotTaker(
            self._layout, self._env, self._identity, self.snapshots, self._background, self._options
        )
        self._env.end_copy = self._taker.release_map
        self._staging = threading.Lock()
        self._staged: Staged | None = None

    @property
    def identity(self) -> Identity:
        """Who this store belongs to."""
        return self._identity

    @property
    def status(self) -> StoreStatus:
        """Whether it writes, waits for space, or has stopped, and why."""
        return self._committer.status

    @property
    def directory(self) -> Path:
        """The node's directory."""
        return self._layout.root

    def load(self) -> Loaded:
        """Positions, term and vote, as last made durable."""
        return self._front.loaded()

    def entries(self, first: int, last: int) -> Iterator[JournalEntry]:
        """The journal's entries from ``first`` to ``last``, both included; ``EntryNotHeld`` when it lacks one."""
        self._await_settled()
        held = self._writer.durable.positions
        if first <= last and not held.compacted < first <= last <= held.last:
            raise EntryNotHeld(
                f"entries {first} to {last} were asked for; the journal holds {held.compacted + 1} to {held.last}"
            )
        return self._watched(read_entries(self._env, first, last))

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All state rows, in key order, as they are durable now, whatever is written while they are read.

        ``RowsChanged`` is raised in the rare case that the map has to move meanwhile, and rows have changed. Close the
        iterator, or let go of it, when you do not read to the end: the pages it sees stay in use until then.
        """
        self._await_settled()
        return self._watched(read_rows(self._env))

    def settled_rows(self) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
        """The rows that have settled by now, and before them the entry that they stand for; see ``rows``.

        Waits for nothing, so newer ones may be durable.
        """
        index, rows = read_rows_at(self._env)
        return index, self._watched(rows)

    def rows_at(self) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
        """The same for one who decides what damage among them means."""
        return read_rows_at(self._env)

    def settled_entries(self, first: int, last: int) -> list[JournalEntry]:
        """A few entries, if they have settled; else sees to it that they soon have, and raises ``EntryNotHeld``."""
        if not self.settle():
            held = self._writer.durable.positions
            if not held.compacted < first <= last <= held.last:
                raise EntryNotHeld(f"entries {first} to {last} have not settled; {held.last} is the last that has")
        return list(read_entries(self._env, first, last))

    @property
    def settled_rows_index(self) -> int:
        """The entry that the rows of ``settled_rows`` stand for at least; ``load`` may know of newer ones."""
        return self._writer.durable.positions.rows_index

    def row(self, key: bytes) -> bytes | None:
        """One row, whatever the others are like; None if it is not there, or damaged."""
        self._await_settled()
        return read_row(self._env, key)

    def write(self, batch: WriteBatch) -> "Future[None]":
        """Queues a batch; the future ends after its fsync, or with the error that stopped the store.

        Raises ``InvalidBatch``, and queues nothing, when the batch contradicts those before it. The batch must not be
        changed afterwards. The future ends on the storage thread; it cannot be cancelled.
        """
        future: Future[None] = unstoppable()

        def done(error: Exception | None) -> None:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.submit(batch, done)
        return future

    def write_at_once(self, batch: WriteBatch) -> bool:
        """Makes a batch durable before it returns, if nothing waits and the disk has been quick of late.

        Otherwise it does nothing and says False: ``write`` it then. Saves the way to another thread and back, which
        takes longer than the flush of a good disk.
        """
        if not self._order.acquire(blocking=False):
            return False
        try:
            after = self._ahead.after(batch)
            if not self._front.at_once(batch):
                return False
            self._ahead = after
            return True
        finally:
            self._order.release()

    def write_later(self, batch: WriteBatch) -> None:
        """Queues rows that the journal leads to, and a compaction, for LMDB; what comes afterwards does not wait.

        Raises ``InvalidBatch``, and queues nothing, when the batch contradicts those before it, or holds anything else.
        """
        if batch.truncate_from or batch.appends or batch.vote is not None:
            raise InvalidBatch("only rows and a compaction can be written later")
        self._put(Write(batch, self._front.came, later=True), lambda ahead: ahead.after(batch))

    def settle(self) -> bool:
        """Whether ``rows`` and ``entries`` can be read now without waiting; if not, sees to it that they soon can."""
        if self._front.settled:
            return True
        self._front.hurry()
        return False

    def submit(self, batch: WriteBatch, done: Done) -> None:
        """Like ``write``, with a callback in place of the future; it is called on another thread and must be short.

        When the store has stopped already it is called before this returns.
        """
        self._put(Write(batch, done), lambda ahead: ahead.after(batch))

    def after_group(self, listener: Callable[[], None]) -> None:
        """Has ``listener`` called on the storage thread after each group, once all who waited for it were told."""
        self._committer.after_group.append(listener)

    def snapshot(self, state_digest: str) -> "Future[Snapshot]":
        """Takes a snapshot of the rows as the batches handed over so far leave them, while writes go on.

        ``state_digest`` is the machine's digest of its state at that entry. The future fails with ``SnapshotFailed``
        when another snapshot is being taken, when there is no room, or when the store needs a larger map meanwhile.
        """
        future: Future[Snapshot] = unstoppable()

        def begin(durable: Durable) -> Durable:
            self._taker.begin(durable, state_digest, future)
            return durable

        def begun(error: Exception | None) -> None:
            if error is not None:
                future.set_exception(error)

        self._put(Task("a snapshot", begin, begun), lambda ahead: ahead)
        return future

    def stage(self, snapshot: Snapshot) -> "Future[Staged]":
        """Verifies a snapshot and prepares it for ``install``; takes long, and the store goes on meanwhile.

        Only what was staged last can be installed.
        """
        future: Future[Staged] = unstoppable()

        def work() -> Staged:
            self.snapshots.check(snapshot.manifest)
            with self._staging:
                self._staged = None
                staged = self._staged = stage(self._layout, snapshot, self._identity)
            return staged

        self._background.run("the staging of a snapshot", work, future)
        return future

    def take_in(self) -> RowsIntake:
        """Prepares rows that come from elsewhere, piece by piece, for ``install``; see ``staged``."""
        return RowsIntake(self._layout, self._identity)

    def staged(self, intake: RowsIntake, index: int, term: int) -> Staged:
        """What was taken in, as rows that stand for an entry. Blocks; only what was staged last can be installed."""
        with self._staging:
            self._staged = None
            staged = self._staged = intake.finish(index, term)
        return staged

    def install(self, staged: Staged, head: Sequence[JournalEntry] = ()) -> "Future[Loaded]":
        """Puts a staged snapshot in the store's place: its rows, an empty journal behind them, our term and vote.

        ``head`` may give the last entries that the snapshot covers, for the journal to begin with.
        Batches handed over before are written first and then replaced; those handed over after must follow the
        snapshot's entry. Raises ``SnapshotRefused`` when the rows here are at least as new.
        """
        if self._staged is not staged:
            raise SnapshotRefused("another snapshot was staged since, or this one is installed already; stage it again")
        future: Future[Loaded] = unstoppable()
        index = staged.manifest.index

        def run(durable: Durable) -> Durable:
            return install(self._layout, self._env, staged, head, durable)

        def done(error: Exception | None) -> None:
            if error is None:
                future.set_result(self.load())
            else:
                future.set_exception(error)

        task = Task(f"the install of the snapshot at entry {index}", run, done)
        self._put(task, lambda ahead: after_install(staged.manifest, head, ahead))
        self._staged = None
        return future

    def stats(self) -> StoreStats:
        """Totals and sizes, for metrics."""
        committer = self._committer
        return StoreStats(
            batches=committer.batches,
            commits=self._writer.commits,
            journal_bytes=self._writer.journal_bytes,
            last_commit_s=committer.last_commit_s,
            waiting=committer.waiting,
            map_size_bytes=self._env.map_size,
            used_bytes=self._env.used_bytes,
        )

    def close(self) -> None:
        """Finishes what was queued and lets go of the files; a second call does nothing."""
        self._front.close()
        self._committer.close()
        self._taker.close()
        self._background.join()
        self._env.close()
        self._lock.release()

    def _put(self, item: Write | Task, admit: Callable[[Positions], Positions]) -> None:
        with self._order:
            self._ahead = admit(self._ahead)
            taken = self._front.put(item)
        if not taken:
            self._committer.refuse(item)

    def _await_settled(self) -> None:
        while not self.settle() and not self._committer.is_here:
            self._group_ended.clear()
            if self.status.state is not StoreState.OPEN:
                if self._front.settled_but_for_rows:
                    return
                raise StorageError(
                    f"what was written last to {self._layout.root} cannot be read yet: {self.status.reason}"
                )
            self._group_ended.wait(_LOOK_S)

    def _watched(self, values: Iterator[_T]) -> Iterator[_T]:
        """Damage that a reader finds stops the writer too."""
        try:
            yield from values
        except CorruptStore as error:
            self._committer.halt(error)
            raise
