"""The answers of a conversation on their way out: those that are ready go together, at the pace of their reader."""

from collections import deque

from resourcelease import v1
from resourcelease.frontdoor.departures import Departures, Leaving

__all__ = ["Replies"]

# Answers in one message weigh no more than this together; a larger one goes alone.
_MESSAGE_BYTES = 128 * 1024
# So much may wait for its reader; beyond it whoever does not read is not read either.
_ANSWERS_MAX = 1_000
_BYTES_MAX = 8 * 1024 * 1024


class Replies(Departures):
    """Messages that wait; the last of them still takes answers."""

    def __init__(self, leaving: Leaving) -> None:
        super().__init__(leaving)
        self._messages: deque[tuple[v1.ConverseResponse, int]] = deque()
        self._bytes = 0
        self._answers = 0

    def add(self, number: int, response: bytes) -> None:
        """The answer to a call."""
        self._answers += 1
        self._open(len(response)).answers.add(number=number, response=response)

    def add_status(self, number: int, status: bytes) -> None:
        """The answer to a call that failed."""
        self._answers += 1
        self._open(len(status)).answers.add(number=number, status=status)

    def go_away(self, message: str) -> None:
        """The node is about to stop."""
        self._open(0).go_away.message = message

    @property
    def full(self) -> bool:
        """Whether more wait than may."""
        return self._answers >= _ANSWERS_MAX or self._bytes >= _BYTES_MAX

    def _waits(self) -> bool:
        return bool(self._messages)

    def _take(self) -> v1.ConverseResponse:
        message, size = self._messages.popleft()
        self._bytes -= size
        self._answers -= len(message.answers)
        return message

    def _open(self, size: int) -> v1.ConverseResponse:
        """The message that takes the next answer."""
        self._bytes += size
        if self._messages and self._messages[-1][1] + size <= _MESSAGE_BYTES:
            message, before = self._messages[-1]
            self._messages[-1] = (message, before + size)
            return message
        message = v1.ConverseResponse(reads_packed=True)
        self._messages.append((message, size))
        self._came()
        return message
