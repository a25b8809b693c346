"""What an operator may set about a node's disk, and what the store shows of itself."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = ["StoreOptions", "StoreState", "StoreStats", "StoreStatus"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The defaults suit a node of a few million rows.

    >>> StoreOptions(snapshots_kept=3).snapshots_kept
    3
    """

    # Address space, not disk: the file grows only as it is written. Doubled whenever it is used up.
    map_size_bytes: int = 256 * _MIB
    # Beyond this the store behaves as on a full disk.
    map_size_bytes_max: int = 1 << 40
    # Each of the two files of the log ahead; 0: every batch is committed to LMDB before it is acknowledged.
    ahead_bytes: int = 8 * _MIB
    # How long what is in the log ahead may wait to settle in LMDB.
    settle_s: float = 0.5
    # When so many batches wait for that they settle at once; 0 and 1: each does. So a busy node settles often and a
    # little each time: while it does, its loop is slower, and on all nodes of a cluster that comes at about one moment.
    settle_batches: int = 200
    # A disk that flushes faster than this is written by whoever asks, at once; a slower one by a thread of its own.
    at_once_s: float = 0.001
    # A group takes no further batch once it has this much, so that no transaction outgrows memory.
    group_bytes_max: int = 64 * _MIB
    # Compacted entries deleted along with a group, and in a transaction of their own when nothing else waits.
    compaction_chunk: int = 256
    compaction_chunk_idle: int = 1024
    # How long a full disk is left alone between two attempts.
    full_retry_s: float = 0.5
    # Kept in a file of its own, and given back when the disk is full, so that compaction can still write. 0: none.
    ballast_bytes: int = 4 * _MIB
    snapshots_kept: int = 2
    # A snapshot is synced after each piece, so that a commit never waits behind more than one.
    snapshot_piece_bytes: int = 1 * _MIB
    # How fast a snapshot is written at most; 0: no limit. Without one it would take a core and the disk from
    # the commits meanwhile, and nobody waits for it.
    snapshot_bytes_per_s: int = 64 * _MIB
    # False only to measure what the fsync costs: a power cut may then lose or damage anything.
    sync: bool = True


class StoreState(StrEnum):
    """What a store can do at the moment."""

    OPEN = "open"
    # No space: reads work, writes are held in order and go on by themselves when there is space again.
    FULL = "full"
    # An error stopped it; only a restart of the node helps.
    STOPPED = "stopped"
    CLOSED = "closed"


class StoreStatus(NamedTuple):
    """The state, and for people the reason for it."""

    state: StoreState
    reason: str = ""


class StoreStats(NamedTuple):
    """Totals since the store was opened, and sizes now."""

    batches: int
    commits: int
    journal_bytes: int
    # From the start of the last group's transaction to the end of its fsync.
    last_commit_s: float
    # Batches and tasks handed over and not yet ended.
    waiting: int
    map_size_bytes: int
    used_bytes: int
