"""What can be wrong with the event log on disk; every error names the file and the place, or the events."""

from enum import StrEnum
from pathlib import Path

from resourcelease.storage.errors import StorageError

__all__ = [
    "CorruptSegment",
    "Damage",
    "HistoryGone",
    "HistoryMissing",
    "SegmentRefused",
    "SegmentsDiverged",
    "SegmentsStopped",
]


class Damage(StrEnum):
    """The kinds of things that are found wrong."""

    # Bytes are not those that were written.
    DAMAGED = "damaged"
    # The end of a file is not there.
    CUT = "cut"
    # A file, or a part of the history, is not there.
    MISSING = "missing"
    # Two files hold the same events.
    OVERLAP = "overlap"
    # A file of another cluster or shard.
    STRANGER = "stranger"
    # Files that are each in order, and do not belong to one history.
    UNCHAINED = "unchained"


class CorruptSegment(StorageError):
    """A segment file is not what was written; ``offset`` is where the block begins that is not in order."""

    def __init__(self, path: Path, offset: int, reason: str, kind: Damage = Damage.DAMAGED) -> None:
        advice = "" if kind is Damage.STRANGER else ". Fetch this segment from another node and install it"
        super().__init__(f"{path}: at byte {offset}: {reason}{advice}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.kind = kind


class HistoryGone(StorageError, LookupError):
    """Events older than what is kept were asked for; ``first`` is the first that can be had, 0 if there is none."""

    def __init__(self, wanted: int, first: int) -> None:
        offer = f"the first that can be had is {first}" if first else "there is none yet"
        super().__init__(f"event {wanted} is not kept here any more: {offer}")
        self.wanted = wanted
        self.first = first


class HistoryMissing(StorageError, LookupError):
    """Events ``first`` to ``last`` are not on this node, though earlier and later ones are; another node has them."""

    def __init__(self, directory: Path, first: int, last: int) -> None:
        super().__init__(
            f"{directory}: events {first} to {last} are missing. Fetch their segments from another node, "
            f"or read from {last + 1}"
        )
        self.first = first
        self.last = last


class SegmentRefused(StorageError):
    """A file that must not be installed here: it says why."""


class SegmentsDiverged(StorageError):
    """The files and the machine tell different histories; the node must not go on with both."""


class SegmentsStopped(StorageError):
    """The writer takes no more events: an earlier error stopped it, it was closed, or too much waits."""
