"""Arrow arrays from what records hold: values that stand for runs of rows, and values a row."""

import struct as packing
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import sub
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TEXTS", "Rows", "numbers", "optional_texts", "spread_some", "struct", "texts_of"]

TEXTS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

_NOTHING, _NONE = pa.array([0], pa.int32()), pa.scalar(None, pa.int32())
_NUMBERS = {"q": pa.int64(), "i": pa.int32()}

# 0, 1, 2 and so on, for batches of the usual size.
_COUNTED = array("q", range(1 << 16))


def numbers(values: Sequence[int], kind: str = "q") -> pa.Array:
    """Numbers of 64 bits, or of 32 (``i``). ValueError if something else is among them, or one is too large."""
    # A third of the time that pyarrow takes for it, or an array.
    try:
        packed = packing.pack(f"{len(values)}{kind}", *values)
    except packing.error as error:
        raise ValueError(f"not a number, or too large a one: {error}") from error
    return pa.Array.from_buffers(_NUMBERS[kind], len(values), [None, pa.py_buffer(packed)])


def struct(kind: pa.DataType, column: Callable[[str], pa.Array], mask: pa.Array | None = None) -> pa.Array:
    """A struct of the fields that ``kind`` has; rows where ``mask`` is true are null."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return pa.StructArray.from_arrays([column(field.name) for field in fields], fields=fields, mask=mask)


class Rows:
    """Runs of rows, each behind the one before; ``counts`` says how many rows each has."""

    def __init__(self, counts: Sequence[int]) -> None:
        starts = list(accumulate(counts, initial=0))
        self.size: int = starts.pop() if counts else 0
        self._counts = counts
        self.starts: Sequence[int] = starts
        self._ends = numbers([*starts[1:], self.size] if counts else [], "i")

    def spread(self, values: pa.Array) -> pa.Array:
        """A value a run as a value a row."""
        kind = pa.run_end_encoded(pa.int32(), values.type)
        # Not ``from_arrays``, which looks in vain for a module every time, and takes most of the time that this does.
        runs = pa.RunEndEncodedArray.from_buffers(kind, self.size, [None], children=[self._ends, values])
        return pc.run_end_decode(runs)

    def each(self, values: Sequence[Any]) -> pa.Array:
        """Numbers: for each run a list with one for each of its rows, a range likewise, or one for all of its rows."""
        kinds = set(map(type, values))
        if kinds == {int}:
            return self.spread(numbers(values))
        if not kinds <= {int, range, list}:
            raise ValueError("something else stands where numbers belong")
        if int in kinds:
            pairs = zip(values, self._counts, strict=True)
            values = [[value] * count if type(value) is int else value for value, count in pairs]
        if list(map(len, values)) != list(self._counts):
            raise ValueError("the columns do not have as many values as there are events")
        return numbers(list(chain.from_iterable(values)))

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """A text a run as a text a row; mostly one text stands in all of them."""
        if values and type(values[0]) is str and values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], pa.string()), self.size)
        return self.spread(pa.array(values, pa.string()))

    def numbered(self) -> pa.Array:
        """In each row the number of its run, from 0."""
        return self.spread(_count_up(len(self.starts)))

    def rising(self, firsts: Sequence[int]) -> pa.Array:
        """Numbers that rise by one from row to row within a run."""
        return pc.add(self.spread(numbers(list(map(sub, firsts, self.starts)))), _count_up(self.size))


def _count_up(size: int) -> pa.Array:
    """0, 1, 2 and so on."""
    if len(_COUNTED) < size:
        return numbers(range(size))
    return pa.Array.from_buffers(pa.int64(), size, [None, pa.py_buffer(_COUNTED)])


def spread_some(values: pa.Array, rows: Rows, counts: Sequence[int]) -> pa.Array:
    """Values one behind the other, each in its row; ``counts``: how many each run has, which is all of its or none."""
    size = sum(counts)
    if len(values) != size:
        raise ValueError("there are not as many values as there are events")
    if not size:
        return pa.nulls(rows.size, values.type)
    if size == rows.size:
        return values
    there = rows.spread(pa.array(list(map(bool, counts)), pa.bool_()))
    # Before each row, and behind the last, so many values.
    starts = pc.cumulative_sum(pa.concat_arrays([_NOTHING, there.cast(pa.int32())]))
    places = pc.if_else(there, starts[:-1], _NONE)
    if not pa.types.is_struct(values.type) or values.null_count:
        return values.take(places)
    fields = [values.type.field(place) for place in range(values.type.num_fields)]
    spread = [_spread(one, places, starts) for one in values.flatten()]
    return pa.StructArray.from_arrays(spread, fields=fields, mask=pc.invert(there))


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


def texts_of(keys: Sequence[str], values: Sequence[str], sizes: Sequence[int]) -> pa.Array:
    """Maps of texts; ``sizes`` says how many of the keys each has."""
    offsets = numbers(list(accumulate(sizes, initial=0)), "i")
    return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, pa.string()), TEXTS)


def optional_texts(maps: Sequence[Any]) -> pa.Array:
    """Maps of texts, some of which are None."""
    if not any(maps):
        return pa.nulls(len(maps), TEXTS)
    return pa.array([None if one is None else list(one.items()) for one in maps], TEXTS)
