"""Named places between two steps that must be safe to die in.

In a node ``reach`` does nothing. A test sets ``hook`` and kills the process, or raises, at the place it names; the list
is complete, so a test that walks ``POINTS`` has walked every gap between two steps on disk.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

__all__ = ["POINTS", "reach", "set_hook"]

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "create.opened": "LMDB has made its files; they carry no identity yet",
        "create.written": "the identity is committed; the directories are not yet synced",
        "ahead.begun": "a record for the log ahead is made up; nothing of it is written",
        "ahead.written": "the record is written and not flushed",
        "ahead.synced": "the record is on disk and nobody has been told",
        "commit.begun": "a write transaction is open and empty",
        "commit.applied": "the whole group is in the transaction, which is not committed",
        "commit.synced": "the group is on disk and nobody has been told",
        "commit.told": "everyone who waited for the group has been told",
        "compaction.applied": "a chunk of compacted entries is deleted in a transaction that is not committed",
        "compaction.synced": "that chunk is gone from disk; more may follow",
        "grow.decided": "the map is full and its transaction is undone",
        "grow.done": "the map has its new size; the group is about to be tried again",
        "snapshot.begun": "the working directory of a snapshot exists",
        "snapshot.copied": "the copy is complete and synced; it has no manifest",
        "snapshot.described": "the manifest is beside the copy; the directory still has its working name",
        "snapshot.shelved": "the snapshot has its final name",
        "snapshot.retired": "older snapshots beyond the number kept are deleted",
        "install.begun": "the staging directory exists",
        "install.copied": "a verified copy is staged, still with its sender's journal, vote and identity",
        "install.scrubbed": "the staged copy holds rows only, and carries this node's identity",
        "install.voted": "the staged copy carries this node's term and vote: it is ready to take the store's place",
        "install.planned": "the plan is on disk: from here on the install is finished, not undone",
        "install.closed": "the store's environment is closed, its file not yet replaced",
        "install.swapped": "the staged file has taken the store's place",
        "install.forgotten": "the plan is deleted",
    }
)


def _nothing(_point: str) -> None:
    """What a node does at every point."""


_hook: Callable[[str], None] = _nothing


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Has ``hook`` called with the name of each point that is reached; None: nothing is called. For tests only."""
    global _hook
    _hook = hook or _nothing


def reach(point: str) -> None:
    """Marks a place between two steps."""
    _hook(point)
