"""State rows on their way to the disk, and the journal that they make superfluous."""

from collections.abc import Callable
from typing import NamedTuple

from resourcelease.consensus.api import EventLog, Machine
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.members import MEMBERS_ROW, Membership, pack_members
from resourcelease.consensus.settings import Settings

__all__ = ["WriteBehind"]


# How often a look is taken at whether the event log has come as far as the rows that wait for it.
_LOOK_S = 0.02
_NEVER = float("inf")


class _Taken(NamedTuple):
    """Rows on their way to the store; ``applied`` is the last entry whose events made them."""

    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    applied: int


class WriteBehind:
    """Decides when rows are stored, and how far the journal is then cut.

    Where there is a ``log`` of events, rows wait until it is durable as far as they stand: what it lacks after a crash
    is derived again from older rows and the journal, and from newer ones it could not be.

    Nobody waits for rows, and entries do not wait behind them. Until they are ``stored`` no others follow, so that what
    changes often is stored once.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        membership: Membership,
        settings: Settings,
        rows_index: int,
        stored: Callable[[], int],
        now: float,
    ) -> None:
        self._journal = journal
        self._membership = membership
        self._settings = settings
        # What the rows that were written last stand for, and those that are stored.
        self._rows_index = rows_index
        self._stored = stored
        # Rows that wait for the log.
        self._taken: _Taken | None = None
        self._written_at = now
        self._bytes = 0
        self.log: EventLog | None = None

    def applied(self, size: int) -> None:
        """An entry of so many bytes was applied."""
        self._bytes += size

    def replaced(self, index: int, now: float) -> None:
        """A snapshot took the place of all rows, and goes to the disk with the next batch."""
        self._rows_index = index
        self._taken = None
        self._written_at = now
        self._bytes = 0

    def next_at(self, applied_index: int) -> float:
        """When there will be something to do, if nothing else happens."""
        if self._taken is not None:
            return self._written_at + _LOOK_S
        if applied_index <= self._rows_index or self._on_their_way:
            return _NEVER
        return self._written_at + self._settings.flush_s

    @property
    def _on_their_way(self) -> bool:
        return self._stored() < self._rows_index

    def turn(self, now: float, index: int, machine: Machine, floor: Callable[[], int | None]) -> None:
        """Stores rows if it is time. ``index`` is what is applied; ``floor`` gives the first entry that must stay."""
        if self._taken is None:
            if index <= max(self._rows_index, 1) or not self._due(now, index) or self._on_their_way:
                return
            puts, deletes = machine.take_changes()
            members = (MEMBERS_ROW, pack_members(self._membership.at(index)))
            term = self._journal.term_at(index)
            self._taken = _Taken([*puts, members], list(deletes), index, term, machine.applied_index)
            self._bytes = 0
        self._written_at = now
        if self.log is not None and self.log.durable_index < self._taken.applied:
            self.log.hurry()
            return
        self._store(self._taken, floor())

    def _store(self, taken: _Taken, floor: int | None) -> None:
        self._taken = None
        self._rows_index = taken.index
        through = self._cut(taken.index, floor)
        self._journal.write_rows_later(taken.puts, taken.deletes, taken.index, taken.term, through)
        self._membership.compacted(taken.index)

    def _due(self, now: float, index: int) -> bool:
        settings = self._settings
        return (
            index - self._rows_index >= settings.flush_entries
            or self._bytes >= settings.flush_bytes
            or now - self._written_at >= settings.flush_s
        )

    def _cut(self, index: int, floor: int | None) -> int:
        """Up to where no follower is likely to need entries; rows and cut are one transaction (guard **align**)."""
        # The last two entries that the rows cover stay: the library begins its log, and each snapshot, with them.
        through = index - 2
        if self._journal.size_bytes <= self._settings.keep_bytes:
            through = min(through, self._journal.last_index - self._settings.keep_entries)
        if floor is not None:
            through = min(through, floor - 2)
        return through
