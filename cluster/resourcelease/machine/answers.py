"""Answers kept under operation ids, so that a retry changes nothing and learns what the first call did."""

from collections import OrderedDict
from typing import Any, NamedTuple, TypeAlias

from resourcelease.machine.window import Window
from resourcelease.model import limits
from resourcelease.model.eventdata import DrainData, EventType, GrantsData, ItemsData
from resourcelease.model.events import Record

__all__ = ["Answer", "AnswerKey", "Answers"]

# Namespace, peer, operation id.
AnswerKey: TypeAlias = tuple[str, str, str]


class Answer(NamedTuple):
    """What a call was answered. ``content`` is what the op's handler packed; see ``replay``."""

    take: int
    code: int
    content: Any


class Answers:
    """All kept answers: by key, forgotten with the clock, and bounded for each peer."""

    __slots__ = ("_by_peer", "window")

    def __init__(self) -> None:
        self.window: Window[AnswerKey, Answer] = Window()
        # The keys of a peer, oldest first.
        self._by_peer: dict[str, OrderedDict[AnswerKey, None]] = {}

    def get(self, key: AnswerKey, clock_ms: int) -> Answer | None:
        """The answer that a retry is owed."""
        return self.window.get(key, clock_ms)

    def remember(self, record: Record, pending: int) -> None:
        """Keeps the answer that a record carries."""
        take, code, content = record.answer or (0, 0, None)
        if content is True:
            content = _told_by(record, pending)
        key = (record.namespace, record.peer, record.call.operation_id)
        self.keep(key, Answer(take, code, content), record.clock_ms + limits.ANSWER_WINDOW_MS)
        for gone in self.window.purge(record.clock_ms):
            self._unlist(gone)

    def keep(self, key: AnswerKey, answer: Answer, expires_ms: int) -> None:
        """Puts an answer in as its peer's newest, and drops the peer's oldest if there are too many."""
        listed = self._by_peer.setdefault(key[1], OrderedDict())
        listed.pop(key, None)
        listed[key] = None
        self.window.add(key, answer, expires_ms)
        if len(listed) > limits.ANSWERS_PER_PEER:
            self.window.discard(listed.popitem(last=False)[0])

    def forget(self, key: AnswerKey) -> None:
        """Drops an answer that nobody needs any more."""
        self.window.discard(key)
        self._unlist(key)

    def _unlist(self, key: AnswerKey) -> None:
        listed = self._by_peer.get(key[1])
        if listed is not None:
            listed.pop(key, None)
            if not listed:
                del self._by_peer[key[1]]


def _told_by(record: Record, pending: int) -> list[Any]:
    """The content of an answer whose record says it all: every item accepted."""
    data = record.data
    if isinstance(data, ItemsData):
        return [data.first_id, record.count, pending]
    if isinstance(data, GrantsData):
        return [data.sequence_ids, data.attempts, data.first_fence, data.deadline_ms]
    if isinstance(data, DrainData):
        return [data.page, record.count, data.more]
    if record.type is EventType.HEARTBEAT:
        return [record.count, [], data.deadline_ms]  # type: ignore[union-attr]
    return [record.count, []]
