"""Rows that come from another node, piece by piece, into a file of their own beside the store."""

import os
from collections.abc import Iterator, Sequence

import lmdb

from resourcelease.storage.api import Identity
from resourcelease.storage.durable import ROWS, write_identity
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import SnapshotDamaged
from resourcelease.storage.install import Staged
from resourcelease.storage.layout import Layout, fsync_directory, remove_tree
from resourcelease.storage.reading import read_rows
from resourcelease.storage.records import FORMAT_VERSION, RowsPosition, pack_rows_position, seal, seal_rows
from resourcelease.storage.snapshots import Manifest
from resourcelease.storage.transaction import restart_journal

__all__ = ["RowsIntake"]

_MAP_BYTES = 64 << 20
_MAP_BYTES_MAX = 1 << 42


class RowsIntake:
    """Takes rows in, in the order of their keys. Blocks; one thread at a time."""

    def __init__(self, layout: Layout, identity: Identity) -> None:
        self._layout = layout
        self._identity = identity
        remove_tree(layout.staging)
        layout.staging.mkdir()
        # One flush at the end does for all: until then nothing counts on this file.
        self._env = Environment(layout.staging, map_size=_MAP_BYTES, map_size_max=_MAP_BYTES_MAX, sync=False)

    def add(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """The next rows; ``SnapshotDamaged`` if they do not follow those before."""
        while True:
            txn = self._env.begin_write()
            try:
                consumed, added = txn.cursor(db=self._env.rows).putmulti(seal_rows(rows), append=True)
                if consumed != added:
                    raise SnapshotDamaged("the rows did not come in the order of their keys")
                txn.commit()
                return
            except lmdb.MapFullError:
                self._env.undo(txn)
                if not self._env.grow():
                    raise
            except BaseException:
                self._env.undo(txn)
                raise

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """What is on the disk by now, read back and checked."""
        return read_rows(self._env)

    def finish(self, index: int, term: int) -> Staged:
        """Makes a file of it that can take the store's place."""
        txn = self._env.begin_write()
        restart_journal(self._env, txn, index)
        write_identity(self._env, txn, self._identity)
        txn.put(ROWS, seal(ROWS, pack_rows_position(RowsPosition(index, term, 0))), db=self._env.meta)
        txn.commit()
        self._env.close()
        with self._layout.staged_data.open("rb+") as file:
            os.fsync(file.fileno())
        fsync_directory(self._layout.staging)
        fsync_directory(self._layout.root)
        size = self._layout.staged_data.stat().st_size
        identity = self._identity
        return Staged(Manifest(identity.cluster_id, identity.node_id, FORMAT_VERSION, index, term, "", size, ""))

    def abandon(self) -> None:
        """Deletes what came."""
        self._env.close()
        remove_tree(self._layout.staging)
