"""A node's disk: journal, vote and state rows in one LMDB environment, and snapshots of it; see ``docs/storage.md``.

LMDB is loaded when a name that needs it is asked for. Whoever reads segments, or runs consensus on a disk of its own
making, does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resourcelease.storage.api import Identity, JournalEntry, Loaded, Store, WriteBatch
from resourcelease.storage.errors import (
    CorruptStore,
    DirectoryInUse,
    DirectoryRefused,
    EntryNotHeld,
    InvalidBatch,
    NewerFormat,
    RowsChanged,
    SnapshotDamaged,
    SnapshotFailed,
    SnapshotRefused,
    StorageError,
    StoreMissing,
    StoreStopped,
    WrongIdentity,
)
from resourcelease.storage.options import StoreOptions, StoreState, StoreStats, StoreStatus
from resourcelease.storage.records import FORMAT_VERSION

if TYPE_CHECKING:
    from resourcelease.storage.install import Staged
    from resourcelease.storage.loop import LoopWriter
    from resourcelease.storage.snapshots import Manifest, Receiver, Snapshot, Snapshots
    from resourcelease.storage.store import LmdbStore

__all__ = [
    # What consensus is written against.
    "Store",
    "Identity",
    "JournalEntry",
    "Loaded",
    "WriteBatch",
    # The store of a real node.
    "LmdbStore",
    "LoopWriter",
    "StoreOptions",
    "StoreState",
    "StoreStats",
    "StoreStatus",
    "FORMAT_VERSION",
    # Snapshots.
    "Manifest",
    "Receiver",
    "Snapshot",
    "Snapshots",
    "Staged",
    # Errors.
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

_ON_LMDB = {
    "LmdbStore": "store",
    "LoopWriter": "loop",
    "Manifest": "snapshots",
    "Receiver": "snapshots",
    "Snapshot": "snapshots",
    "Snapshots": "snapshots",
    "Staged": "install",
}


def __getattr__(name: str) -> Any:
    """Loads what stands on LMDB when it is asked for."""
    if name in _ON_LMDB:
        return getattr(import_module(f"resourcelease.storage.{_ON_LMDB[name]}"), name)
    raise AttributeError(f"module 'resourcelease.storage' has no attribute {name!r}")
