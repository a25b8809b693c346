"""What is remembered for a while: ended request ids."""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Window"]

K = TypeVar("K")
V = TypeVar("V")

# Key, value, and the reading of the clock at which they are forgotten.
_Entry: TypeAlias = tuple[K, V, int]


class _Crowd(Generic[K, V]):
    """Several entries that are forgotten at one reading of the clock."""

    __slots__ = ("entries", "live")

    def __init__(self, entries: list[_Entry[K, V]]) -> None:
        # In the order they came; also those that were forgotten before their time.
        self.entries = entries
        self.live = len(entries)


class Window(Generic[K, V]):
    """A map whose entries end at a reading of the clock.

    Entries of one millisecond share a chunk: forgetting costs one step a chunk, and a chunk is one stored row. An entry
    past its time is not found, whether or not it has been dropped yet. Most are alone in their millisecond, where many
    callers name an item each, and there may be millions: so an entry is one tuple, and by itself its own chunk.
    """

    __slots__ = ("_chunks", "_kept", "_order", "touched")

    def __init__(self) -> None:
        self._kept: dict[K, _Entry[K, V]] = {}
        self._chunks: dict[int, _Entry[K, V] | _Crowd[K, V]] = {}
        self._order: list[int] = []
        # Chunks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, clock_ms: int) -> V | None:
        """The value, unless its time is over."""
        entry = self._kept.get(key)
        return entry[1] if entry is not None and clock_ms < entry[2] else None

    def add(self, key: K, value: V, expires_ms: int) -> None:
        """Remembers one value, as the newest; an older one under the same key is replaced."""
        if key in self._kept:
            self.discard(key)
        self.add_many((key,), (value,), expires_ms)

    def add_many(self, keys: Iterable[K], values: Iterable[V], expires_ms: int) -> None:
        """Remembers values under keys that are not in the window."""
        entries: list[_Entry[K, V]] = [(key, value, expires_ms) for key, value in zip(keys, values, strict=True)]
        if not entries:
            return
        self._kept.update((entry[0], entry) for entry in entries)
        self.touched[expires_ms] = None
        chunk = self._chunks.get(expires_ms)
        if isinstance(chunk, _Crowd):
            chunk.entries += entries
            chunk.live += len(entries)
            return
        if chunk is not None:
            entries.insert(0, chunk)
        else:
            self._expect(expires_ms)
        self._chunks[expires_ms] = entries[0] if len(entries) == 1 else _Crowd(entries)

    def discard(self, key: K) -> None:
        """Forgets one key, if it is there."""
        entry = self._kept.pop(key, None)
        if entry is None:
            return
        expires_ms = entry[2]
        self.touched[expires_ms] = None
        chunk = self._chunks[expires_ms]
        if isinstance(chunk, _Crowd):
            chunk.live -= 1
            if len(chunk.entries) > 2 * chunk.live + 16:
                chunk.entries = self._entries(chunk)
        if not isinstance(chunk, _Crowd) or not chunk.live:
            del self._chunks[expires_ms]

    def purge(self, clock_ms: int, limit: int | None = None) -> list[K]:
        """Drops what is past its time, and over the limit what comes next, but never the last chunk. Says what went."""
        gone: list[K] = []
        order = self._order
        while order and (order[0] <= clock_ms or (limit is not None and len(self._kept) > limit)):
            expires_ms = order[0]
            chunk = self._chunks.get(expires_ms)
            if chunk is not None:
                if expires_ms > clock_ms and len(self._chunks) == 1:
                    break
                for key, _, _ in self._entries(chunk):
                    gone.append(key)
                    del self._kept[key]
                del self._chunks[expires_ms]
                self.touched[expires_ms] = None
            heappop(order)
        return gone

    def chunks(self) -> Iterator[tuple[int, dict[K, V]]]:
        """Every chunk, first to be forgotten first, with its content in the order it came."""
        for expires_ms in sorted(self._chunks):
            yield expires_ms, self._content(self._chunks[expires_ms])

    def chunk(self, expires_ms: int) -> dict[K, V] | None:
        """The content of one chunk."""
        chunk = self._chunks.get(expires_ms)
        return None if chunk is None else self._content(chunk)

    def take_touched(self) -> list[int]:
        """The chunks that changed since the last call, in the order they changed."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _content(self, chunk: _Entry[K, V] | _Crowd[K, V]) -> dict[K, V]:
        return {key: value for key, value, _ in self._entries(chunk)}

    def _entries(self, chunk: _Entry[K, V] | _Crowd[K, V]) -> list[_Entry[K, V]]:
        if not isinstance(chunk, _Crowd):
            return [chunk]
        kept = self._kept
        return [entry for entry in chunk.entries if kept.get(entry[0]) is entry]

    def _expect(self, expires_ms: int) -> None:
        heappush(self._order, expires_ms)
        if len(self._order) > 2 * len(self._chunks) + 16:
            self._order = [*self._chunks, expires_ms]
            heapify(self._order)
