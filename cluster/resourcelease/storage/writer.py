"""The write transactions of one environment, and the space they need."""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import lmdb

from resourcelease.storage.api import WriteBatch
from resourcelease.storage.durable import Durable
from resourcelease.storage.environment import PAGES_BYTES, Environment, is_disk_full, is_short_write
from resourcelease.storage.options import StoreOptions
from resourcelease.storage.points import reach
from resourcelease.storage.space import Ballast, has_room
from resourcelease.storage.transaction import Group, compact

if TYPE_CHECKING:
    from lmdb import Transaction

__all__ = ["NoSpace", "Writer", "batch_bytes", "is_no_space"]

# What one changed row may: a leaf, and a branch that nothing else shares.
_ROW_PAGES_BYTES = 8 << 10
# Commits between two looks at how much of the map is used.
_HEADROOM_EVERY = 64
# How many entries the first deletion on a full disk takes; halved until it fits.
_FIRST_STEP = 8
# A node begins with the last entries that its rows stand for.
_BEGUN_WITH = 2


class NoSpace(Exception):
    """A transaction found no space, or was not begun for want of it; nothing of it is written."""


def is_no_space(error: Exception) -> bool:
    """Whether an error is for want of space, and trying again makes sense."""
    return isinstance(error, NoSpace) or is_disk_full(error)


class Writer:
    """Writes groups of batches and deletes compacted entries, each in one transaction with one fsync.

    Used by the storage thread alone, since LMDB's write transactions belong to their thread.
    """

    def __init__(self, env: Environment, durable: Durable, ballast: Ballast, options: StoreOptions) -> None:
        self._env = env
        self._ballast = ballast
        self._options = options
        self.durable = durable
        self.commits = 0
        self.journal_bytes = 0
        # Set while a compaction is in line that can only be reached with the space that is kept back for it.
        self._spending = False

    def write(self, batches: list[WriteBatch], ahead: Sequence[int] = ()) -> None:
        """Makes batches durable, all or none; ``ahead`` has their numbers in the log ahead, 0 for those not there."""
        self._keep_reserve(batches)
        group = Group(self.durable)
        for batch, number in zip(batches, ahead or repeat(0), strict=False):
            group.add(batch, number)

        def apply(txn: "Transaction[bytes]") -> Durable:
            durable = group.apply(self._env, txn)
            if durable.deletion_due:
                through = durable.positions.compacted
                durable = compact(self._env, txn, durable, through, self._options.compaction_chunk)
            return durable

        beyond_limit = self._options.ballast_bytes if self._spending else 0
        self._transact(apply, "commit", lambda: _pages_bytes(batches), beyond_limit)
        self.journal_bytes += group.journal_bytes

    def compact(self) -> None:
        """Deletes some of the compacted entries that are still there."""
        self._compact(self.durable.positions.compacted, self._options.compaction_chunk_idle)

    def make_room(self, asked: int) -> bool:
        """Deletes what may be deleted when nothing else fits; whether it makes sense to try again at once.

        ``asked`` is the highest compaction in line. It may overtake those before it as far as the durable rows allow:
        no one in line needs an entry that they stand for, but a start needs the last ones of these. To reach a
        compaction that needs rows which wait themselves, the space that is kept back for it is spent.
        """
        positions = self.durable.positions
        within = asked if asked <= positions.rows_index else positions.rows_index - _BEGUN_WITH
        through = max(within, positions.compacted)
        freed = self._compact_all(through)
        if freed or asked <= through or self._spending:
            return freed
        self._spending = True
        self._ballast.drop()
        return True

    def recovered(self) -> None:
        """Takes back the space that was given away, as far as there is any; nothing waits any more."""
        self._spending = False
        self._ballast.fill()

    def _compact_all(self, through: int) -> bool:
        """Deletes in steps as small as the space demands; whether anything was deleted."""
        before = self.durable.first_held
        limit = _FIRST_STEP
        while self.durable.first_held <= through:
            try:
                self._compact(through, limit)
            except Exception as error:
                if not is_no_space(error):
                    raise
                if limit > 1:
                    limit //= 2
                elif not self._ballast.drop():
                    break
            else:
                limit = min(limit * 2, self._options.compaction_chunk_idle)
        return self.durable.first_held > before

    def _compact(self, through: int, limit: int) -> None:
        def apply(txn: "Transaction[bytes]") -> Durable:
            return compact(self._env, txn, self.durable, through, limit)

        if through >= self.durable.first_held:
            self._transact(apply, "compaction", lambda: PAGES_BYTES, self._options.ballast_bytes)

    def _keep_reserve(self, batches: list[WriteBatch]) -> None:
        """Holds a group back that would leave compaction nothing to write to.

        As long as there is a ballast, that is what it is for. Once it was given away and the disk is still full, as
        much is left free inside LMDB's file instead; likewise for a map at its limit.
        """
        if self._spending or not (self._ballast.missing or self._env.over_limit):
            return
        if self._ballast.fill() and not self._env.over_limit:
            return
        free, reserve = self._env.free_inside(), self._options.ballast_bytes
        if free < reserve + _pages_bytes(batches):
            raise NoSpace(f"{free} bytes are free inside the file, and {reserve} of them are kept for compaction")

    def _transact(
        self,
        apply: "Callable[[Transaction[bytes]], Durable]",
        name: str,
        pages_bytes: Callable[[], int],
        beyond_limit: int,
    ) -> None:
        """One transaction, tried again in a larger map when it does not fit into this one."""
        while True:
            txn = self._env.begin_write(pages_bytes())
            try:
                reach(f"{name}.begun")
                durable = apply(txn)
                reach(f"{name}.applied")
                txn.commit()
            except lmdb.MapFullError as error:
                self._env.undo(txn)
                reach("grow.decided")
                if not self._env.grow(beyond_limit):
                    raise NoSpace(f"the map has {self._env.map_size} bytes and cannot grow") from error
                reach("grow.done")
            except BaseException as error:
                self._env.undo(txn)
                if is_short_write(error) and not has_room(self._env.directory, pages_bytes()):
                    raise NoSpace(f"the disk took only a part of it ({error})") from error
                raise
            else:
                self.durable = durable
                self.commits += 1
                reach(f"{name}.synced")
                if self.commits % _HEADROOM_EVERY == 0:
                    self._env.keep_headroom()
                return


def batch_bytes(batch: WriteBatch) -> int:
    """How much data a batch carries."""
    size = 0
    for entry in batch.appends:
        size += len(entry.data)
    for _, value in batch.row_puts:
        size += len(value)
    return size


def _pages_bytes(batches: list[WriteBatch]) -> int:
    """How much a group may write at most, with all the pages it touches."""
    rows = sum(len(batch.row_puts) + len(batch.row_deletes) for batch in batches)
    return PAGES_BYTES + 2 * sum(map(batch_bytes, batches)) + rows * _ROW_PAGES_BYTES
