"""Puts the changes of a group of batches into one write transaction."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from resourcelease.storage.api import JournalEntry, WriteBatch
from resourcelease.storage.durable import AHEAD, COMPACTED, ROWS, VOTE, Durable
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import CorruptStore
from resourcelease.storage.records import (
    RowsPosition,
    index_key,
    pack_entries,
    pack_number,
    pack_rows_position,
    pack_vote,
    seal,
    seal_rows,
)

if TYPE_CHECKING:
    from lmdb import Transaction

__all__ = ["Group", "append_entries", "compact", "put_ahead", "restart_journal"]


class Group:
    """The sum of several batches, in the order they were given.

    What one batch of the group writes and a later one takes away never reaches the disk, and each record of ``meta`` is
    written once: LMDB lets go of the interpreter at each call, and a busy event loop is slow to give it back.
    """

    def __init__(self, before: Durable) -> None:
        self._before = self._after = before
        self._rows: dict[bytes, bytes | None] = {}
        # What remains of the journal on disk ends here; with ``_restarted`` nothing of it remains.
        self._kept_last = before.positions.last
        self._restarted = False
        self._tail: list[JournalEntry] = []

    def add(self, batch: WriteBatch, ahead: int = 0) -> None:
        """Adds a batch that follows from those before it; ``ahead`` is its number in the log ahead, if it is there."""
        if self._after.positions.restarted_by(batch):
            self._restarted = True
            self._tail = list(batch.appends)
        else:
            self._add_entries(batch)
        last_before_compaction = self._last
        self._after = self._after.after(batch, ahead)
        if batch.row_puts:
            self._rows.update(batch.row_puts)
        if batch.row_deletes:
            self._rows.update(dict.fromkeys(batch.row_deletes))
        if batch.compact_through > last_before_compaction:
            self._restarted = True
            self._tail.clear()

    @property
    def _last(self) -> int:
        if self._tail:
            return self._tail[-1].index
        return self._after.positions.last if self._restarted else self._kept_last

    def _add_entries(self, batch: WriteBatch) -> None:
        if batch.truncate_from:
            cut = max(batch.truncate_from, self._after.positions.compacted + 1)
            if self._tail and cut <= self._tail[-1].index:
                del self._tail[max(0, cut - self._tail[0].index) :]
            self._kept_last = min(self._kept_last, cut - 1)
        self._tail += batch.appends

    def apply(self, env: Environment, txn: "Transaction[bytes]") -> Durable:
        """Writes it all; the result holds once ``txn`` is committed."""
        before, after = self._before, self._after
        compacted = after.positions.compacted
        first_held = before.first_held
        if self._restarted:
            restart_journal(env, txn, compacted)
            first_held = self._tail[0].index if self._tail else compacted + 1
        elif self._kept_last < before.positions.last:
            _cut(env, txn, self._kept_last + 1)
        if self._tail:
            append_entries(env, txn, self._tail)
        rows = self._apply_rows(env, txn)
        if after.vote != before.vote:
            txn.put(VOTE, seal(VOTE, pack_vote(after.vote)), db=env.meta)
        if compacted != before.positions.compacted:
            _put_compacted(env, txn, compacted)
        if after.ahead != before.ahead:
            put_ahead(env, txn, after.ahead)
        return after._replace(rows=rows, first_held=first_held)

    def _apply_rows(self, env: Environment, txn: "Transaction[bytes]") -> RowsPosition:
        position = self._after.rows
        if not self._rows and position == self._before.rows:
            return position
        puts = [(key, value) for key, value in self._rows.items() if value is not None]
        txn.cursor(db=env.rows).putmulti(seal_rows(puts))
        if len(puts) < len(self._rows):
            for key, value in self._rows.items():
                if value is None:
                    txn.delete(key, db=env.rows)
        position = position._replace(changes=position.changes + 1)
        txn.put(ROWS, seal(ROWS, pack_rows_position(position)), db=env.meta)
        return position

    @property
    def journal_bytes(self) -> int:
        """How many bytes of entries the group appends."""
        return sum(len(entry.data) for entry in self._tail)


def compact(env: Environment, txn: "Transaction[bytes]", durable: Durable, through: int, limit: int) -> Durable:
    """Deletes up to ``limit`` of the entries through ``through``, oldest first, and marks all of them as compacted."""
    positions = durable.positions
    if through > positions.compacted:
        _put_compacted(env, txn, through)
        positions = positions._replace(compacted=through)
    count = min(limit, through - durable.first_held + 1)
    if count <= 0:
        return durable._replace(positions=positions)
    cursor = txn.cursor(db=env.journal)
    if not cursor.first() or cursor.key() != index_key(durable.first_held):
        raise CorruptStore(env.data, f"the journal does not start at entry {durable.first_held}")
    for _ in range(count):
        cursor.delete()
    return durable._replace(positions=positions, first_held=durable.first_held + count)


def restart_journal(env: Environment, txn: "Transaction[bytes]", after: int) -> None:
    """Empties the journal; the next entry is the one behind ``after``."""
    txn.drop(env.journal, delete=False)
    _put_compacted(env, txn, after)


def _put_compacted(env: Environment, txn: "Transaction[bytes]", through: int) -> None:
    txn.put(COMPACTED, seal(COMPACTED, pack_number(through)), db=env.meta)


def put_ahead(env: Environment, txn: "Transaction[bytes]", number: int) -> None:
    """Notes that the batches of the log ahead up to ``number`` are here."""
    txn.put(AHEAD, seal(AHEAD, pack_number(number)), db=env.meta)


def _cut(env: Environment, txn: "Transaction[bytes]", first: int) -> None:
    cursor = txn.cursor(db=env.journal)
    if cursor.set_range(index_key(first)):
        while cursor.delete():
            pass


def append_entries(env: Environment, txn: "Transaction[bytes]", entries: Iterable[JournalEntry]) -> None:
    """Appends behind the last key, which fills pages to the brim and needs no search."""
    consumed, added = txn.cursor(db=env.journal).putmulti(pack_entries(entries), append=True)
    if consumed != added:
        raise CorruptStore(env.data, f"the journal already holds {consumed - added} of {consumed} entries to append")
