"""A disk that keeps what it has synced and may forget the rest.

Fault model
-----------
A batch handed to ``write`` waits in memory. What waits goes to the disk together, in one transaction and one fsync,
which takes a time drawn from the seed: some disks are slow, some stall, some stay stuck. Futures are done after it.

Power loss and process death: batches that wait are lost. The transaction under way is durable whole or not at all, by
the toss of a coin, though nobody was told: this is what LMDB promises. Between two fsyncs nothing is torn or reordered,
because LMDB writes its root last. The plant ``torn`` takes that promise away: what was written since the last fsync
survives batch by batch, each by its own coin, and of a batch perhaps only a part.

Bit flips: a stored entry changes. Its checksum notices when it is read next, at the start of a node, and the node
stops. The plant ``unchecked`` lets it pass. Rows are not flipped: they have checksums of their own in LMDB's store.

What a batch may be is judged by the arithmetic of the real store, ``resourcelease.storage.positions``: among others, a
journal begins anew further on only where rows stand for what is left out.

What is durable settles later, as in the real store, where a log ahead takes it first: until then rows of a while ago
are what can be read without waiting. A start, and who reads all rows, has everything settled. Rows that may come later
are stored when things settle, if the process lives so long; what was written after them stands without them, too.

A full disk: nothing is written for a while. Batches are held, in order and unacknowledged, reads go on, and when space
returns they are written one by one at first, then in growing groups, as by the real store. Not modelled: compaction
that passes those who wait, and what little still fits.

A disk that says it has synced and has not is the plant ``no-fsync``, one that says so while it is full ``full-yes``.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from chaos.simulation.world import World
from resourcelease.storage.api import Identity, JournalEntry, Loaded, WriteBatch
from resourcelease.storage.errors import RowsChanged
from resourcelease.storage.positions import Positions

__all__ = ["Disk", "DiskFaults", "Damaged"]


# How often a full disk is tried again.
_FULL_RETRY_S = 0.5


class Damaged(Exception):
    """A stored entry is not what was written."""


class Promise(Future[None]):
    """The future of a batch. It ends on the one thread there is, so it does without the lock of its like."""

    def __init__(self) -> None:
        self._over = False
        self._told: list[Callable[[Future[None]], object]] = []

    def done(self) -> bool:
        """Whether the batch is said to be on disk."""
        return self._over

    def result(self, timeout: float | None = None) -> None:
        """Nothing, once it is done; nobody can wait for it, as time stands still meanwhile."""
        if not self._over:
            raise TimeoutError("not synced yet; let the world go on")

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Calls ``fn`` at the end, or now if that was before."""
        if self._over:
            fn(self)
        else:
            self._told.append(fn)

    def set_result(self, result: None) -> None:
        """The end."""
        self._over = True
        for fn in self._told:
            fn(self)


@dataclass(slots=True)
class DiskFaults:
    """How this disk behaves."""

    # Seconds an fsync takes, drawn between the two.
    sync_min_s: float = 0.0003
    sync_max_s: float = 0.002
    # How often, and how long at most, an fsync stalls.
    stall_rate: float = 0.0
    stall_max_s: float = 0.0
    # How often, at each row, a reader of all rows finds that the map has moved; it matters only if rows were written.
    map_moves_rate: float = 0.01
    # How long, at most, rows that are durable take to settle.
    settle_max_s: float = 0.5
    # No fsync ever comes back.
    stuck: bool = False
    # There is no space.
    full: bool = False
    # Plants.
    full_yes: bool = False
    torn: bool = False
    unchecked: bool = False
    lost_vote: bool = False
    no_fsync: bool = False


class Disk:
    """One node's store; it outlives the node's processes. Implements ``resourcelease.storage.api.Store``."""

    def __init__(self, world: World, node_id: str, faults: DiskFaults) -> None:
        self.identity = Identity("simulated", node_id, 1)
        self.faults = faults
        self._world = world
        seed = world.rng.random()
        self._rng = random.Random(seed)
        self._settle_rng = random.Random(2 * seed)
        self._entries: dict[int, JournalEntry] = {}
        self._first, self._last = 1, 0
        self._rows: dict[bytes, bytes] = {}
        self._vote = (0, "")
        self._rows_at = (0, 0)
        # The rows of a while ago and the entry they stand for; None: those of now.
        self._settled: tuple[int, dict[bytes, bytes]] | None = None
        # Rows that may come later, and how many batches came before each; those that came in all, and the stored.
        self._later: list[tuple[int, WriteBatch]] = []
        self._given = self._stored = 0
        self._flipped: set[int] = set()
        self._waiting: list[tuple[WriteBatch, Promise]] = []
        self._under_way: list[tuple[WriteBatch, Promise]] = []
        # Where things will stand once all that was handed over is stored.
        self._positions = Positions()
        # Up to where the disk had entries that were lost with it: that it holds them no more is no fault of the node.
        self._lost_through = 0
        # How many batches go together; few after the disk was full, 0 for all.
        self._group_max = 0
        self._retrying = False
        # Which process of the node the callbacks of running syncs belong to.
        self._life = 0
        # Told when a stored transaction has cut entries, for the checkers.
        self.on_truncate: Callable[[], None] | None = None

    # What a node calls.

    def load(self) -> Loaded:
        """Positions, term and vote, as synced."""
        term, voted_for = self._vote
        return Loaded(term, voted_for, *self._rows_at, self._first, self._last)

    def entries(self, first: int, last: int) -> Iterator[JournalEntry]:
        """Synced entries; a flipped one raises."""
        for index in range(first, last + 1):
            if index in self._flipped and not self.faults.unchecked:
                raise Damaged(f"entry {index} has a bad checksum")
            yield self._entries[index]

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The synced rows as they are at the time of the call; ``RowsChanged`` as the real store raises it."""
        self.settle()
        return self._view(sorted(self._rows.items()), self._rows_at[0])

    @property
    def settled_rows_index(self) -> int:
        """The entry that the settled rows stand for."""
        return self._rows_at[0] if self._settled is None else self._settled[0]

    def settled_rows(self) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
        """It, and the rows."""
        index, rows = (self._rows_at[0], self._rows) if self._settled is None else self._settled
        return index, self._view(sorted(rows.items()), index)

    def _view(self, rows: list[tuple[bytes, bytes]], index: int) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            if self.settled_rows_index != index and self._rng.random() < self.faults.map_moves_rate:
                self._world.faults["map moved"] += 1
                raise RowsChanged("the map moved while all rows were being read, and rows were written")
            yield row

    def write(self, batch: WriteBatch) -> "Future[None]":
        """Queues a batch."""
        if not self.faults.torn:
            self._positions = self._positions.after(batch)
        future = Promise()
        self._given += 1
        self._waiting.append((batch, future))
        if self.faults.no_fsync or (self.faults.full_yes and self.faults.full):
            future.set_result(None)
        if not self._under_way:
            self._sync()
        return future

    def settle(self) -> bool:
        """Whether what is synced can be read; it can when this is asked again a little later."""
        settled = self._settled is None and not self._later
        self._store_later()
        self._settled = None
        return settled

    def write_later(self, batch: WriteBatch) -> None:
        """Queues rows that a crash may lose though it keeps what follows them."""
        if not self.faults.torn:
            self._positions = self._positions.after(batch)
        if not self._later:
            self._world.after(self._settle_rng.uniform(0.0, self.faults.settle_max_s), self._settle_later, self._life)
        self._later.append((self._given, batch))

    def _settle_later(self, life: int) -> None:
        if life != self._life or not self._later:
            return
        self._store_later()
        if self._later:
            self._world.after(_FULL_RETRY_S, self._settle_later, life)

    def _store_later(self) -> None:
        if not self.faults.full and not self.faults.stuck:
            self._store_due()

    def _store_due(self) -> None:
        """Stores the rows that may come later before which nothing is missing that was handed over before."""
        while self._later and self._later[0][0] <= self._stored:
            self._settled = None
            self._store(self._later.pop(0)[1], later=True)

    def close(self) -> None:
        """Nothing to let go of."""

    def holds(self, index: int, term: int) -> bool:
        """Whether an entry is synced here, as itself or in the state; for the checkers."""
        if index <= max(self._rows_at[0], self._lost_through) or index < self._first:
            return True
        return index <= self._last and self._entries[index].term == term

    # What happens to it.

    def crash(self) -> None:
        """The process dies or the power goes: what was not synced is lost, or not."""
        under_way = [batch for batch, _ in self._under_way]
        if self.faults.torn:
            for batch, _ in [*self._under_way, *self._waiting]:
                self._store_torn(batch)
            for _, batch in self._later:
                self._store_torn(batch)
            self._later = []
        elif under_way and self._rng.random() < 0.5:
            self._store_all(under_way)
        if self._settle_rng.random() < 0.5:
            self._store_later()
        self._waiting, self._under_way, self._later = [], [], []
        self._given = self._stored = 0
        self._group_max, self._retrying = 0, False
        self._positions = Positions(self._first - 1, self._last, self._rows_at[0], self._vote[0])
        self._settled = None
        self._life += 1

    def lose_everything(self) -> None:
        """An empty disk takes its place; call while the node is down."""
        self._lost_through = max(self._lost_through, self._last)
        self._entries.clear()
        self._rows.clear()
        self._flipped.clear()
        self._first, self._last = 1, 0
        self._vote, self._rows_at = (0, ""), (0, 0)
        self._positions = Positions()

    def flip_a_bit(self) -> bool:
        """Damages a stored entry; False if there is none."""
        if self._last < self._first:
            return False
        index = self._rng.randint(self._first, self._last)
        entry = self._entries[index]
        data = bytearray(entry.data)
        data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        self._entries[index] = entry._replace(data=bytes(data))
        self._flipped.add(index)
        return True

    def _sync(self) -> None:
        faults = self.faults
        if faults.stuck:
            return
        if faults.full:
            self._group_max = 1
            if not self._retrying:
                self._retrying = True
                self._world.after(_FULL_RETRY_S, self._retry, self._life)
            return
        self._under_way, self._waiting = self._waiting, []
        if self._group_max:
            self._waiting = self._under_way[self._group_max :]
            self._under_way = self._under_way[: self._group_max]
            self._group_max = 2 * self._group_max if self._waiting else 0
        takes_s = faults.sync_min_s + (faults.sync_max_s - faults.sync_min_s) * self._rng.random()
        if faults.stall_rate and self._rng.random() < faults.stall_rate:
            takes_s += self._rng.uniform(0.0, faults.stall_max_s)
            self._world.faults["disk stalled"] += 1
        self._world.after(takes_s, self._synced, self._life)

    def _retry(self, life: int) -> None:
        if life == self._life:
            self._retrying = False
            if self._waiting and not self._under_way:
                self._sync()

    def _synced(self, life: int) -> None:
        if life != self._life:
            return
        done, self._under_way = self._under_way, []
        self._store_all([batch for batch, _ in done])
        if self._waiting:
            self._sync()
        for _, future in done:
            if not future.done():
                future.set_result(None)

    def _store_all(self, batches: list[WriteBatch]) -> None:
        for batch in batches:
            self._store(batch)
            self._stored += 1
        if self.on_truncate is not None and any(batch.truncate_from for batch in batches):
            self.on_truncate()

    def _store(self, batch: WriteBatch, *, later: bool = False) -> None:
        if not later and (batch.rows_index or batch.compact_through):
            # It does not overtake its like.
            self._store_due()
        held = Positions(self._first - 1, self._last, self._rows_at[0])
        if held.restarted_by(batch):
            self._entries.clear()
            self._flipped.clear()
            self._first, self._last = batch.appends[0].index, batch.appends[0].index - 1
        elif batch.truncate_from:
            self._truncate(batch.truncate_from)
        for entry in batch.appends:
            self._append(entry)
        if batch.vote is not None:
            self._vote = (batch.vote[0], "") if self.faults.lost_vote else batch.vote
        if batch.rows_index and self._settled is None and not later and not self.faults.torn:
            self._settled = self._rows_at[0], dict(self._rows)
            self._world.after(self._settle_rng.uniform(0.0, self.faults.settle_max_s), self._settle, self._life)
        self._rows.update(batch.row_puts)
        for key in batch.row_deletes:
            self._rows.pop(key, None)
        if batch.rows_index:
            self._rows_at = (batch.rows_index, batch.rows_term)
        if batch.compact_through:
            assert batch.compact_through <= self._rows_at[0], "compaction above the stored rows"
            self._compact(batch.compact_through)

    def _settle(self, life: int) -> None:
        if life == self._life:
            self._settled = None

    def _compact(self, through: int) -> None:
        for index in range(self._first, min(through, self._last) + 1):
            self._entries.pop(index, None)
            self._flipped.discard(index)
        self._first = max(self._first, through + 1)
        self._last = max(self._last, self._first - 1)

    def _truncate(self, start: int) -> None:
        for index in range(max(start, self._first), self._last + 1):
            del self._entries[index]
            self._flipped.discard(index)
        self._last = min(self._last, max(start, self._first) - 1)

    def _append(self, entry: JournalEntry) -> None:
        assert entry.index == self._last + 1, f"entry {entry.index} follows {self._last}"
        self._entries[entry.index] = entry
        self._last = entry.index

    def _store_torn(self, batch: WriteBatch) -> None:
        coin = self._rng.random
        if coin() < 0.5:
            return
        if batch.appends and batch.appends[0].index > max(batch.truncate_from, self._last + 1):
            return
        kept = WriteBatch(
            truncate_from=batch.truncate_from,
            appends=batch.appends if coin() < 0.7 else [],
            vote=batch.vote if coin() < 0.5 else None,
        )
        if kept.appends and self._last >= self._first and not kept.truncate_from:
            kept.appends = [entry for entry in kept.appends if entry.index == self._last + 1]
        if batch.rows_index and coin() < 0.5:
            kept.row_puts, kept.row_deletes = batch.row_puts, batch.row_deletes
            kept.rows_index, kept.rows_term = batch.rows_index, batch.rows_term
        self._store(kept)
        if batch.compact_through and coin() < 0.5:
            self._compact(batch.compact_through)
