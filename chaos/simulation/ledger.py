"""A small replicated machine that is easily judged: it writes down every op once, in order.

Stands in for the real machine in tests where only consensus is at stake; the simulator runs the real one. An op is a
name; its result is its place in the order. A name that comes again gets its first answer. Some names start a timer on
the lease clock, so that there are deadlines.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import msgpack

__all__ = ["Ledger", "LedgerOutcome"]

_META = b"meta"
# Names that end so are answered, and ring again after this long.
_TIMER_SUFFIX = b"!"
_TIMER_MS = 700


@dataclass(slots=True)
class LedgerOutcome:
    """What an entry gave."""

    results: list[int] = field(default_factory=list)
    # (sequence number, what happened).
    records: list[tuple[int, bytes]] = field(default_factory=list)


class Ledger:
    """Implements ``resourcelease.consensus.api.Machine``."""

    def __init__(self) -> None:
        self.clock_ms = 0
        self.applied_index = 0
        # Name to its first answer, and name to how often it took effect.
        self.answers: dict[bytes, int] = {}
        self.effects: dict[bytes, int] = {}
        self._sequence = 0
        self._timers: list[tuple[int, bytes]] = []
        self._history = b""
        self._changed: dict[bytes, bytes | None] = {}

    def apply(self, index: int, term: int, data: bytes) -> LedgerOutcome:
        """One entry."""
        outcome = LedgerOutcome()
        if index <= self.applied_index:
            return outcome
        self.applied_index = index
        try:
            _, clock_ms, _, ops = msgpack.unpackb(data)
            names = [bytes(op) for op in ops]
        except Exception:  # whatever the bytes are, every node finds them equally wrong
            return outcome
        self.clock_ms = max(self.clock_ms, clock_ms)
        self._ring(outcome)
        for name in names:
            outcome.results.append(self._take(name, outcome))
        digest = hashlib.blake2b(self._history, digest_size=16)
        digest.update(index.to_bytes(8, "big") + term.to_bytes(8, "big") + data)
        self._history = digest.digest()
        self._changed[_META] = b""
        return outcome

    def _take(self, name: bytes, outcome: LedgerOutcome) -> int:
        answer = self.answers.get(name)
        if answer is None:
            answer = self._event(name, outcome)
            self.answers[name] = answer
            self._changed[b"a" + name] = answer.to_bytes(8, "big")
            self.effects[name] = self.effects.get(name, 0) + 1
            self._changed[b"e" + name] = self.effects[name].to_bytes(8, "big")
            if name.endswith(_TIMER_SUFFIX):
                heapq.heappush(self._timers, (self.clock_ms + _TIMER_MS, name))
        return answer

    def _ring(self, outcome: LedgerOutcome) -> None:
        while self._timers and self._timers[0][0] <= self.clock_ms:
            _, name = heapq.heappop(self._timers)
            self._event(b"rang:" + name, outcome)

    def _event(self, what: bytes, outcome: LedgerOutcome) -> int:
        self._sequence += 1
        outcome.records.append((self._sequence, what))
        return self._sequence

    def next_due_ms(self) -> int | None:
        """The next timer."""
        return self._timers[0][0] if self._timers else None

    def _meta(self) -> bytes:
        packed: bytes = msgpack.packb(
            [self.clock_ms, self.applied_index, self._sequence, sorted(self._timers), self._history]
        )
        return packed

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Rows since the last call."""
        if _META in self._changed:
            self._changed[_META] = self._meta()
        changed, self._changed = self._changed, {}
        puts = [(key, value) for key, value in changed.items() if value is not None]
        return puts, [key for key, value in changed.items() if value is None]

    def dump_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything."""
        yield _META, self._meta()
        for name, answer in self.answers.items():
            yield b"a" + name, answer.to_bytes(8, "big")
        for name, count in self.effects.items():
            yield b"e" + name, count.to_bytes(8, "big")

    @classmethod
    def load_rows(cls, rows: Iterable[tuple[bytes, bytes]]) -> Self:
        """One from what ``dump_rows`` or ``take_changes`` gave."""
        self = cls()
        for key, value in rows:
            if key == _META:
                clock_ms, applied, sequence, timers, history = msgpack.unpackb(value)
                self.clock_ms, self.applied_index, self._sequence = clock_ms, applied, sequence
                self._timers = [(due, name) for due, name in timers]
                self._history = history
            elif key[:1] == b"a":
                self.answers[key[1:]] = int.from_bytes(value, "big")
            else:
                self.effects[key[1:]] = int.from_bytes(value, "big")
        return self

    def digest(self) -> bytes:
        """Of the history, which decides the state."""
        return self._history
