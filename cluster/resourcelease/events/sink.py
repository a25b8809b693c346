"""Where the history is copied to, and the promise of every such place: each event once, in order, without a gap.

A sink applies a batch and persists how far it is, its *checkpoint*, in the same step or right behind it. So after any
crash it stands where its content ends; what it is given again it drops, and what does not follow it refuses. A writer
shows the fence of its lease, and one whose fence is older than the checkpoint's is turned away.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from resourcelease import v1

__all__ = [
    "Checkpoint",
    "GapRefused",
    "Mark",
    "NotKept",
    "Sink",
    "SinkError",
    "StaleWriter",
    "WrongSource",
    "check_writer",
    "fresh",
]


class SinkError(Exception):
    """The sink and the history do not fit; trying again does not help."""


class GapRefused(SinkError):
    """Events between the checkpoint and a batch are missing."""


class NotKept(SinkError):
    """Events that were asked for are not to be had any more."""


class StaleWriter(SinkError):
    """Another writer, with a newer lease, has taken over."""


class WrongSource(SinkError):
    """The sink holds the history of another cluster, or is none at all."""


class Mark(NamedTuple):
    """What tells an event from that of another history under the same sequence number."""

    raft_index: int
    raft_term: int
    occurred_at: int

    @classmethod
    def of(cls, event: v1.Event) -> "Mark":
        """That of an event."""
        return cls(event.raft_index, event.raft_term, event.occurred_at)


class Checkpoint(NamedTuple):
    """How far a sink is: the last event in it (0: none), and the fence of whoever wrote it."""

    position: int
    fence: int = 0
    # Of the last event, as ``open`` tells it; None where there is none, or it is not known.
    mark: Mark | None = None


class Sink(Protocol):
    """A store that keeps the history. Its methods block; one thread at a time calls them.

    ``open`` first, then ``apply`` with what follows the checkpoint, and ``close``. Errors of the store itself are
    passed on as they are; the runner tries again after them, from ``open``.
    """

    def open(self, cluster_id: str, start: int) -> Checkpoint:
        """Where to go on; an empty sink of this cluster then begins with event ``start``."""

    def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
        """Keeps a batch, durably; where the sink stands then."""

    def close(self) -> None:
        """Lets go; a second call does nothing."""


def fresh(events: Sequence[v1.Event], position: int) -> Sequence[v1.Event]:
    """What of a batch is new to a sink; ``GapRefused`` if it does not follow.

    >>> [event.sequence_number for event in fresh([v1.Event(sequence_number=number) for number in (4, 5, 6)], 4)]
    [5, 6]
    """
    expected = position + 1
    new = [event for event in events if event.sequence_number > position]
    for event in new:
        if event.sequence_number != expected:
            raise GapRefused(
                f"event {event.sequence_number} was given to a sink that stands at {expected - 1}: events {expected} "
                f"to {event.sequence_number - 1} are missing. Subscribe from {expected}, without a filter"
            )
        expected += 1
    return new


def check_writer(checkpoint: Checkpoint, fence: int) -> None:
    """``StaleWriter`` if the checkpoint was written under a newer lease."""
    if fence < checkpoint.fence:
        raise StaleWriter(
            f"the sink is written under fence {checkpoint.fence}, and this writer has {fence}: another exporter took "
            "over; stop this one"
        )
