"""The Raft log as the library sees it, and as the next write to disk.

The library calls the methods with its own names. Reads are served from memory; changes are gathered into one
``WriteBatch`` a turn, so that what one turn did becomes durable whole or not at all. Rows that the journal leads to are
a batch of their own, for which nothing has to wait.
"""

from collections.abc import Callable, Iterable
from typing import Any

from resourcelease.storage.api import JournalEntry, WriteBatch

__all__ = ["NEWBORN", "Entry", "Journal"]

# As the library has it: command, index, term.
Entry = tuple[bytes, int, int]


# Stands before the vote on disk for as long as the node does not know what it may once have promised; see guard
# **newborn** in ``guards``.
NEWBORN = "\x00newborn "


def _ignore(*_: Any) -> None:
    return


class Journal(list[Entry]):
    """Entries from ``first_index`` on, gapless; never empty once the library has started.

    A list, because the library looks into it some twenty times an entry.
    """

    def __init__(self, entries: Iterable[Entry], term: int, voted_for: str, *, newborn: bool = False) -> None:
        super().__init__(entries)
        self._term = term
        self._voted_for = voted_for
        # Whether this node began with an empty disk and has not caught up since.
        self.newborn = newborn
        self._pending = WriteBatch()
        # Whether something waits for ``take_batch``.
        self.dirty = False
        self._rows: WriteBatch | None = None
        self._bytes = sum(len(entry[0]) for entry in self)
        # Told (index, command) of each entry that comes, and the first index of those that go.
        self.on_append: Callable[[int, bytes], None] = _ignore
        self.on_truncate: Callable[[int], None] = _ignore

    @property
    def first_index(self) -> int:
        """Index of the oldest entry held."""
        return self[0][1]

    @property
    def last_index(self) -> int:
        """Index of the newest entry."""
        return self[-1][1]

    @property
    def last_term(self) -> int:
        """Term of the newest entry."""
        return self[-1][2]

    @property
    def size_bytes(self) -> int:
        """Bytes of the commands held."""
        return self._bytes

    def holds(self, index: int) -> bool:
        """Whether an entry is here."""
        return bool(self) and self[0][1] <= index <= self[-1][1]

    def entry(self, index: int) -> Entry:
        """The entry at an index that is held."""
        return self[index - self[0][1]]

    def term_at(self, index: int) -> int:
        """Its term."""
        return self.entry(index)[2]

    def _drop(self, through: int) -> bool:
        if through < self.first_index:
            return False
        count = through - self.first_index + 1
        self._bytes -= sum(len(entry[0]) for entry in self[:count])
        del self[:count]
        return True

    def write_rows_later(
        self, puts: list[tuple[bytes, bytes]], deletes: list[bytes], index: int, term: int, through: int
    ) -> None:
        """State rows that the entries up to ``index`` lead to; entries up to ``through`` go with them."""
        dropped = through if self._drop(through) else 0
        self._rows = WriteBatch(
            row_puts=puts, row_deletes=deletes, rows_index=index, rows_term=term, compact_through=dropped
        )

    def take_rows(self) -> WriteBatch | None:
        """What ``write_rows_later`` was given since the last call, or None; to be written behind ``take_batch``."""
        rows, self._rows = self._rows, None
        return rows

    def write_rows(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes], index: int, term: int) -> None:
        """Rows from elsewhere, in the next batch: what the journal holds does not lead to them."""
        self._pending.row_puts.extend(puts)
        self._pending.row_deletes.extend(deletes)
        self._pending.rows_index = index
        self._pending.rows_term = term
        self.dirty = True

    def take_batch(self) -> WriteBatch | None:
        """What has changed since the last call, or None."""
        if not self.dirty:
            return None
        batch, self._pending = self._pending, WriteBatch()
        self.dirty = False
        return batch

    # What the library calls.

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Appends."""
        self.append((command, idx, term))
        self._bytes += len(command)
        self._pending.appends.append(JournalEntry(idx, term, command))
        self.dirty = True
        self.on_append(idx, command)

    def clear(self) -> None:
        """Drops everything: a snapshot takes its place."""
        if self:
            self._cut(self.first_index)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Cuts the tail, from an offset into what is held."""
        if entryFrom < len(self):
            self._cut(self.first_index + entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drops the head, up to an offset."""
        through = self.first_index + entryTo - 1
        if self._drop(through):
            self._pending.compact_through = through
            self.dirty = True

    def _cut(self, index: int) -> None:
        offset = index - self.first_index
        self._bytes -= sum(len(entry[0]) for entry in self[offset:])
        del self[offset:]
        pending = self._pending
        while pending.appends and pending.appends[-1].index >= index:
            pending.appends.pop()
        pending.truncate_from = min(pending.truncate_from or index, index)
        self.dirty = True
        self.on_truncate(index)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Not stored: the leader tells it again."""

    def getRaftCommitIndex(self) -> int:
        """One, always; the host lifts it to where the stored rows stand."""
        return 1

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Takes term and vote into the next batch."""
        voted_for = votedForNodeId or ""
        if (term, voted_for) == (self._term, self._voted_for):
            return
        self._term, self._voted_for = term, voted_for
        self._write_vote()

    def _write_vote(self) -> None:
        self._pending.vote = (self._term, NEWBORN + self._voted_for if self.newborn else self._voted_for)
        self.dirty = True

    def grown_up(self, leader: str) -> None:
        """It has caught up. Its vote of this term counts as given to the leader: it may have been, before."""
        self.newborn = False
        self._voted_for = self._voted_for or leader
        self._write_vote()

    def getCurrentTerm(self) -> int:
        """The term."""
        return self._term

    def getVotedForNodeId(self) -> str | None:
        """Whom this node voted for in the term."""
        return self._voted_for or None

    def onOneSecondTimer(self) -> None:
        """Nothing waits for a timer."""

    def _destroy(self) -> None:
        return
