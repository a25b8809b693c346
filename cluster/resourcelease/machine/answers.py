"""Answers kept under operation ids, so that a retry changes nothing and learns what the first call did."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from resourcelease.model import limits
from resourcelease.model.eventdata import EventType, GrantsData, ItemsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call

__all__ = ["Answer", "AnswerKey", "Answers", "key_of"]

# Namespace, peer, operation id.
AnswerKey: TypeAlias = tuple[str, str, str]


class Answer(NamedTuple):
    """What a call was answered. ``content`` is what the op's handler packed and its ``replay_`` twin reads."""

    take: int
    code: int
    content: Any
    expires_ms: int


def key_of(call: Call) -> AnswerKey:
    """Under what the answer to a call is kept."""
    return call.namespace, call.peer, call.operation_id


class _OfPeer:
    """The answers of one peer, oldest first. Those that are no longer kept stay in line until they are its head."""

    __slots__ = ("count", "line")

    def __init__(self) -> None:
        self.count = 0
        self.line: deque[tuple[AnswerKey, Answer]] = deque()


class Answers:
    """All kept answers: found by key, forgotten with the clock, and bounded for each peer."""

    __slots__ = ("_by_peer", "_chunks", "_kept", "_order", "touched")

    def __init__(self) -> None:
        self._kept: dict[AnswerKey, Answer] = {}
        self._by_peer: dict[str, _OfPeer] = {}
        # What is forgotten at one reading of the clock, oldest first, as far as it is still kept; and those readings.
        self._chunks: dict[int, list[tuple[AnswerKey, Answer]]] = {}
        self._order: deque[int] = deque()
        # Chunks that have changed since the rows were last taken.
        self.touched: dict[int, None] = {}

    def get(self, key: AnswerKey, clock_ms: int) -> Answer | None:
        """The answer that a retry is owed."""
        answer = self._kept.get(key)
        return answer if answer is not None and clock_ms < answer.expires_ms else None

    def remember(self, record: Record, pending: int) -> None:
        """Keeps the answer that a record carries."""
        take, code, content = record.answer or (0, 0, None)
        if content is True:
            content = _told_by(record, pending)
        order = self._order
        while order and order[0] <= record.clock_ms:
            for key, answer in self._chunks.pop(order[0]):
                if self._kept.get(key) is answer:
                    self._drop(key)
            self.touched[order.popleft()] = None
        expires_ms = record.clock_ms + limits.ANSWER_WINDOW_MS
        self.keep(key_of(record.call), Answer(take, code, content, expires_ms))

    def keep(self, key: AnswerKey, answer: Answer) -> None:
        """Puts an answer in as its peer's newest, and drops the peer's oldest if there are too many."""
        kept = self._kept
        if key in kept:
            self.forget(key)
        kept[key] = answer
        entry = key, answer
        chunk = self._chunks.get(answer.expires_ms)
        if chunk is None:
            self._chunks[answer.expires_ms] = [entry]
            self._order.append(answer.expires_ms)
        else:
            chunk.append(entry)
        self.touched[answer.expires_ms] = None
        of_peer = self._by_peer.get(key[1])
        if of_peer is None:
            of_peer = self._by_peer[key[1]] = _OfPeer()
        of_peer.count += 1
        line = of_peer.line
        line.append(entry)
        while kept.get(line[0][0]) is not line[0][1]:
            line.popleft()
        if of_peer.count > limits.ANSWERS_PER_PEER:
            self.forget(line.popleft()[0])

    def forget(self, key: AnswerKey) -> None:
        """Drops an answer that nobody needs any more, if it is there."""
        answer = self._kept.get(key)
        if answer is not None:
            self._drop(key)
            self.touched[answer.expires_ms] = None

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """Every chunk by the time it is forgotten, as plain values."""
        for expires_ms in self._order:
            row = self.row(expires_ms)
            if row:
                yield expires_ms, row

    def row(self, expires_ms: int) -> list[Any]:
        """One chunk as plain values, oldest first; empty if nothing of it is left."""
        kept = self._kept
        return [(key, answer[:3]) for key, answer in self._chunks.get(expires_ms, ()) if kept.get(key) is answer]

    def load(self, expires_ms: int, row: list[Any]) -> None:
        """A chunk from such a row; chunks come in their order."""
        for key, (take, code, content) in row:
            self.keep(tuple(key), Answer(take, code, content, expires_ms))

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
