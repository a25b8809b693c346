"""How items ended that are gone, for a while: so that a repeated ack is recognised."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from resourcelease.model import limits

__all__ = ["Gone", "Settled"]

# A block that knows more items than this has a place for each of its ids: eight bytes, where an entry takes a hundred.
_FEW = 64
_FENCE_MAX = (1 << 63) - 1


class Gone(NamedTuple):
    """How a settled item left, if not by completion: drained or discarded, and its last fence (0: none)."""

    fence: int
    how: str


class _Block:
    """How items of one block of ids ended, a completed one by its fence; and when all that is forgotten."""

    __slots__ = ("expires_ms", "fences", "first_id", "odd")

    def __init__(self, first_id: int) -> None:
        self.first_id = first_id
        self.expires_ms = 0
        # Fences by place, 0 where there is none; and everything else, or everything as long as that is little.
        self.fences: array[int] | None = None
        self.odd: dict[int, int | Gone] = {}

    def get(self, sequence_id: int) -> int | Gone | None:
        """How the item ended."""
        fence = 0 if self.fences is None else self.fences[sequence_id - self.first_id]
        return fence or self.odd.get(sequence_id)

    def put(self, sequence_ids: Sequence[int], hows: Sequence[int | Gone]) -> None:
        """How items of this block ended."""
        if self.fences is None:
            self.odd.update(zip(sequence_ids, hows, strict=True))
            if len(self.odd) > _FEW:
                self.fences = array("q", bytes(8 * limits.SETTLED_BLOCK))
                known, self.odd = self.odd, {}
                self._put_each(list(known), list(known.values()))
        elif not self._put_run(sequence_ids, hows):
            self._put_each(sequence_ids, hows)

    def _put_run(self, sequence_ids: Sequence[int], hows: Sequence[int | Gone]) -> bool:
        """Consecutive ids, all completed; False, and nothing done, if that is not what they are."""
        first, many = sequence_ids[0], len(sequence_ids)
        if many == 1 or self.odd or list(sequence_ids) != list(range(first, first + many)):
            return False
        assert self.fences is not None
        try:
            run: array[int] = array("q", hows)  # type: ignore[arg-type]  # that is what is tried
        except (TypeError, OverflowError):
            return False
        if len(run) != many or min(run) < 1:
            return False
        self.fences[first - self.first_id : first - self.first_id + many] = run
        return True

    def _put_each(self, sequence_ids: Sequence[int], hows: Sequence[int | Gone]) -> None:
        fences, odd = self.fences, self.odd
        assert fences is not None
        for sequence_id, how in zip(sequence_ids, hows, strict=True):
            place = sequence_id - self.first_id
            if type(how) is int and 0 < how <= _FENCE_MAX:
                fences[place] = how
                if odd:
                    odd.pop(sequence_id, None)
            else:
                fences[place] = 0
                odd[sequence_id] = how

    def discard(self, sequence_id: int) -> bool:
        """Forgets one item; whether it was known."""
        if self.fences is not None and self.fences[sequence_id - self.first_id]:
            self.fences[sequence_id - self.first_id] = 0
            return True
        return self.odd.pop(sequence_id, None) is not None

    def forget(self) -> None:
        """Forgets all."""
        self.fences, self.odd = None, {}

    def row(self) -> list[Any]:
        """Plain values, in the order of ids."""
        known: list[tuple[int, int | Gone]] = list(self.odd.items())
        if self.fences is not None:
            known += [(sequence_id, fence) for sequence_id, fence in enumerate(self.fences, self.first_id) if fence]
        return [self.expires_ms, sorted(known)]


class Settled:
    """How items ended that are gone. A block of ids is forgotten whole, a window after the last of it ended.

    At most ``limits.SETTLED_BLOCKS`` blocks of ``limits.SETTLED_BLOCK`` ids are kept; the one longest unwritten goes
    first, of several the one with the lowest ids.
    """

    __slots__ = ("_blocks", "touched")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        # Blocks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def get(self, sequence_id: int, clock_ms: int) -> int | Gone | None:
        """How the item ended, if that is still known."""
        block = self._blocks.get(sequence_id // limits.SETTLED_BLOCK)
        return block.get(sequence_id) if block is not None and clock_ms < block.expires_ms else None

    def add(self, sequence_ids: Sequence[int], hows: Sequence[int | Gone], clock_ms: int) -> None:
        """Remembers how items ended, now."""
        size = limits.SETTLED_BLOCK
        if len(sequence_ids) == 1:
            self._open(sequence_ids[0] // size, clock_ms).put(sequence_ids, hows)
            return
        place = 0
        while place < len(sequence_ids):
            number = sequence_ids[place] // size
            # As many as a run of ids would have in this block, if that is what these are; else one by one.
            stop = min(len(sequence_ids), place + size - sequence_ids[place] % size)
            part = sequence_ids[place:stop]
            if min(part) // size != number or max(part) // size != number:
                part = part[:1]
            self._open(number, clock_ms).put(part, hows[place : place + len(part)])
            place += len(part)

    def discard(self, sequence_id: int) -> None:
        """Forgets one item: it is back."""
        number = sequence_id // limits.SETTLED_BLOCK
        block = self._blocks.get(number)
        if block is not None and block.discard(sequence_id):
            self.touched[number] = None

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Every block by number, packed as plain values."""
        for number in sorted(self._blocks):
            yield number, self.row(number)

    def row(self, number: int) -> Any:
        """One block as plain values, in the order of ids; None if there is none."""
        block = self._blocks.get(number)
        return None if block is None else block.row()

    def load(self, number: int, row: Any) -> None:
        """A block from such a row."""
        block = self._blocks[number] = _Block(number * limits.SETTLED_BLOCK)
        block.expires_ms = row[0]
        hows = [how if type(how) is int else Gone._make(how) for _, how in row[1]]
        block.put([sequence_id for sequence_id, _ in row[1]], hows)

    def take_touched(self) -> list[int]:
        """The numbers of the blocks that changed since the last call."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _open(self, number: int, clock_ms: int) -> _Block:
        """The block, empty if its time was over, and known for a window from now on."""
        self.touched[number] = None
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block(number * limits.SETTLED_BLOCK)
        elif block.expires_ms <= clock_ms:
            block.forget()
        block.expires_ms = clock_ms + limits.ANSWER_WINDOW_MS
        if len(self._blocks) > limits.SETTLED_BLOCKS:
            oldest = min((other.expires_ms, n) for n, other in self._blocks.items() if n != number)[1]
            del self._blocks[oldest]
            self.touched[oldest] = None
        return block
