"""What consensus asks of a node's disk.

Two things stand behind this interface: the LMDB store of a real node, and the simulator's disk, which loses what was
not synced. Order is the contract: batches become durable in the order they were given to ``write``, each batch whole or
not at all, and the future of a batch is done only after the fsync that covers it. Rows that only repeat what the
journal says have time: ``write_later`` takes them.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

__all__ = ["Identity", "JournalEntry", "Loaded", "QuickStore", "Store", "WriteBatch"]


class Identity(NamedTuple):
    """Whose directory this is; a store refuses to open as anyone else."""

    cluster_id: str
    node_id: str
    format_version: int


class JournalEntry(NamedTuple):
    """One entry of the Raft log; ``index`` counts from 1."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no entry needs
    term: int
    data: bytes


@dataclass(slots=True)
class WriteBatch:
    """Changes that become durable together, in one transaction, applied in the order of the fields."""

    # Entries at this index and above are cut before the appends; 0 cuts nothing.
    truncate_from: int = 0
    # Gapless, and following the last entry that remains.
    appends: list[JournalEntry] = field(default_factory=list)
    # (current term, node voted for or ""), or None to leave them as they are.
    vote: tuple[int, str] | None = None
    # State rows, and the log index (0: none in this batch) and term that the stored rows stand for after them.
    row_puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    row_deletes: list[bytes] = field(default_factory=list)
    rows_index: int = 0
    rows_term: int = 0
    # Journal entries up to here, this one included, are deleted; never above ``rows_index``. 0 deletes nothing.
    compact_through: int = 0


class Loaded(NamedTuple):
    """What was on disk when the store was opened."""

    term: int
    voted_for: str
    rows_index: int
    rows_term: int
    # The first and the last index held by the journal; first > last when it is empty.
    first_index: int
    last_index: int


class Store(Protocol):
    """A node's durable memory."""

    @property
    def identity(self) -> Identity:
        """Who this store belongs to."""

    def load(self) -> Loaded:
        """Positions, term and vote, as last made durable."""

    def entries(self, first: int, last: int) -> Iterator[JournalEntry]:
        """The journal's entries from ``first`` to ``last``, both included; a bad checksum raises ``CorruptStore``."""

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All state rows, in key order."""

    @property
    def settled_rows_index(self) -> int:
        """The entry that ``settled_rows`` stand for at least."""

    def settled_rows(self) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
        """The rows that can be read now without waiting, newer ones may be durable; the entry they stand for, first."""

    def settle(self) -> bool:
        """Whether ``rows`` and ``entries`` can be read now without waiting; if not, sees to it that they soon can."""

    def write(self, batch: WriteBatch) -> "Future[None]":
        """Queues a batch; the future ends after its fsync, or with the error that stopped the store."""

    def write_later(self, batch: WriteBatch) -> None:
        """Queues rows that the journal leads to, and a compaction: whole, and in order with all that came before.

        What comes afterwards does not wait for them, and a crash may keep it and lose them: the rows are then those of
        before, and the journal still has what follows these. ``settled_rows_index`` tells how far they have come.
        """

    def close(self) -> None:
        """Finishes what was queued and lets go of the files."""


class QuickStore(Store, Protocol):
    """One that may save the way to its thread."""

    def write_at_once(self, batch: WriteBatch) -> bool:
        """Makes a batch durable before it returns, if that can be had quickly; else does nothing and says False."""
