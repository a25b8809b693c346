"""Snapshots on disk: complete ones, each with its manifest, and those that are still arriving from a peer.

A snapshot is a directory ``snapshots/<index>-<term>`` with a copy of the store (``data.mdb``) and ``manifest.json``. It
gets that name in one rename, after everything in it is synced; whatever has another name is unfinished and is deleted
when the store is opened.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import SnapshotDamaged, SnapshotFailed, SnapshotRefused
from resourcelease.storage.layout import Layout, fsync_directory, make_directories, remove_tree, write_json
from resourcelease.storage.points import reach
from resourcelease.storage.reading import read_rows
from resourcelease.storage.records import FORMAT_VERSION

__all__ = ["Manifest", "Receiver", "Snapshot", "Snapshots"]

_log = logging.getLogger("resourcelease.storage")

_NAME = re.compile(r"\d{20}-\d+")
_WORK_PREFIX = "work-"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot is, sent ahead of its bytes."""

    cluster_id: str
    # The node that took it; whoever installs it stays who they are.
    node_id: str
    format_version: int
    # The log entry that its rows stand for.
    index: int
    term: int
    # The machine's own digest of its state at that entry, opaque here.
    state_digest: str
    size_bytes: int
    sha256: str

    def to_json(self) -> bytes:
        """The form in which it is sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> "Manifest":
        """Reads a manifest that may come from anywhere; raises ``SnapshotDamaged`` when it is none."""
        try:
            fields = json.loads(text)
            manifest = cls(**fields)
            for name, kind in cls.__annotations__.items():
                if type(fields[name]) is not kind:
                    raise TypeError(f"{name} is not of type {kind.__name__}")
        except (ValueError, TypeError, KeyError) as error:
            raise SnapshotDamaged(f"this is no manifest of a snapshot: {error}") from error
        if manifest.index < 1 or manifest.term < 0 or manifest.size_bytes < 1:
            raise SnapshotDamaged(f"this is no manifest of a snapshot: {manifest}")
        return manifest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot on this node's disk."""

    directory: Path
    manifest: Manifest

    @property
    def data(self) -> Path:
        """The file to send."""
        return self.directory / "data.mdb"

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows of the snapshot in key order, checked; the store is not touched. One reader at a time."""
        env = Environment(self.directory, map_size=1 << 20, map_size_max=1 << 62, readonly=True)
        try:
            yield from read_rows(env)
        finally:
            env.close()


class Snapshots:
    """The snapshots of one node, newest last."""

    def __init__(self, layout: Layout, cluster_id: str, kept: int) -> None:
        self._root = layout.snapshots
        self._cluster_id = cluster_id
        self._kept = max(1, kept)
        make_directories(self._root)
        self._remove_unfinished()

    def list(self) -> list[Snapshot]:
        """All complete snapshots, the oldest first."""
        found = []
        for directory in self._root.iterdir():
            if _NAME.fullmatch(directory.name):
                try:
                    manifest = Manifest.from_json((directory / "manifest.json").read_bytes())
                except (SnapshotDamaged, OSError) as error:
                    _log.warning("the snapshot in %s is of no use and can be deleted: %s", directory, error)
                else:
                    found.append(Snapshot(directory, manifest))
        return sorted(found, key=lambda snapshot: (snapshot.manifest.index, snapshot.manifest.term))

    def latest(self) -> Snapshot | None:
        """The newest one, or None."""
        return next(reversed(self.list()), None)

    def begin(self) -> Path:
        """A fresh directory to build a snapshot in."""
        work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=self._root))
        reach("snapshot.begun")
        return work

    def shelve(self, work: Path, manifest: Manifest) -> Snapshot:
        """Gives what was built in ``work`` its manifest and its name; retires those beyond the number kept."""
        write_json(work / "manifest.json", asdict(manifest))
        reach("snapshot.described")
        directory = self._root / f"{manifest.index:020}-{manifest.term}"
        if directory.exists():
            # Of the same entry; the new one is known to be whole.
            self._bury(directory)
        work.rename(directory)
        fsync_directory(self._root)
        reach("snapshot.shelved")
        self._retire(spare=directory)
        reach("snapshot.retired")
        return Snapshot(directory, manifest)

    def receive(self, manifest: Manifest) -> "Receiver":
        """Begins to take in a peer's snapshot; raises ``SnapshotRefused`` when it cannot be for this node."""
        self.check(manifest)
        return Receiver(self, manifest)

    def check(self, manifest: Manifest) -> None:
        """Raises ``SnapshotRefused`` when a snapshot is not one of this cluster and format."""
        if manifest.cluster_id != self._cluster_id:
            raise SnapshotRefused(
                f"the snapshot is of cluster {manifest.cluster_id!r}, this node is of cluster {self._cluster_id!r}"
            )
        if manifest.format_version > FORMAT_VERSION:
            raise SnapshotRefused(
                f"the snapshot has format {manifest.format_version}, this release knows up to {FORMAT_VERSION}; "
                "upgrade this node first"
            )

    def _retire(self, spare: Path) -> None:
        for snapshot in self.list()[: -self._kept]:
            if snapshot.directory != spare:
                self._bury(snapshot.directory)

    def _bury(self, directory: Path) -> None:
        # Renamed first, so that a half-deleted snapshot is never taken for a whole one.
        grave = self._root / f"{_WORK_PREFIX}retired-{directory.name}"
        remove_tree(grave)
        directory.rename(grave)
        remove_tree(grave)

    def _remove_unfinished(self) -> None:
        for directory in self._root.iterdir():
            if directory.name.startswith(_WORK_PREFIX):
                remove_tree(directory)


class Receiver:
    """Takes a snapshot's bytes as they arrive; its calls write to disk and block, so keep them off an event loop."""

    def __init__(self, snapshots: Snapshots, manifest: Manifest) -> None:
        self.manifest = manifest
        self._snapshots = snapshots
        self._work = snapshots.begin()
        self._file = (self._work / "data.mdb").open("wb")
        self._digest = hashlib.sha256()
        self.received_bytes = 0

    def write(self, piece: bytes) -> None:
        """Takes the next piece, in order."""
        if self.received_bytes + len(piece) > self.manifest.size_bytes:
            self.abort()
            raise SnapshotDamaged(f"more than the {self.manifest.size_bytes} bytes that were announced arrived")
        try:
            self._file.write(piece)
        except OSError as error:
            self.abort()
            raise SnapshotFailed(f"the snapshot at entry {self.manifest.index} cannot be kept: {error}") from error
        self._digest.update(piece)
        self.received_bytes += len(piece)

    def finish(self) -> Snapshot:
        """Checks the whole and shelves it; raises ``SnapshotDamaged`` when it is not what its manifest says."""
        if self.received_bytes != self.manifest.size_bytes or self._digest.hexdigest() != self.manifest.sha256:
            self.abort()
            raise SnapshotDamaged(
                f"what arrived ({self.received_bytes} bytes) is not the snapshot at entry {self.manifest.index} "
                f"({self.manifest.size_bytes} bytes, sha256 {self.manifest.sha256}); ask for it again"
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            reach("snapshot.copied")
            return self._snapshots.shelve(self._work, self.manifest)
        except OSError as error:
            self.abort()
            raise SnapshotFailed(f"the snapshot at entry {self.manifest.index} cannot be kept: {error}") from error

    def abort(self) -> None:
        """Throws away what has arrived."""
        self._file.close()
        remove_tree(self._work)
