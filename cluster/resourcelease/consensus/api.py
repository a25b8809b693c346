"""What consensus asks of the machine, and what it answers its callers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "Busy",
    "ConsensusBroken",
    "EventLog",
    "Machine",
    "Machines",
    "NoLeader",
    "NotAllowed",
    "Outcome",
    "OutcomeUnknown",
    "TooLarge",
]


class Outcome(Protocol):
    """What applying one entry gave."""

    @property
    def results(self) -> Sequence[Any]:
        """One result an op of the entry, in order."""

    @property
    def records(self) -> Sequence[Any]:
        """The events of the entry, encoded, in order."""


class Machine(Protocol):
    """The replicated state machine: pure, deterministic, and never raising from ``apply``."""

    @property
    def clock_ms(self) -> int:
        """The lease clock, as of the last entry."""

    @property
    def applied_index(self) -> int:
        """The index of the last entry that was applied."""

    def apply(self, index: int, term: int, data: bytes) -> Outcome:
        """One committed entry."""

    def next_due_ms(self) -> int | None:
        """The reading of the lease clock at which something falls due, or None."""

    def take_changes(self) -> tuple[Iterable[tuple[bytes, bytes]], Iterable[bytes]]:
        """Rows put and keys deleted since the last call."""

    def dump_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The whole state as rows."""

    def digest(self) -> bytes:
        """Equal for equal states."""


class EventLog(Protocol):
    """Where the events go beside the rows: a machine loaded from rows cannot tell again what led to them."""

    @property
    def durable_index(self) -> int:
        """The last applied entry whose events, and those of all before it, are on disk."""

    def hurry(self) -> None:
        """Somebody waits for it to go on."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Where machines come from: an empty one, or one from the rows that ``dump_rows`` and ``take_changes`` gave."""

    new: Callable[[], Machine]
    load: Callable[[Iterable[tuple[bytes, bytes]]], Machine]


class ConsensusBroken(Exception):
    """A rule of the protocol does not hold on this node, so it stops rather than goes on; says which, and where."""


class NoLeader(Exception):
    """No leader took the proposal before its deadline, so it has not happened; propose it again."""


class OutcomeUnknown(Exception):
    """The deadline passed after the proposal had left; it may still happen. Ask again under the same operation ids."""


class Busy(Exception):
    """More proposals wait here than may; nothing was done, propose again a little later."""


class TooLarge(Exception):
    """The proposal is larger than an entry may be; split it."""


class NotAllowed(Exception):
    """A change of membership or leadership that cannot be made now; says why and what to do first."""
