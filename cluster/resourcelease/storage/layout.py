"""A node's directory: names, the lock, and the steps that make a rename or a new file survive a power cut."""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resourcelease.storage.errors import DirectoryInUse

__all__ = ["DirectoryLock", "Layout", "fsync_directory", "make_directories", "remove_tree", "write_json"]


class Layout:
    """The paths below one node's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.environment = root / "lmdb"
        self.data = self.environment / "data.mdb"
        self.ahead = root / "ahead"
        self.snapshots = root / "snapshots"
        # Space given back when the disk is full, so that compaction still has pages to write to.
        self.ballast = root / "ballast"
        self.staging = root / "install"
        self.staged_data = self.staging / "data.mdb"
        self.plan = root / "install.plan"


class DirectoryLock:
    """Held while a store is open; the kernel lets go of it when the process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise DirectoryInUse(
                f"{path.parent} is in use by process {holder}: stop that node, or give this one a directory of its own"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Lets the next store open the directory; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def fsync_directory(path: Path) -> None:
    """Makes what was created, renamed or deleted in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path) -> None:
    """Creates ``path`` and what is missing above it; each new name is durable in its parent."""
    missing = [path]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    for directory in reversed(missing[:-1]):
        directory.mkdir(exist_ok=True)
        fsync_directory(directory.parent)


def remove_tree(path: Path) -> None:
    """Deletes a directory and everything in it, if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a small file whole or not at all: beside its place, synced, then renamed over it."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    fsync_directory(path.parent)
