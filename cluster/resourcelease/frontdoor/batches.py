"""The messages of one subscriber, as they fill up."""

import time
from collections.abc import Iterator

from resourcelease import v1
from resourcelease.frontdoor.eventbytes import response
from resourcelease.frontdoor.tail import Tail
from resourcelease.frontdoor.wishes import Filter, Spelled, Unshared
from resourcelease.model.events import Record

__all__ = ["Batch"]

_EVENTS_MAX = 2_000
_BYTES_MAX = 1 << 20
# A thread that reads files comes back at least so often, with whatever it has.
_PIECE_S = 0.25


class Batch:
    """The next message of one subscriber, and how far it takes it."""

    def __init__(self, tail: Tail, wanted: Filter, position: int) -> None:
        self._tail = tail
        self._wanted = wanted
        self.position = position
        self.events: list[bytes] = []
        self._bytes = 0
        self._unshared = Unshared()
        # What is left of a record that did not fit.
        self._rest: Iterator[tuple[int, bytes | None]] = iter(())

    def add(self, number: int, event: bytes | None) -> None:
        """Passes an event, which is sent if it is wanted."""
        self.position = number + 1
        if event is not None:
            self.events.append(event)
            self._bytes += len(event)

    @property
    def full(self) -> bool:
        """Whether it is time to send it."""
        return len(self.events) >= _EVENTS_MAX or self._bytes >= _BYTES_MAX

    def pass_spelled(self, record: Record, spelled: Spelled) -> Iterator[None]:
        """Passes a record of the newest; stops where the message is full, to be taken before it goes on."""
        after = record.sequence + record.count
        if after <= self.position:
            return
        if not self._wanted.wants_of(record):
            self.position = after
            return
        for number, message in self._wanted.selected(record, self.position, spelled):
            self.add(number, message)
            if self.full:
                yield

    def fill(self, records: Iterator[Record | int]) -> None:
        """Takes what comes from files until the message is full, or there is no more. On a thread."""
        until = time.monotonic() + _PIECE_S
        while True:
            for number, message in self._rest:
                self.add(number, message)
                if self.full:
                    return
            each = next(records, None)
            if each is None:
                return
            self._rest = self._begun(each)
            if time.monotonic() >= until:
                return

    def _begun(self, each: Record | int) -> Iterator[tuple[int, bytes | None]]:
        if isinstance(each, int):
            self.position = max(self.position, each)
            return iter(())
        return self._wanted.selected(each, self.position, self._unshared)

    def taken(self) -> v1.SubscribeResponse:
        """The message; the next one begins."""
        events, self.events, self._bytes = self.events, [], 0
        head = max(self._tail.next_sequence, self.position) - 1
        return response(events, self.position, head)
