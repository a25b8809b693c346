"""Puts a snapshot in the store's place.

The long part is done beside the running store: the snapshot is copied and verified while it is copied, its rows are
checked one by one, and what belongs to its sender (journal, term, vote, identity) is taken out. The short part has its
place in the order of writes: this node's term and vote are written into the staged file, a plan is written, and one
rename makes the staged file the store. Up to the plan a crash leaves the store as it was; from the plan on, opening the
store finishes the install, and finishing it twice changes nothing.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from resourcelease.storage.api import Identity, JournalEntry
from resourcelease.storage.durable import ROWS, VOTE, Durable, read_durable, write_identity
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import CorruptStore, InvalidBatch, SnapshotDamaged, SnapshotRefused
from resourcelease.storage.layout import Layout, fsync_directory, remove_tree, write_json
from resourcelease.storage.points import reach
from resourcelease.storage.positions import Positions
from resourcelease.storage.reading import read_rows
from resourcelease.storage.records import RowsPosition, Vote, pack_rows_position, pack_vote, seal
from resourcelease.storage.snapshots import Manifest, Snapshot
from resourcelease.storage.transaction import append_entries, put_ahead, restart_journal

__all__ = ["Staged", "after_install", "finish_install", "install", "stage"]

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """A verified snapshot beside the store, ready to take its place."""

    manifest: Manifest


def stage(layout: Layout, snapshot: Snapshot, identity: Identity) -> Staged:
    """Copies, verifies and scrubs a snapshot; the store goes on meanwhile. Takes the time of reading it twice."""
    remove_tree(layout.staging)
    layout.staging.mkdir()
    reach("install.begun")
    _copy_verified(snapshot, layout)
    reach("install.copied")
    _scrub(layout, snapshot.manifest, identity)
    fsync_directory(layout.staging)
    fsync_directory(layout.root)
    reach("install.scrubbed")
    return Staged(snapshot.manifest)


def install(layout: Layout, env: Environment, staged: Staged, head: Sequence[JournalEntry], before: Durable) -> Durable:
    """Replaces the store by what is staged; runs on the storage thread, between two commits."""
    index, term = staged.manifest.index, staged.manifest.term
    # One more than before, so that a reader of the old rows notices.
    rows = RowsPosition(index, term, before.rows.changes + 1)
    _write_own(layout, before.vote, rows, head, before.ahead)
    reach("install.voted")
    write_json(layout.plan, {"format": 1, "index": index, "term": term})
    reach("install.planned")
    with env.replaced():
        reach("install.closed")
        finish_install(layout)
    with env.reading() as txn:
        return read_durable(env, txn)


def finish_install(layout: Layout) -> None:
    """Does what is left of an install that was planned, and undoes one that was not; called with the store closed."""
    if layout.plan.exists():
        if layout.staged_data.exists():
            layout.staged_data.rename(layout.data)
            fsync_directory(layout.environment)
        reach("install.swapped")
        layout.plan.unlink()
        fsync_directory(layout.root)
        reach("install.forgotten")
    remove_tree(layout.staging)


def _copy_verified(snapshot: Snapshot, layout: Layout) -> None:
    with snapshot.data.open("rb") as source, layout.staged_data.open("wb") as target:
        size, digest = _copy(source, target)
        target.flush()
        os.fsync(target.fileno())
    manifest = snapshot.manifest
    if size != manifest.size_bytes or digest != manifest.sha256:
        remove_tree(layout.staging)
        raise SnapshotDamaged(
            f"{snapshot.data} has {size} bytes with sha256 {digest}; its manifest says {manifest.size_bytes} and "
            f"{manifest.sha256}. It was not installed; fetch it again"
        )


def _copy(source: BinaryIO, target: BinaryIO) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    while piece := source.read(_PIECE_BYTES):
        digest.update(piece)
        target.write(piece)
        size += len(piece)
        target.flush()
        os.fdatasync(target.fileno())
    return size, digest.hexdigest()


def _staged_environment(layout: Layout) -> Environment:
    size = layout.staged_data.stat().st_size
    return Environment(layout.staging, map_size=2 * size + (16 << 20), map_size_max=1 << 62)


def _scrub(layout: Layout, manifest: Manifest, identity: Identity) -> None:
    """Leaves the rows, and makes the file this node's."""
    env = _staged_environment(layout)
    try:
        with env.reading() as txn:
            durable = read_durable(env, txn)
        if (durable.rows.entry, durable.rows.term) != (manifest.index, manifest.term):
            raise SnapshotDamaged(
                f"the snapshot's rows stand for entry {durable.rows.entry} of term {durable.rows.term}, its manifest "
                f"says {manifest.index} of term {manifest.term}"
            )
        for _ in read_rows(env):
            pass
        scrubbing = env.begin_write()
        restart_journal(env, scrubbing, manifest.index)
        write_identity(env, scrubbing, identity)
        scrubbing.commit()
    except CorruptStore as error:
        raise SnapshotDamaged(
            f"the snapshot at entry {manifest.index} was damaged when it was sent: {error.what}"
        ) from error
    finally:
        env.close()


def _write_own(layout: Layout, vote: Vote, rows: RowsPosition, head: Sequence[JournalEntry], ahead: int) -> None:
    env = _staged_environment(layout)
    try:
        txn = env.begin_write()
        # Anew each time, since a full disk may have this done twice.
        restart_journal(env, txn, rows.entry - len(head))
        append_entries(env, txn, head)
        txn.put(VOTE, seal(VOTE, pack_vote(vote)), db=env.meta)
        txn.put(ROWS, seal(ROWS, pack_rows_position(rows)), db=env.meta)
        put_ahead(env, txn, ahead)
        txn.commit()
    finally:
        env.close()


def after_install(manifest: Manifest, head: Sequence[JournalEntry], before: Positions) -> Positions:
    """The positions after an install; raises when what would be installed is older, or its entries do not fit."""
    index = manifest.index
    if index <= before.rows_index:
        raise SnapshotRefused(
            f"the snapshot stands for entry {index}; the rows here already stand for {before.rows_index}"
        )
    first = index - len(head) + 1
    if first < 1 or [entry.index for entry in head] != list(range(first, index + 1)):
        raise InvalidBatch(f"the entries given do not end, without a gap, at the snapshot's entry {index}")
    return Positions(first - 1, index, index, before.term)
