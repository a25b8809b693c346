"""Answers kept under operation ids, so that a retry changes nothing and learns what the first call did."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgpack

from resourcelease.model import limits
from resourcelease.model.eventdata import EventType, GrantsData, ItemsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call

__all__ = ["Answer", "AnswerKey", "Answers", "key_of"]

_pack = msgpack.Packer(autoreset=True).pack

# Namespace, peer, operation id.
AnswerKey: TypeAlias = tuple[str, str, str]
# An answer that is kept: its key, key and answer as its row has them, and when it is forgotten. Few are ever asked for,
# and there may be a million: so each is one string of bytes, which is packed when it comes and not when rows are taken.
_Entry: TypeAlias = tuple[AnswerKey, bytes, int]


class Answer(NamedTuple):
    """What a call was answered. ``content`` is what the op's handler packed and its ``replay_`` twin reads."""

    take: int
    code: int
    content: Any


def key_of(call: Call) -> AnswerKey:
    """Under what the answer to a call is kept."""
    return call.namespace, call.peer, call.operation_id


class _OfPeer:
    """The answers of one peer, oldest first. Those that are no longer kept stay in line until they are its head."""

    __slots__ = ("count", "line")

    def __init__(self) -> None:
        self.count = 0
        self.line: deque[_Entry] = deque()


class Answers:
    """All kept answers: found by key, forgotten with the clock, and bounded for each peer."""

    __slots__ = ("_by_peer", "_chunks", "_kept", "_order", "_thinned", "touched")

    def __init__(self) -> None:
        self._kept: dict[AnswerKey, _Entry] = {}
        self._by_peer: dict[str, _OfPeer] = {}
        # What is forgotten at one reading of the clock, oldest first; those readings; and which of them have entries
        # that are not kept any more.
        self._chunks: dict[int, list[_Entry]] = {}
        self._order: deque[int] = deque()
        self._thinned: dict[int, None] = {}
        # Chunks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def get(self, key: AnswerKey, clock_ms: int) -> Answer | None:
        """The answer that a retry is owed."""
        entry = self._kept.get(key)
        if entry is None or clock_ms >= entry[2]:
            return None
        return Answer(*msgpack.unpackb(entry[1], strict_map_key=False)[1])

    def remember(self, record: Record, pending: int) -> None:
        """Keeps the answer that a record carries."""
        take, code, content = record.answer or (0, 0, None)
        if content is True:
            content = _told_by(record, pending)
        order = self._order
        while order and order[0] <= record.clock_ms:
            for entry in self._chunks.pop(order[0]):
                if self._kept.get(entry[0]) is entry:
                    self._drop(entry[0])
            self._thinned.pop(order[0], None)
            self.touched[order.popleft()] = None
        self._keep(key_of(record.call), (take, code, content), record.clock_ms + limits.ANSWER_WINDOW_MS)

    def _keep(self, key: AnswerKey, answer: tuple[int, int, Any], expires_ms: int) -> None:
        """Puts an answer in as its peer's newest, and drops the peer's oldest if there are too many."""
        kept = self._kept
        if key in kept:
            self.forget(key)
        entry = kept[key] = key, _pack((key, answer)), expires_ms
        chunk = self._chunks.get(expires_ms)
        if chunk is None:
            self._chunks[expires_ms] = [entry]
            self._order.append(expires_ms)
        else:
            chunk.append(entry)
        self.touched[expires_ms] = None
        of_peer = self._by_peer.get(key[1])
        if of_peer is None:
            of_peer = self._by_peer[key[1]] = _OfPeer()
        of_peer.count += 1
        line = of_peer.line
        line.append(entry)
        while kept.get(line[0][0]) is not line[0]:
            line.popleft()
        if of_peer.count > limits.ANSWERS_PER_PEER:
            self.forget(line.popleft()[0])

    def forget(self, key: AnswerKey) -> None:
        """Drops an answer that nobody needs any more, if it is there."""
        entry = self._kept.get(key)
        if entry is not None:
            self._drop(key)
            self._thinned[entry[2]] = self.touched[entry[2]] = None

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Every chunk by the time it is forgotten, packed."""
        for expires_ms in self._order:
            row = self.row(expires_ms)
            if row:
                yield expires_ms, row

    def row(self, expires_ms: int) -> bytes:
        """One chunk as a packed list, oldest first; empty if nothing of it is left."""
        entries = self._chunks.get(expires_ms, [])
        if expires_ms in self._thinned:
            entries = [entry for entry in entries if self._kept.get(entry[0]) is entry]
        return b"".join((_head(len(entries)), *[entry[1] for entry in entries])) if entries else b""

    def load(self, expires_ms: int, row: list[Any]) -> None:
        """A chunk from such a row, unpacked; chunks come in their order."""
        for key, (take, code, content) in row:
            self._keep(tuple(key), (take, code, content), expires_ms)

    def take_touched(self) -> list[int]:
        """The chunks that changed since the last call."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _drop(self, key: AnswerKey) -> None:
        del self._kept[key]
        of_peer = self._by_peer[key[1]]
        of_peer.count -= 1
        if not of_peer.count:
            del self._by_peer[key[1]]


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
