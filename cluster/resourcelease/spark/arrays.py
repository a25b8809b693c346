"""Arrow arrays from what records hold: values that stand for runs of rows, and values a row."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Rows", "Sparse", "Texts", "numbers", "optional_texts", "struct"]

_TEXTS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

# 0, 1, 2 and so on, for batches of the usual size.
_COUNTED = array("q", range(1 << 16))


def numbers(values: array) -> pa.Array:  # type: ignore[type-arg]
    """An ``array('q')`` as it lies in memory."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def struct(kind: pa.DataType, column: Callable[[str], pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """A struct of the fields that ``kind`` has; rows where ``mask`` is true are null."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return pa.StructArray.from_arrays([column(field.name) for field in fields], fields=fields, mask=mask)


class Rows:
    """Runs of rows, each behind the one before; ``ends`` are the rows behind their last ones."""

    def __init__(self, ends: array) -> None:  # type: ignore[type-arg]
        self.size: int = ends[-1] if ends else 0
        self._starts = array("q", [0, *ends[:-1]])
        self._ends = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])

    def spread(self, values: pa.Array) -> pa.Array:
        """A value a run as a value a row."""
        kind = pa.run_end_encoded(pa.int32(), values.type)
        # Not ``from_arrays``, which looks in vain for a module every time, and takes most of the time that this does.
        runs = pa.RunEndEncodedArray.from_buffers(kind, self.size, [None], children=[self._ends, values])
        return pc.run_end_decode(runs)

    def each(self, values: Sequence[Any], counts: Sequence[int]) -> pa.Array:
        """Numbers, of which each run has one for each row, or one for all of its rows."""
        if all(type(value) is int for value in values):
            return self.spread(numbers(array("q", values)))
        # A list grows at half the cost of an array.
        found: list[int] = []
        for value, count in zip(values, counts, strict=True):
            if type(value) is int:
                found += (value,) * count
            elif len(value) != count:
                raise ValueError("the columns do not have as many values as there are events")
            else:
                found += value
        return numbers(array("q", found))

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """A text a run as a text a row; mostly one text stands in all of them."""
        if values and type(values[0]) is str and values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], pa.string()), self.size)
        return self.spread(pa.array(values, pa.string()))

    def numbered(self) -> pa.Array:
        """In each row the number of its run, from 0."""
        return self.spread(_count_up(len(self._starts)))

    def rising(self, firsts: Sequence[int]) -> pa.Array:
        """Numbers that rise by one from row to row within a run."""
        before = array("q", [first - start for first, start in zip(firsts, self._starts, strict=True)])
        return pc.add(self.spread(numbers(before)), _count_up(self.size))


def _count_up(size: int) -> pa.Array:
    """0, 1, 2 and so on."""
    if len(_COUNTED) < size:
        return numbers(array("q", range(size)))
    return numbers(_COUNTED)[:size]


class Sparse:
    """Rows that have something, among many that have nothing."""

    def __init__(self) -> None:
        self._ends = array("i")
        # For each run: the place of its first value less its first row; None where the rows have nothing.
        self._shifts: list[int | None] = []
        # For each run: how many values come before it.
        self._before: list[int] = []
        self._rows = self._size = 0

    def add(self, row: int, count: int) -> None:
        """The rows from ``row`` on have the next ``count`` values."""
        if row > self._rows:
            self._none_until(row)
        self._ends.append(row + count)
        self._before.append(self._size)
        self._shifts.append(self._size - row)
        self._rows = row + count
        self._size += count

    def _none_until(self, row: int) -> None:
        self._ends.append(row)
        self._shifts.append(None)
        self._before.append(self._size)

    def spread(self, values: pa.Array, rows: int) -> pa.Array:
        """The values, each in its row."""
        if not self._size:
            return pa.nulls(rows, values.type)
        if rows > self._rows:
            self._none_until(rows)
        if rows == self._size:
            return values
        places = pc.add(Rows(self._ends).spread(pa.array(self._shifts, pa.int64())), _count_up(rows))
        if not pa.types.is_struct(values.type) or values.null_count:
            return values.take(places)
        fields = [values.type.field(place) for place in range(values.type.num_fields)]
        # Where a row has nothing, its text is the empty one before the next value.
        before = Rows(self._ends).spread(numbers(array("q", self._before)))
        starts = pa.concat_arrays([pc.coalesce(places, before), pa.array([self._size], pa.int64())])
        spread = [_spread(one, places, starts) for one in values.flatten()]
        return pa.StructArray.from_arrays(spread, fields=fields, mask=pc.is_null(places))


def _spread(values: pa.Array, places: pa.Array, starts: pa.Array) -> pa.Array:
    """One field of values, each in its row; of texts and bytes only the offsets are made anew."""
    kind = values.type
    if values.null_count == len(values):
        return pa.nulls(len(places), kind)
    if values.null_count or values.offset or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return values.take(places)
    _, offsets, content = values.buffers()
    old = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, offsets])
    return pa.Array.from_buffers(kind, len(places), [None, old.take(starts).buffers()[1], content], null_count=0)


class Texts:
    """Maps of texts, one after the other."""

    def __init__(self) -> None:
        self._offsets = array("i", [0])
        # What is put here goes to the map that ``end`` ends.
        self.keys: list[str] = []
        self.values: list[str] = []
        # To be told how many keys there are where a map ends.
        self.end_at = self._offsets.append

    def add(self, texts: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """One map."""
        pairs = texts.items() if isinstance(texts, Mapping) else texts
        for key, value in pairs:
            self.keys.append(key)
            self.values.append(value)
        self.end()

    def end(self) -> None:
        """A map ends here."""
        self.end_at(len(self.keys))

    def finish(self) -> pa.Array:
        """All of them."""
        offsets = pa.Array.from_buffers(pa.int32(), len(self._offsets), [None, pa.py_buffer(self._offsets)])
        keys, values = pa.array(self.keys, pa.string()), pa.array(self.values, pa.string())
        return pa.MapArray.from_arrays(offsets, keys, values, _TEXTS)


def optional_texts(maps: Sequence[Any]) -> pa.Array:
    """Maps of texts, some of which are None."""
    if not any(maps):
        return pa.nulls(len(maps), _TEXTS)
    return pa.array([None if one is None else list(one.items()) for one in maps], _TEXTS)
