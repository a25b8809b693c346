"""Values by sequence id, in blocks of consecutive ids.

Ids are given out in a row and mostly end in a row, so what a dict would do item by item is done here by slices, and a
million items make many small lists instead of one table that has to be rebuilt whole as it grows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Bits", "Blocks"]

V = TypeVar("V")

# Small: one item that stays behind keeps the place of its neighbours.
SHIFT = 6
SIZE = 1 << SHIFT
_MASK = SIZE - 1


class Block(Generic[V]):
    """Values of ``SIZE`` consecutive ids; None where there is none."""

    __slots__ = ("kept", "values")

    def __init__(self) -> None:
        self.values: list[V | None] = [None] * SIZE
        self.kept = 0


# A stretch of one block: the block, start, stop, and the block's number.
Piece: TypeAlias = tuple[Block[V], int, int, int]


class Blocks(Generic[V]):
    """A map from sequence ids to values that are not None."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, Block[V]] = {}

    def __contains__(self, sequence_id: int) -> bool:
        return self.get(sequence_id) is not None

    def __getitem__(self, sequence_id: int) -> V:
        value = self._blocks[sequence_id >> SHIFT].values[sequence_id & _MASK]
        if value is None:
            raise KeyError(sequence_id)
        return value

    def __setitem__(self, sequence_id: int, value: V) -> None:
        block = self._block(sequence_id >> SHIFT)
        block.kept += block.values[sequence_id & _MASK] is None
        block.values[sequence_id & _MASK] = value

    def runs(self, first_id: int = 0, end_id: int | None = None) -> Iterator[tuple[int, int, V]]:
        """Consecutive ids with one value, from ``first_id`` up to ``end_id``: first, end, value; lowest first.

        What there is costs a step a block, not a step an id, wherever the values of a block are all the same.
        """
        first = end = 0
        last: V | None = None
        for number in self._numbers(first_id, end_id):
            values = self._blocks[number].values
            at = number << SHIFT
            value = values[0]
            if first_id <= at and (end_id is None or at + SIZE <= end_id) and values.count(value) == SIZE:
                pieces: Iterable[tuple[int, int, V | None]] = ((at, at + SIZE, value),)
            else:
                start, stop = max(first_id - at, 0), SIZE if end_id is None else min(end_id - at, SIZE)
                pieces = ((i, i + 1, value) for i, value in enumerate(values[start:stop], at + start))
            for piece_first, piece_end, value in pieces:
                if value is last and piece_first == end:
                    end = piece_end
                    continue
                if last is not None:
                    yield first, end, last
                first, end, last = piece_first, piece_end, value
        if last is not None:
            yield first, end, last

    def _numbers(self, first_id: int, end_id: int | None) -> Iterable[int]:
        """The blocks that hold any of these ids, in order; by whichever way is shorter."""
        blocks, low = self._blocks, first_id >> SHIFT
        if end_id is not None:
            numbers = range(low, (end_id - 1 >> SHIFT) + 1)
            if len(numbers) <= len(blocks):
                return (number for number in numbers if number in blocks)
            return sorted(number for number in blocks if number in numbers)
        return sorted(number for number in blocks if number >= low)

    def get(self, sequence_id: int) -> V | None:
        """The value, if there is one."""
        block = self._blocks.get(sequence_id >> SHIFT)
        return None if block is None else block.values[sequence_id & _MASK]

    def many(self, sequence_ids: Sequence[int]) -> list[V]:
        """The values of ids that all have one."""
        if len(sequence_ids) == 1:
            return [self[sequence_ids[0]]]
        return self._at(self._pieces(sequence_ids))

    def holds_all(self, first_id: int, count: int, value: V) -> bool:
        """Whether so many consecutive ids all have this value."""
        end_id = first_id + count
        while first_id < end_id:
            block = self._blocks.get(first_id >> SHIFT)
            start = first_id & _MASK
            stop = min(SIZE, start + end_id - first_id)
            if block is None or block.values[start:stop].count(value) != stop - start:
                return False
            first_id += stop - start
        return True

    def put_run(self, first_id: int, values: Sequence[V]) -> None:
        """Values for consecutive ids that have none yet."""
        if len(values) == 1 and first_id not in self:
            self[first_id] = values[0]
            return
        done = 0
        while done < len(values):
            sequence_id = first_id + done
            start = sequence_id & _MASK
            part = values[done : done + SIZE - start]
            block = self._block(sequence_id >> SHIFT)
            if block.values[start : start + len(part)].count(None) != len(part):
                raise ValueError(f"some of the ids from {sequence_id} on have values already")
            block.values[start : start + len(part)] = part
            block.kept += len(part)
            done += len(part)

    def pop_many(self, sequence_ids: Sequence[int]) -> list[V]:
        """Takes values out; KeyError if one is not there."""
        if len(sequence_ids) == 1:
            return [self._pop(sequence_ids[0])]
        pieces = list(self._pieces(sequence_ids))
        values = self._at(pieces)
        for block, start, stop, number in pieces:
            block.values[start:stop] = [None] * (stop - start)
            block.kept -= stop - start
            if not block.kept:
                del self._blocks[number]
        return values

    def _pop(self, sequence_id: int) -> V:
        value = self[sequence_id]
        block = self._blocks[sequence_id >> SHIFT]
        block.values[sequence_id & _MASK] = None
        block.kept -= 1
        if not block.kept:
            del self._blocks[sequence_id >> SHIFT]
        return value

    def _block(self, number: int) -> Block[V]:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block()
        return block

    @staticmethod
    def _at(pieces: Iterable[Piece[V]]) -> list[V]:
        values: list[V] = []
        for block, start, stop, _ in pieces:
            values += block.values[start:stop]  # type: ignore[arg-type]
        if None in values:
            raise KeyError("an id has no value")
        return values

    def _pieces(self, sequence_ids: Sequence[int]) -> Iterator[Piece[V]]:
        """Where ids lie: block, start, stop and number of each stretch; of a consecutive run, one stretch a block."""
        blocks = self._blocks
        first, last = sequence_ids[0], sequence_ids[-1]
        if last - first != len(sequence_ids) - 1 or list(sequence_ids) != list(range(first, last + 1)):
            for sequence_id in sequence_ids:
                place = sequence_id & _MASK
                yield blocks[sequence_id >> SHIFT], place, place + 1, sequence_id >> SHIFT
            return
        while first <= last:
            number, start = first >> SHIFT, first & _MASK
            stop = min(SIZE, start + last - first + 1)
            yield blocks[number], start, stop, number
            first += stop - start


class Bits:
    """Which ids: one bit an id."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words: dict[int, int] = {}

    def __contains__(self, sequence_id: int) -> bool:
        return bool(self._words.get(sequence_id >> SHIFT, 0) >> (sequence_id & _MASK) & 1)

    def within(self, first_id: int, end_id: int) -> list[int]:
        """The ids noted from one on, up to another, which is left out."""
        words = self._words
        found = []
        for number in range(first_id >> SHIFT, (end_id - 1 >> SHIFT) + 1) if words else ():
            if word := words.get(number):
                base = number << SHIFT
                found += [base + bit for bit in range(SIZE) if word >> bit & 1]
        return [sequence_id for sequence_id in found if first_id <= sequence_id < end_id]

    def add(self, sequence_id: int) -> None:
        """Notes an id."""
        number = sequence_id >> SHIFT
        self._words[number] = self._words.get(number, 0) | 1 << (sequence_id & _MASK)

    def discard(self, sequence_id: int) -> None:
        """Forgets an id."""
        number = sequence_id >> SHIFT
        left = self._words.get(number, 0) & ~(1 << (sequence_id & _MASK))
        if left:
            self._words[number] = left
        else:
            self._words.pop(number, None)
