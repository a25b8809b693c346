"""What the machine answers. One result an op; where an op names several items, one outcome an item, in order."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from resourcelease.model.errors import Refusal
from resourcelease.model.items import Failure, Item, LastLease
from resourcelease.model.options import QueueOptions

__all__ = [
    "Acked",
    "Configured",
    "Drained",
    "EffectState",
    "Enqueued",
    "Granted",
    "Redriven",
    "Restored",
    "Result",
    "VersionFixed",
]


class Enqueued(NamedTuple):
    """``sequence_ids[i]`` is item i's id, 0 where ``refused`` says why it has none."""

    sequence_ids: Sequence[int]
    # Places of items whose request id was known already: their id is the first item's.
    duplicates: Sequence[int]
    refused: Mapping[int, Refusal]
    # The queue's depth once the items were in.
    pending: int


class Granted(NamedTuple):
    """Leases, possibly none. The columns run in parallel; all leases of one grant share their deadline."""

    sequence_ids: Sequence[int]
    attempts: Sequence[int]
    fences: Sequence[int]
    # Plain tuples in the order of ``Item``; ``item(i)`` names their fields.
    rows: Sequence[tuple[object, ...]]
    # For items that were leased before: the last lease, and the last error that a worker gave, if any.
    before: Mapping[int, tuple[LastLease, Failure | None]]
    deadline_ms: int
    left_ms: int
    # The leases came to an earlier take, whose node may give them back: this take takes them over. 0: they are new.
    next_take: int = 0

    def item(self, place: int) -> Item:
        """The item of one lease, with its fields named."""
        return Item._make(self.rows[place])


class Acked(NamedTuple):
    """Answer to heartbeat, complete, fail and give back: which of ``total`` leases were refused, and why."""

    total: int
    refused: Mapping[int, Refusal]
    # Heartbeat only: until when the accepted leases now run.
    deadline_ms: int = 0
    left_ms: int = 0


class Configured(NamedTuple):
    """The options now in force."""

    options: QueueOptions
    paused: bool


class Redriven(NamedTuple):
    """The dead letters that are back in the queue, and the named ones that are not."""

    sequence_ids: Sequence[int]
    refused: Mapping[int, Refusal]


class Drained(NamedTuple):
    """One page of a bundle; ``more`` tells whether there was anything left to take."""

    page: bytes
    size: int
    more: bool


class Restored(NamedTuple):
    """How many items of the page were put back, and how many were here already."""

    restored: int
    present: int


class VersionFixed(NamedTuple):
    """The version of a change that everyone follows."""

    version: int


class EffectState(NamedTuple):
    """``finished`` with the stored result; or else the caller is the runner and is to do the work."""

    finished: bool
    result: bytes


Result: TypeAlias = (
    Refusal | Enqueued | Granted | Acked | Configured | Redriven | Drained | Restored | VersionFixed | EffectState
)
