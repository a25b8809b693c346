"""Takes snapshots of a store while it is written to."""

from concurrent.futures import Future

from resourcelease.storage.api import Identity
from resourcelease.storage.background import Background
from resourcelease.storage.durable import Durable
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import SnapshotFailed
from resourcelease.storage.hotcopy import HotCopy
from resourcelease.storage.layout import Layout, remove_tree
from resourcelease.storage.options import StoreOptions
from resourcelease.storage.points import reach
from resourcelease.storage.records import FORMAT_VERSION
from resourcelease.storage.snapshots import Manifest, Snapshot, Snapshots
from resourcelease.storage.space import free_bytes

__all__ = ["SnapshotTaker"]


class SnapshotTaker:
    """One snapshot at a time: begun on the storage thread, between two commits, and finished on another."""

    def __init__(
        self,
        layout: Layout,
        env: Environment,
        identity: Identity,
        snapshots: Snapshots,
        background: Background,
        options: StoreOptions,
    ) -> None:
        self._layout = layout
        self._env = env
        self._identity = identity
        self._snapshots = snapshots
        self._background = background
        self._options = options
        self._copy: HotCopy | None = None

    def begin(self, durable: Durable, state_digest: str, future: "Future[Snapshot]") -> None:
        """Fixes what the snapshot will hold, and has it written in the background."""
        if self._copy is not None:
            raise SnapshotFailed("another snapshot is being taken; wait for it")
        if not durable.rows.entry:
            raise SnapshotFailed("there are no rows yet to take a snapshot of")
        self._check_room()
        copy = HotCopy(
            self._env,
            piece_bytes=self._options.snapshot_piece_bytes,
            bytes_per_s=self._options.snapshot_bytes_per_s,
        )
        self._copy = copy
        self._background.run("the snapshot", lambda: self._finish(copy, durable, state_digest), future)

    def release_map(self) -> None:
        """Ends a snapshot that still reads the store, because the map has to move; returns once it does not."""
        copy = self._copy
        if copy is not None:
            copy.release_map()

    def close(self) -> None:
        """Ends a snapshot that is being taken."""
        copy = self._copy
        if copy is not None:
            copy.cancel()

    def _check_room(self) -> None:
        used = self._env.used_bytes
        free = free_bytes(self._layout.root)
        if free < used:
            raise SnapshotFailed(f"a snapshot may take {used} bytes, and {free} are free; make room first")
        # Pages that the copy sees cannot be used again meanwhile. With this much room the map will not have to grow,
        # and so end the copy, before it is done.
        while self._env.map_size < 2 * used and self._env.grow():
            pass

    def _finish(self, copy: HotCopy, durable: Durable, state_digest: str) -> Snapshot:
        try:
            work = self._snapshots.begin()
        except BaseException:
            copy.abandon()
            self._copy = None
            raise
        try:
            copied = copy.run(work / "data.mdb")
            self._copy = None
            reach("snapshot.copied")
            manifest = Manifest(
                cluster_id=self._identity.cluster_id,
                node_id=self._identity.node_id,
                format_version=FORMAT_VERSION,
                index=durable.rows.entry,
                term=durable.rows.term,
                state_digest=state_digest,
                size_bytes=copied.size_bytes,
                sha256=copied.sha256,
            )
            return self._snapshots.shelve(work, manifest)
        except BaseException:
            self._copy = None
            remove_tree(work)
            raise
