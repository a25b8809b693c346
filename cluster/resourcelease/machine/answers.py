"""Answers kept under operation ids, so that a retry changes nothing and learns what the first call did."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgpack

from resourcelease.model import limits
from resourcelease.model.eventdata import EventType, GrantsData, ItemsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call

__all__ = ["Answer", "AnswerKey", "Answers", "key_of"]

_pack = msgpack.Packer(autoreset=True).pack
# What a packed list of two begins with: a key and its answer, in a row.
_PAIR = b"\x92"
# A peer's line may be so much longer than it is full before it is made anew.
_FEW = 64

# Namespace, peer, operation id.
AnswerKey: TypeAlias = tuple[str, str, str]


class Answer(NamedTuple):
    """What a call was answered. ``content`` is what the op's handler packed and its ``replay_`` twin reads."""

    take: int
    code: int
    content: Any


def key_of(call: Call) -> AnswerKey:
    """Under what the answer to a call is kept."""
    return call.namespace, call.peer, call.operation_id


class _OfPeer:
    """The answers of one peer, oldest first. Some that are no longer kept may stand among them."""

    __slots__ = ("count", "line")

    def __init__(self) -> None:
        self.count = 0
        self.line: deque[_Entry] = deque()


# An answer that is kept: its key and the answer, packed as its row has them, when it is forgotten, and whose it is. Few
# are ever asked for, and there may be a million: so each is packed when it comes and not when rows are taken, and found
# by its packed key.
_Entry: TypeAlias = tuple[bytes, bytes, int, str]


class Answers:
    """All kept answers: found by key, forgotten with the clock, and bounded for each peer."""

    __slots__ = ("_by_peer", "_chunks", "_kept", "_order", "_thinned", "touched")

    def __init__(self) -> None:
        self._kept: dict[bytes, _Entry] = {}
        self._by_peer: dict[str, _OfPeer] = {}
        # What is forgotten at one reading of the clock, oldest first; those readings; and how many entries each of them
        # has that are not kept any more.
        self._chunks: dict[int, list[_Entry]] = {}
        self._order: deque[int] = deque()
        self._thinned: dict[int, int] = {}
        # Chunks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def get(self, key: AnswerKey, clock_ms: int) -> Answer | None:
        """The answer that a retry is owed."""
        entry = self._kept.get(_pack(key))
        if entry is None or clock_ms >= entry[2]:
            return None
        return Answer(*msgpack.unpackb(entry[1], strict_map_key=False))

    def remember(self, record: Record, pending: int) -> None:
        """Keeps the answer that a record carries."""
        take, code, content = record.answer or (0, 0, None)
        if content is True:
            content = _told_by(record, pending)
        order = self._order
        while order and order[0] <= record.clock_ms:
            expires_ms = order.popleft()
            for entry in self._live(self._chunks.pop(expires_ms, ())):
                self._drop(entry)
            self._thinned.pop(expires_ms, None)
            self.touched[expires_ms] = None
        self._keep(key_of(record.call), (take, code, content), record.clock_ms + limits.ANSWER_WINDOW_MS)

    def _keep(self, key: AnswerKey, answer: tuple[int, int, Any], expires_ms: int) -> None:
        """Puts an answer in as its peer's newest, and drops the peer's oldest if there are too many."""
        kept, packed = self._kept, _pack(key)
        if packed in kept:
            self._take_out(kept[packed])
        of_peer = self._by_peer.get(key[1])
        if of_peer is None:
            of_peer = self._by_peer[key[1]] = _OfPeer()
        entry = kept[packed] = packed, _pack(answer), expires_ms, key[1]
        chunk = self._chunks.get(expires_ms)
        if chunk is None:
            self._chunks[expires_ms] = [entry]
            self._order.append(expires_ms)
        else:
            chunk.append(entry)
        self.touched[expires_ms] = None
        of_peer.count += 1
        line = of_peer.line
        line.append(entry)
        if of_peer.count > limits.ANSWERS_PER_PEER:
            while kept.get(line[0][0]) is not line[0]:
                line.popleft()
            self._take_out(line.popleft())
        elif len(line) > 2 * of_peer.count + _FEW:
            of_peer.line = deque(self._live(line))

    def forget(self, key: AnswerKey) -> None:
        """Drops an answer that nobody needs any more, if it is there."""
        entry = self._kept.get(_pack(key))
        if entry is not None:
            self._take_out(entry)

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Every chunk by the time it is forgotten, packed."""
        for expires_ms in self._chunks:
            yield expires_ms, self.row(expires_ms)

    def row(self, expires_ms: int) -> bytes:
        """One chunk as a packed list, oldest first; empty if nothing of it is left."""
        entries = self._chunks.get(expires_ms)
        if entries is None:
            return b""
        if expires_ms in self._thinned:
            entries = self._live(entries)
        parts = [_head(len(entries))]
        for key, answer, _, _ in entries:
            parts += _PAIR, key, answer
        return b"".join(parts)

    def load(self, expires_ms: int, row: list[Any]) -> None:
        """A chunk from such a row, unpacked; chunks come in their order."""
        for key, (take, code, content) in row:
            self._keep(tuple(key), (take, code, content), expires_ms)

    def take_touched(self) -> list[int]:
        """The chunks that changed since the last call."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _take_out(self, entry: _Entry) -> None:
        """Drops one before its time. Once half of a chunk is gone, it holds the rest alone."""
        self._drop(entry)
        expires_ms = entry[2]
        self.touched[expires_ms] = None
        gone, chunk = self._thinned.get(expires_ms, 0) + 1, self._chunks[expires_ms]
        if 2 * gone < len(chunk):
            self._thinned[expires_ms] = gone
            return
        self._thinned.pop(expires_ms, None)
        if gone == len(chunk):
            # What is still to come at this reading, if anything, is the last chunk again.
            del self._chunks[expires_ms]
        else:
            self._chunks[expires_ms] = self._live(chunk)

    def _live(self, entries: Iterable[_Entry]) -> list[_Entry]:
        kept = self._kept
        return [entry for entry in entries if kept.get(entry[0]) is entry]

    def _drop(self, entry: _Entry) -> None:
        del self._kept[entry[0]]
        of_peer = self._by_peer[entry[3]]
        of_peer.count -= 1
        if not of_peer.count:
            del self._by_peer[entry[3]]


def _head(size: int) -> bytes:
    """What a packed list of so many begins with."""
    if size < 1 << 4:
        return bytes((0x90 | size,))
    return b"\xdc" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdd" + size.to_bytes(4, "big")


def _told_by(record: Record, pending: int) -> list[Any]:
    """The content of an answer whose record says it all: every item accepted."""
    data = record.data
    if isinstance(data, ItemsData):
        return [data.first_id, record.count, pending]
    if isinstance(data, GrantsData):
        return [data.sequence_ids, data.attempts, data.first_fence, data.deadline_ms]
    if record.type is EventType.HEARTBEAT:
        return [record.count, [], data.deadline_ms]  # type: ignore[union-attr]
    return [record.count, []]
