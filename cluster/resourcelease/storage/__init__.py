"""A node's disk: journal, vote and state rows in one LMDB environment, and snapshots of it; see ``docs/storage.md``."""

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
from resourcelease.storage.install import Staged
from resourcelease.storage.loop import LoopWriter
from resourcelease.storage.options import StoreOptions, StoreState, StoreStats, StoreStatus
from resourcelease.storage.records import FORMAT_VERSION
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
