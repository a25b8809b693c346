"""Where the journal and the rows of a store stand, and what a batch may do to that.

The same arithmetic runs twice: when a batch is handed over, so that a wrong one is refused to the caller's face, and
when it is written, on what is durable by then.
"""

from typing import NamedTuple

from resourcelease.storage.api import WriteBatch
from resourcelease.storage.errors import InvalidBatch
from resourcelease.storage.records import KEY_BYTES_MAX

__all__ = ["Positions"]


class Positions(NamedTuple):
    """What the journal and the rows reach to.

    Invariant: ``compacted <= rows_index <= last``, and the journal holds each entry from ``compacted + 1`` to ``last``.
    """

    # Entries up to here are gone, or do not count any more; 0: none.
    compacted: int = 0
    # The last entry; equal to ``compacted`` when the journal is empty.
    last: int = 0
    # The entry that the stored rows stand for.
    rows_index: int = 0
    term: int = 0

    def after(self, batch: WriteBatch) -> "Positions":
        """The positions once ``batch`` is written; raises ``InvalidBatch`` when it does not follow from these."""
        compacted, last, rows_index, term = self
        if self.restarted_by(batch):
            compacted = last = batch.appends[0].index - 1
        elif batch.truncate_from:
            last = self._after_truncation(batch)
        if batch.appends:
            last = _after_appends(batch, last)
        if batch.vote is not None:
            if batch.vote[0] < term:
                raise InvalidBatch(f"the term would fall from {term} to {batch.vote[0]}")
            term = batch.vote[0]
        if batch.rows_index:
            if batch.rows_index < rows_index:
                raise InvalidBatch(f"the rows stand for entry {rows_index} and would go back to {batch.rows_index}")
            rows_index = batch.rows_index
        if batch.row_puts or batch.row_deletes:
            _check_keys(batch)
        if batch.compact_through:
            if batch.compact_through > rows_index:
                raise InvalidBatch(
                    f"compaction through {batch.compact_through} would delete entries that no stored row stands for; "
                    f"the rows reach to {rows_index}"
                )
            compacted = max(compacted, batch.compact_through)
            # Rows that came from elsewhere may stand for more than this journal ever held: it then starts after them.
            last = max(last, compacted)
        if rows_index > last:
            raise InvalidBatch(
                f"the rows would stand for entry {rows_index}, but the journal ends at {last}; rows that replace "
                "the journal come with the entries up to theirs, or with compact_through = rows_index"
            )
        return Positions(compacted, last, rows_index, term)

    def restarted_by(self, batch: WriteBatch) -> bool:
        """Whether the batch empties the journal and begins it anew further on, without leaving out what no row covers.

        So it is with rows that come from a peer, together with the last entries that they stand for.
        """
        if not batch.truncate_from or not batch.appends:
            return False
        remains = min(self.last, max(batch.truncate_from - 1, self.compacted))
        first = batch.appends[0].index
        return (
            remains <= max(self.compacted, batch.compact_through)
            and remains + 1 != first
            and 1 <= first <= max(self.rows_index, batch.rows_index) + 1
        )

    def _after_truncation(self, batch: WriteBatch) -> int:
        cut = batch.truncate_from
        if cut <= self.rows_index and batch.compact_through < self.rows_index:
            raise InvalidBatch(
                f"truncation from {cut} would cut entries that the rows at {self.rows_index} already stand for"
            )
        return min(self.last, max(cut - 1, self.compacted))


def _after_appends(batch: WriteBatch, last: int) -> int:
    for entry in batch.appends:
        if entry.index != last + 1:
            raise InvalidBatch(f"entry {entry.index} does not follow entry {last}: the journal has no gaps")
        last += 1
    return last


def _check_keys(batch: WriteBatch) -> None:
    lengths = [len(key) for key, _ in batch.row_puts]
    lengths += map(len, batch.row_deletes)
    if min(lengths) < 1 or max(lengths) > KEY_BYTES_MAX:
        wrong = next(length for length in lengths if not 1 <= length <= KEY_BYTES_MAX)
        raise InvalidBatch(f"a row's key has {wrong} bytes; it must have 1 to {KEY_BYTES_MAX}")
