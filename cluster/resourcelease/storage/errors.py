"""What a node's disk can refuse or fail with; every error says what was asked, what was met and what to do."""

from pathlib import Path

__all__ = [
    "StorageError",
    "StoreStopped",
    "CorruptStore",
    "InvalidBatch",
    "EntryNotHeld",
    "RowsChanged",
    "DirectoryRefused",
    "DirectoryInUse",
    "WrongIdentity",
    "NewerFormat",
    "StoreMissing",
    "SnapshotFailed",
    "SnapshotDamaged",
    "SnapshotRefused",
]


class StorageError(Exception):
    """The root of everything this room raises."""


class StoreStopped(StorageError):
    """The store takes no more writes: an earlier error stopped it, or it was closed."""


class CorruptStore(StorageError):
    """What is on disk is not what was written; ``path`` is the file, ``what`` the thing in it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path}: {what}. The node must not go on with it: replace the disk if it is failing, "
            "empty the directory and let the node join again"
        )
        self.path = path
        self.what = what


class InvalidBatch(StorageError, ValueError):
    """A batch that contradicts what was written before it; nothing of it was queued."""


class EntryNotHeld(StorageError, LookupError):
    """The journal does not reach back, or forward, to the entry that was asked for."""


class RowsChanged(StorageError):
    """The map moved while all rows were being read, and they have changed since; begin again."""


class DirectoryRefused(StorageError):
    """The directory is not this node's to open."""


class DirectoryInUse(DirectoryRefused):
    """Another store has the directory open."""


class WrongIdentity(DirectoryRefused):
    """The directory belongs to another node or to another cluster."""


class NewerFormat(DirectoryRefused):
    """The directory was written by a newer release, in a format this one does not know."""


class StoreMissing(DirectoryRefused):
    """There is no store where one was expected."""


class SnapshotFailed(StorageError):
    """A snapshot could not be taken or received; the store itself goes on."""


class SnapshotDamaged(SnapshotFailed):
    """A snapshot's bytes are not those its manifest describes."""


class SnapshotRefused(SnapshotFailed):
    """A snapshot that must not be installed here: another cluster's, a newer format, or older than what is held."""
