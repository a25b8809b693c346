"""The items of a namespace. Those of one enqueue stay together, packed as they came, until something happens to one.

Most items come in a batch, wait, and leave in the order they came. While they wait nobody looks at them, so one string
of bytes for all of them is less to hold, less to store and less to touch than a tuple, an id and a body each. An item
that gets a history (failed, expired, given back, delayed and released) stands alone from then on, as a plain row.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

from resourcelease.machine.blocks import Bits, Blocks
from resourcelease.model import limits
from resourcelease.model.items import ItemColumns, item_rows

__all__ = ["BARE_WEIGHT", "Batch", "Items", "Row", "Rows"]

# In the order of ``model.items.Item``.
Row: TypeAlias = tuple[Any, ...]

# What an item weighs beyond its texts and its body, about.
BARE_WEIGHT = 64

# Batches stay read, those that came in last and those that were leased from last, up to so many bytes of each.
_FRESH_BYTES_MAX = 256 * 1024
_READ_BYTES_MAX = 1024 * 1024
_REQUEST_ID, _LEAD = 6, 9
_UTF8_BYTES_MAX = 4


class Batch:
    """The items of one enqueue: ``packed`` as ``ItemColumns`` pack them."""

    __slots__ = (
        "columns",
        "first_id",
        "lead",
        "left",
        "packed",
        "request_ids",
        "size",
        "stored",
        "wall_ms",
        "weight_max",
    )

    def __init__(self, first_id: int, columns: ItemColumns, packed: bytes, wall_ms: int, lead: int) -> None:
        self.first_id = first_id
        self.packed = packed
        self.wall_ms = wall_ms
        self.lead = lead
        self.size = self.left = columns.size
        # Read lately; None if it would have to be read again.
        self.columns: ItemColumns | None = columns
        self.request_ids: Any = columns.request_id
        # Whether a row of it was stored.
        self.stored = False
        # No less than what all items together weigh.
        self.weight_max = len(packed) + self.size * BARE_WEIGHT
        if self.size > 1:
            self.weight_max += self.size * _shared_weight_max(columns)

    def request_id(self, sequence_id: int) -> str | None:
        """The request id an item came with."""
        ids = self.request_ids
        known: str | None = ids[sequence_id - self.first_id] if type(ids) is list else ids
        return known


def _shared_weight_max(columns: ItemColumns) -> int:
    """No less than what the single values that stand for all items add to each."""
    most = 0
    value: Any
    for value in columns[1:8]:
        kind = type(value)
        if kind is str or kind is bytes:
            most += len(value) * _UTF8_BYTES_MAX
        elif kind is dict:
            most += sum(len(name) + len(text) for name, text in value.items()) * _UTF8_BYTES_MAX
    return most


class Recent:
    """Batches whose columns are at hand; the longest here lose theirs when they are too many."""

    __slots__ = ("_batches", "_bytes", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max

    def add(self, batch: Batch) -> None:
        """A batch that has just been read."""
        self._batches.append(batch)
        self._bytes += len(batch.packed)
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            oldest = self._batches.popleft()
            oldest.columns = None
            self._bytes -= len(oldest.packed)


class Items:
    """Items by sequence id, and what has changed of them since they were last stored."""

    __slots__ = ("_fresh", "_read", "_thin", "_values", "stored_below", "stored_rows", "touched", "touched_batches")

    def __init__(self) -> None:
        self._values: Blocks[Batch | Row] = Blocks()
        self._fresh = Recent(_FRESH_BYTES_MAX)
        self._read = Recent(_READ_BYTES_MAX)
        # Ids from here on were given out since the rows were last taken.
        self.stored_below = 1
        # Items of which there is a row of their own in the store.
        self.stored_rows = Bits()
        # What has changed of those below: items that stand alone, and batches by first id; their size if they are gone.
        self.touched: dict[int, None] = {}
        self.touched_batches: dict[int, Batch | int] = {}
        # Batches of which little is left, by first id: stragglers must not hold the bytes of all for ever.
        self._thin: dict[int, Batch] = {}

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._values

    def __getitem__(self, sequence_id: int) -> Row:
        return self.row(sequence_id, self._values[sequence_id])

    def __setitem__(self, sequence_id: int, row: Row) -> None:
        """An item that stands alone; the id has no item yet."""
        self._values[sequence_id] = row

    def get(self, sequence_id: int) -> Row | None:
        """An item, if it is here."""
        value = self._values.get(sequence_id)
        return None if value is None else self.row(sequence_id, value)

    def entry(self, sequence_id: int) -> Batch | Row | None:
        """An item's row or the batch it is in, if it is here."""
        return self._values.get(sequence_id)

    def many(self, sequence_ids: Sequence[int]) -> "Rows":
        """Items that are all here."""
        return Rows(self, sequence_ids, self._values.many(sequence_ids))

    def runs(self, first_id: int = 0, end_id: int | None = None) -> Iterator[tuple[int, int, Batch | Row]]:
        """Consecutive ids of one batch, or an id with a row of its own: first, end, what it is; lowest first."""
        return self._values.runs(first_id, end_id)

    def batches(self, first_id: int = 0, end_id: int | None = None) -> Iterator[Batch]:
        """Batches of which something is left, those with ids from ``first_id`` up to ``end_id``, lowest first."""
        last = None
        for _, _, value in self._values.runs(first_id, end_id):
            if isinstance(value, Batch) and value is not last:
                last = value
                yield value

    def held(self, batch: Batch) -> list[int]:
        """The ids that are left of a batch, as runs: first and end of each, flat."""
        runs: list[int] = []
        for first, end, value in self._values.runs(batch.first_id, batch.first_id + batch.size):
            if value is batch:
                runs += (first, end)
        return runs

    def add(self, batch: Batch) -> None:
        """The items of an enqueue."""
        self._values.put_run(batch.first_id, [batch] * batch.size)
        self._fresh.add(batch)

    def load(self, batch: Batch, runs: Sequence[int]) -> None:
        """What is left of a batch, from its stored rows."""
        batch.stored = True
        batch.columns = None
        batch.left = 0
        for first, end in zip(runs[::2], runs[1::2], strict=True):
            if not batch.first_id <= first < end <= batch.first_id + batch.size:
                raise ValueError(f"what is left of a batch is not of it: {first} to {end}")
            self._values.put_run(first, [batch] * (end - first))
            batch.left += end - first
        if batch.left <= batch.size // limits.THIN_BATCH_PART:
            self._thin[batch.first_id] = batch

    def read(self, batch: Batch) -> ItemColumns:
        """The columns of a batch."""
        columns = batch.columns
        if columns is None:
            columns = batch.columns = ItemColumns.unpacked(batch.packed)
            self._read.add(batch)
        return columns

    def lead_of(self, sequence_id: int) -> int:
        """What makes an item's place in line from its id; see ``Item.lead``."""
        value = self._values[sequence_id]
        lead: int = value.lead if isinstance(value, Batch) else value[_LEAD]
        return lead

    def weigh_at_most(self, sequence_ids: Sequence[int]) -> int | None:
        """No less than what the items together weigh, where that is quickly told."""
        total = 0
        last = None
        for value in self._values.many(sequence_ids):
            if value is not last:
                if not isinstance(value, Batch):
                    return None
                last = value
                total += value.weight_max
        return total

    def request_ids(self, sequence_ids: Sequence[int]) -> list[str | None]:
        """The request ids that items came with."""
        values = zip(sequence_ids, self._values.many(sequence_ids), strict=True)
        return [value.request_id(i) if isinstance(value, Batch) else value[_REQUEST_ID] for i, value in values]

    def remove(self, sequence_ids: Sequence[int]) -> None:
        """Takes items out; KeyError if one is not here."""
        values = self._values.pop_many(sequence_ids)
        first = values[0]
        if isinstance(first, Batch) and values.count(first) == len(values):
            self._shrink(first, len(values))
            return
        for sequence_id, value in zip(sequence_ids, values, strict=True):
            if isinstance(value, Batch):
                self._shrink(value, 1)
            elif sequence_id < self.stored_below:
                self.touched[sequence_id] = None

    def single_out(self, sequence_id: int) -> None:
        """Makes an item stand alone, if it does not."""
        batch = self._values[sequence_id]
        if isinstance(batch, Batch):
            self._put_apart(batch, sequence_id, self.row(sequence_id, batch))
            self._shrink(batch, 1)

    def touch(self, sequence_ids: Sequence[int]) -> None:
        """Notes that rows of items changed. Those given out since the rows were last taken are looked at anyway."""
        if min(sequence_ids) >= self.stored_below:
            return
        values = self._values.many(sequence_ids)
        first = values[0]
        if isinstance(first, Batch) and values.count(first) == len(values):
            self.touched_batches[first.first_id] = first
            return
        for sequence_id, value in zip(sequence_ids, values, strict=True):
            if sequence_id < self.stored_below:
                if isinstance(value, Batch):
                    self.touched_batches[value.first_id] = value
                else:
                    self.touched[sequence_id] = None

    def row(self, sequence_id: int, value: Batch | Row) -> Row:
        """An item's row from its entry."""
        return self.rows_of(value, sequence_id, sequence_id + 1)[0] if isinstance(value, Batch) else value

    def rows_of(self, batch: Batch, first_id: int, end_id: int) -> list[Row]:
        """Rows of consecutive items of a batch."""
        start = first_id - batch.first_id
        return item_rows(self.read(batch), batch.wall_ms, batch.lead, start, start + end_id - first_id)

    def _shrink(self, batch: Batch, count: int) -> None:
        batch.left -= count
        if batch.left <= batch.size // limits.THIN_BATCH_PART:
            if batch.left:
                self._thin[batch.first_id] = batch
                if len(self._thin) > limits.THIN_BATCHES:
                    self._take_apart(self._thin[min(self._thin)])
            else:
                self._thin.pop(batch.first_id, None)
        if batch.stored:
            self.touched_batches[batch.first_id] = batch if batch.left else batch.size

    def _take_apart(self, batch: Batch) -> None:
        rows = self.rows_of(batch, batch.first_id, batch.first_id + batch.size)
        for first, end in _pairs(self.held(batch)):
            for sequence_id in range(first, end):
                self._put_apart(batch, sequence_id, rows[sequence_id - batch.first_id])
        self._shrink(batch, batch.left)

    def _put_apart(self, batch: Batch, sequence_id: int, row: Row) -> None:
        self._values[sequence_id] = row
        if batch.stored:
            self.touched[sequence_id] = None


def _pairs(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)


class Rows(Sequence[Row]):
    """Rows of items as they were when they were asked for, read from their batches when first looked at."""

    __slots__ = ("_ids", "_items", "_rows", "_values")

    def __init__(self, items: Items, sequence_ids: Sequence[int], values: list[Batch | Row]) -> None:
        self._items = items
        self._ids = sequence_ids
        self._values = values
        self._rows: list[Row] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        return self._all()[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> list[Row]:
        if self._rows is None:
            value, first, last = self._values[0], self._ids[0], self._ids[-1]
            of_one = isinstance(value, Batch) and self._values.count(value) == len(self._values)
            if of_one and list(self._ids) == list(range(first, last + 1)):
                assert isinstance(value, Batch)
                self._rows = self._items.rows_of(value, first, last + 1)
                return self._rows
            self._rows = [self._items.row(i, value) for i, value in zip(self._ids, self._values, strict=True)]
        return self._rows
