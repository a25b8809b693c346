"""Snapshots on their way: the stored rows of one position, in numbered chunks.

The sender reads the rows that have settled, which stay what they are while it reads, whatever is written meanwhile.
The receiver takes a snapshot whole or not at all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgpack

from resourcelease.consensus.journal import Entry, Journal
from resourcelease.consensus.wire import Chunk
from resourcelease.storage.api import Store
from resourcelease.storage.errors import RowsChanged

__all__ = ["Arrived", "Incoming", "Outgoing", "is_here"]

Row = tuple[bytes, bytes]


class Arrived(NamedTuple):
    """A snapshot that is complete."""

    sender: str
    log_index: int
    log_term: int
    # The last two entries that it covers.
    head: tuple[Entry, Entry]
    rows: list[Row]


def is_here(snapshot: Arrived | Chunk, journal: Journal, applied_index: int) -> bool:
    """Whether all that a snapshot stands for is here, committed or as its last entry in the log.

    Guard **snapseq**: the library puts a snapshot in the place of the whole log. What follows that entry here may have
    been acknowledged, so it must not be cut.
    """
    index = snapshot.log_index
    held = journal.holds(index) and journal.term_at(index) == snapshot.log_term
    return held or index <= applied_index


@dataclass(slots=True)
class _Transfer:
    snapshot: int
    index: int
    term: int
    head: list[Entry]
    rows: Iterator[Row]
    digest: blake2b
    number: int = 0
    # When the last chunk left; 0 while there are more to come.
    ended_at: float = 0.0


class Outgoing:
    """The snapshots that this leader is sending, at most one a follower."""

    def __init__(
        self,
        *,
        store: Store,
        journal: Journal,
        incarnation: int,
        chunk_bytes: int,
        answer_s: float,
    ) -> None:
        self._store = store
        self._journal = journal
        self._incarnation = incarnation
        self._chunk_bytes = chunk_bytes
        self._answer_s = answer_s
        self._transfers: dict[str, _Transfer] = {}
        # Followers for whom there was nothing to begin with.
        self._waiting: set[str] = set()
        self._count = 0

    @property
    def sending(self) -> bool:
        """Whether there are chunks to send."""
        return bool(self._transfers) and any(not transfer.ended_at for transfer in self._transfers.values())

    def floor(self, unsent: Iterable[int] = ()) -> int | None:
        """The lowest position in transfer: what follows it must stay in the journal until it has arrived.

        Where a follower waits, the one that would be sent counts, too. ``unsent`` are further ones: the first entries
        that followers have yet to be sent.
        """
        positions = [*unsent, *(transfer.index for transfer in self._transfers.values())]
        if self._waiting:
            positions.append(self._store.settled_rows_index)
        return min(positions, default=None)

    def cancel(self, peer: str) -> None:
        """Its connection is gone, or it has what it needs."""
        self._transfers.pop(peer, None)
        self._waiting.discard(peer)

    def cancel_all(self) -> None:
        """This node no longer leads."""
        self._transfers.clear()
        self._waiting.clear()

    def answered(self, peer: str, index: int) -> None:
        """A follower holds the log up to here."""
        transfer = self._transfers.get(peer)
        if transfer is not None and index >= transfer.index:
            self.cancel(peer)

    def next_chunk(self, peer: str, now: float) -> Chunk | None:
        """The next piece, beginning a transfer if there is none; None while the last one waits for its answer."""
        transfer = self._transfers.get(peer)
        if transfer is not None and transfer.ended_at:
            if now - transfer.ended_at < self._answer_s:
                return None
            transfer = None
        if transfer is None:
            transfer = self._begin(peer)
            if transfer is None:
                return None
        try:
            return self._chunk(transfer, now)
        except RowsChanged:
            # The store could not keep the view; the next call begins with newer rows.
            self.cancel(peer)
            return None

    def _begin(self, peer: str) -> _Transfer | None:
        # Newer rows may be durable, and on their way to where they can be read. Under a steady load some always are.
        index, rows = self._store.settled_rows()
        if not self._journal.holds(index - 1) or not self._journal.holds(index):
            # The journal was cut for newer rows, which are to settle; it is not cut for yet newer ones before.
            self._store.settle()
            self._waiting.add(peer)
            return None
        self._waiting.discard(peer)
        self._count += 1
        head = [self._journal.entry(index - 1), self._journal.entry(index)]
        transfer = _Transfer(self._count, index, self._journal.term_at(index), head, rows, blake2b(digest_size=16))
        self._transfers[peer] = transfer
        return transfer

    def _chunk(self, transfer: _Transfer, now: float) -> Chunk:
        rows: list[Row] = []
        size = 0
        last = True
        for key, value in transfer.rows:
            rows.append((key, value))
            size += len(key) + len(value)
            if size >= self._chunk_bytes:
                last = False
                break
        transfer.digest.update(msgpack.packb(rows))
        if last:
            transfer.ended_at = now
        number = transfer.number
        transfer.number += 1
        return Chunk(
            incarnation=self._incarnation,
            snapshot=transfer.snapshot,
            last=last,
            number=number,
            log_index=transfer.index,
            log_term=transfer.term,
            head=transfer.head if number == 0 else [],
            rows=rows,
            digest=transfer.digest.digest() if last else b"",
        )


@dataclass(slots=True)
class _Receipt:
    identity: tuple[str, int, int, int, int]
    head: list[Entry]
    rows: list[Row] = field(default_factory=list)
    next_number: int = 0
    digest: blake2b = field(default_factory=lambda: blake2b(digest_size=16))


class Incoming:
    """The snapshot that is arriving.

    Guard **snapseq**: a snapshot sent twice, or one whose connection broke in the middle, would be spliced from pieces
    that do not belong together, and the result answered with success. So chunks carry the sender's run, the snapshot
    and a number; what does not continue what is here is dropped, and the whole must have the digest it was sent with.
    """

    def __init__(self, *, guarded: bool = True) -> None:
        self._guarded = guarded
        self._receipt: _Receipt | None = None

    def accept(self, sender: str, chunk: Chunk) -> Arrived | None:
        """Takes a chunk; the snapshot once it is whole."""
        identity = (sender, chunk.incarnation, chunk.snapshot, chunk.log_index, chunk.log_term)
        receipt = self._receipt
        if chunk.number == 0 and len(chunk.head) == 2:
            receipt = self._receipt = _Receipt(identity, chunk.head)
        if receipt is None:
            return None
        if self._guarded and (receipt.identity != identity or receipt.next_number != chunk.number):
            self._receipt = None
            return None
        receipt.next_number = chunk.number + 1
        receipt.rows.extend(chunk.rows)
        receipt.digest.update(msgpack.packb(chunk.rows))
        if not chunk.last:
            return None
        self._receipt = None
        if self._guarded and receipt.digest.digest() != chunk.digest:
            return None
        before_last, last = receipt.head
        return Arrived(sender, last[1], last[2], (before_last, last), receipt.rows)
