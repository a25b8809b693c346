"""Answers kept under operation ids, so that a retry changes nothing and learns what the first call did."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from resourcelease.model import limits
from resourcelease.model.eventdata import EventType, GrantsData, ItemsData
from resourcelease.model.events import Record

__all__ = ["Answer", "AnswerKey", "Answers"]

# Namespace, peer, operation id.
AnswerKey: TypeAlias = tuple[str, str, str]


class Answer(NamedTuple):
    """What a call was answered. ``content`` is what the op's handler packed and its ``replay_`` twin reads."""

    take: int
    code: int
    content: Any
    expires_ms: int


class Answers:
    """All kept answers: found by key, forgotten with the clock, and bounded for each peer."""

    __slots__ = ("_by_peer", "_chunks", "_kept", "_order", "touched")

    def __init__(self) -> None:
        self._kept: dict[AnswerKey, Answer] = {}
        # The keys of a peer, oldest first.
        self._by_peer: dict[str, OrderedDict[AnswerKey, None]] = {}
        # The keys that are forgotten at one reading of the clock, oldest first; and those readings, rising.
        self._chunks: dict[int, dict[AnswerKey, None]] = {}
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
        call = record.call
        order = self._order
        while order and order[0] <= record.clock_ms:
            for key in self._chunks.pop(order[0]):
                self._unlist(key)
                del self._kept[key]
            self.touched[order.popleft()] = None
        expires_ms = record.clock_ms + limits.ANSWER_WINDOW_MS
        self.keep((call.namespace, call.peer, call.operation_id), Answer(take, code, content, expires_ms))

    def keep(self, key: AnswerKey, answer: Answer) -> None:
        """Puts an answer in as its peer's newest, and drops the peer's oldest if there are too many."""
        if key in self._kept:
            self.forget(key)
        self._kept[key] = answer
        chunk = self._chunks.get(answer.expires_ms)
        if chunk is None:
            chunk = self._chunks[answer.expires_ms] = {}
            self._order.append(answer.expires_ms)
        chunk[key] = None
        self.touched[answer.expires_ms] = None
        listed = self._by_peer.get(key[1])
        if listed is None:
            listed = self._by_peer[key[1]] = OrderedDict()
        listed[key] = None
        if len(listed) > limits.ANSWERS_PER_PEER:
            self.forget(next(iter(listed)))

    def forget(self, key: AnswerKey) -> None:
        """Drops an answer that nobody needs any more, if it is there."""
        answer = self._kept.pop(key, None)
        if answer is not None:
            del self._chunks[answer.expires_ms][key]
            self.touched[answer.expires_ms] = None
            self._unlist(key)

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """Every chunk by the time it is forgotten, as plain values."""
        for expires_ms in self._order:
            row = self.row(expires_ms)
            if row:
                yield expires_ms, row

    def row(self, expires_ms: int) -> list[Any]:
        """One chunk as plain values, oldest first; empty if nothing of it is left."""
        return [(key, self._kept[key][:3]) for key in self._chunks.get(expires_ms, ())]

    def load(self, expires_ms: int, row: list[Any]) -> None:
        """A chunk from such a row; chunks come in their order."""
        for key, (take, code, content) in row:
            self.keep(tuple(key), Answer(take, code, content, expires_ms))

    def take_touched(self) -> list[int]:
        """The chunks that changed since the last call."""
        touched = list(self.touched)
        self.touched.clear()
        return touched

    def _unlist(self, key: AnswerKey) -> None:
        listed = self._by_peer[key[1]]
        del listed[key]
        if not listed:
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
