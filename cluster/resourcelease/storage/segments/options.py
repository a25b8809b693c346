"""What an operator may set about the log on disk, and what its writer shows of itself."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from resourcelease.storage.segments.retention import KEEP_ALL, Retention

__all__ = ["LogOptions", "LogState", "LogStats"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The defaults keep everything, bodies included.

    >>> LogOptions(compression="zlib").bodies
    True
    """

    # False: items' bodies are left out of the files. The digests of such files cannot be recomputed from them.
    bodies: bool = True
    # "none" or "zlib". Costs several times what writing costs without.
    compression: str = "none"
    # How long events may wait to be written together. Consensus hurries the writer when it wants to store rows.
    flush_s: float = 0.2
    # A frame is made once it would have this much, and a write once so much waits.
    frame_bytes: int = 256 * 1024
    write_bytes: int = 4 * _MIB
    # What may wait in memory: above the first the node should take no more work, above the second the writer stops.
    queue_bytes_full: int = 64 * _MIB
    queue_bytes_max: int = 512 * _MIB
    # How long a full disk is left alone between two attempts.
    full_retry_s: float = 0.5
    retention: Retention = KEEP_ALL


class LogState(StrEnum):
    """What the writer can do at the moment."""

    OPEN = "open"
    # No space on the disk: events wait in memory, and go on by themselves when there is space again.
    FULL = "full"
    STOPPED = "stopped"
    CLOSED = "closed"


class LogStats(NamedTuple):
    """Totals since the start, and sizes now."""

    state: LogState
    reason: str
    # The last event on disk, and the Raft entry up to which everything is.
    durable_sequence: int
    durable_index: int
    waiting_bytes: int
    events: int
    frames: int
    sealed: int
    written_bytes: int
    # What the thread has cost the processor.
    cpu_s: float
