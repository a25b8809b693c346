"""What is remembered for a while: answers, settled items, ended request ids."""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Generic, TypeVar

__all__ = ["Window"]

K = TypeVar("K")
V = TypeVar("V")


class Chunk(Generic[K, V]):
    """Everything that is forgotten at one reading of the clock, in the order it came."""

    __slots__ = ("expires_ms", "kept")

    def __init__(self, expires_ms: int) -> None:
        self.expires_ms = expires_ms
        self.kept: dict[K, V] = {}


class Window(Generic[K, V]):
    """A map whose entries end at a reading of the clock.

    Entries of one millisecond share a chunk: forgetting costs one step a chunk, and a chunk is one stored row. An entry
    past its time is not found, whether or not it has been dropped yet.
    """

    __slots__ = ("_chunks", "_order", "_where", "touched")

    def __init__(self) -> None:
        self._where: dict[K, Chunk[K, V]] = {}
        self._chunks: dict[int, Chunk[K, V]] = {}
        self._order: list[int] = []
        # Chunks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._where)

    def get(self, key: K, clock_ms: int) -> V | None:
        """The value, unless its time is over."""
        chunk = self._where.get(key)
        return chunk.kept[key] if chunk is not None and clock_ms < chunk.expires_ms else None

    def add(self, key: K, value: V, expires_ms: int) -> None:
        """Remembers one value, as the newest; an older one under the same key is replaced."""
        if key in self._where:
            self.discard(key)
        chunk = self._chunk(expires_ms)
        chunk.kept[key] = value
        self._where[key] = chunk

    def add_many(self, keys: Iterable[K], values: Iterable[V], expires_ms: int) -> None:
        """Remembers values under keys that are not in the window."""
        chunk = self._chunk(expires_ms)
        keys = list(keys)
        chunk.kept.update(zip(keys, values, strict=True))
        self._where.update(zip(keys, repeat(chunk)))

    def discard(self, key: K) -> None:
        """Forgets one key, if it is there."""
        chunk = self._where.pop(key, None)
        if chunk is not None:
            del chunk.kept[key]
            self.touched[chunk.expires_ms] = None
            if not chunk.kept:
                del self._chunks[chunk.expires_ms]

    def purge(self, clock_ms: int, limit: int | None = None) -> list[K]:
        """Drops what is past its time, and over the limit what comes next, but never the last chunk. Says what went."""
        gone: list[K] = []
        order = self._order
        while order and (order[0] <= clock_ms or (limit is not None and len(self._where) > limit)):
            chunk = self._chunks.get(order[0])
            if chunk is not None:
                if chunk.expires_ms > clock_ms and len(self._chunks) == 1:
                    break
                gone.extend(chunk.kept)
                for key in chunk.kept:
                    del self._where[key]
                del self._chunks[chunk.expires_ms]
                self.touched[chunk.expires_ms] = None
            heappop(order)
        return gone

    def chunks(self) -> Iterator[tuple[int, dict[K, V]]]:
        """Every chunk, first to be forgotten first, with its content in the order it came."""
        for expires_ms in sorted(self._chunks):
            yield expires_ms, self._chunks[expires_ms].kept

    def chunk(self, expires_ms: int) -> dict[K, V] | None:
        """The content of one chunk."""
        chunk = self._chunks.get(expires_ms)
        return None if chunk is None else chunk.kept

    def take_touched(self) -> list[int]:
        """The chunks that changed since the last call, in the order they changed."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _chunk(self, expires_ms: int) -> Chunk[K, V]:
        self.touched[expires_ms] = None
        chunk = self._chunks.get(expires_ms)
        if chunk is None:
            chunk = self._chunks[expires_ms] = Chunk(expires_ms)
            heappush(self._order, expires_ms)
            if len(self._order) > 2 * len(self._chunks) + 16:
                self._order = list(self._chunks)
                heapify(self._order)
        return chunk
