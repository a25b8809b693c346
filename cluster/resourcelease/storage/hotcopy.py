"""Copies the store while it is written to.

LMDB walks the tree as it was at one moment and writes it, without free pages, into a pipe; at the other end the bytes
are hashed, written and synced piece by piece. The pipe is what makes the copy gentle: it goes no faster than the disk
takes it, a commit never waits behind more than a piece, and it can be ended at once when the map has to move.
"""

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lmdb

from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import SnapshotFailed

if TYPE_CHECKING:
    from lmdb import Transaction

__all__ = ["Copied", "HotCopy"]

# As much as the system lets an ordinary process have.
_PIPE_BYTES = 1 << 20


class Copied(NamedTuple):
    """What a finished copy came to."""

    size_bytes: int
    sha256: str


class HotCopy:
    """One copy; made on the storage thread, where ``view`` is exactly what was durable, and run on another."""

    def __init__(self, env: Environment, *, piece_bytes: int, bytes_per_s: int) -> None:
        self._env = env
        self._view: Transaction[bytes] = env.begin_copy()
        self._piece_bytes = piece_bytes
        self._bytes_per_s = bytes_per_s
        self._cancelled = threading.Event()
        self._let_go = threading.Event()
        self._failure: Exception | None = None

    def run(self, target: Path) -> Copied:
        """Writes and syncs the copy; raises ``SnapshotFailed`` when that cannot be done, or not any more."""
        try:
            outlet, inlet = os.pipe2(os.O_CLOEXEC)
            fcntl.fcntl(outlet, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError as error:
            self.abandon()
            raise SnapshotFailed(f"the snapshot cannot be begun: {error}") from error
        walker = threading.Thread(target=self._walk, args=(inlet,), name="snapshot-walk", daemon=True)
        walker.start()
        try:
            with target.open("wb", buffering=0) as file:
                return self._take(outlet, file.fileno())
        except OSError as error:
            raise SnapshotFailed(f"the snapshot cannot be written: {error}") from error
        finally:
            # Without a reader LMDB's next write fails, which ends the walk.
            os.close(outlet)
            walker.join()

    def cancel(self) -> None:
        """Ends the copy and returns once it has let go of the map."""
        self._cancelled.set()
        self._let_go.wait()

    def release_map(self) -> None:
        """Sees to it that the copy does not use the map; one that has read it all by now may go on to the end."""
        if not self._let_go.is_set():
            self.cancel()

    def abandon(self) -> None:
        """Lets go of the map without having copied anything."""
        self._env.finish_copy(self._view)
        self._let_go.set()

    def _walk(self, inlet: int) -> None:
        try:
            self._env.copy_to(inlet, self._view)
        except Exception as error:
            self._failure = error
        finally:
            self._env.finish_copy(self._view)
            self._let_go.set()
            # Last, since this is what tells the other end that the copy is complete.
            os.close(inlet)

    def _take(self, outlet: int, fd: int) -> Copied:
        digest = hashlib.sha256()
        size = synced = 0
        began = time.monotonic()
        while True:
            piece = os.read(outlet, self._piece_bytes)
            if self._cancelled.is_set():
                raise SnapshotFailed("the snapshot was ended: the store needed a larger map, or was closed; try again")
            if not piece:
                break
            digest.update(piece)
            _write_all(fd, piece)
            size += len(piece)
            if size - synced >= self._piece_bytes:
                os.fdatasync(fd)
                # Nobody reads it soon, and the store's own pages should stay in memory.
                os.posix_fadvise(fd, synced, size - synced, os.POSIX_FADV_DONTNEED)
                synced = size
            self._pace(size, began)
        if self._failure is not None:
            raise SnapshotFailed(f"the store cannot be copied: {_explain(self._failure)}") from self._failure
        os.fsync(fd)
        return Copied(size, digest.hexdigest())

    def _pace(self, size: int, began: float) -> None:
        if self._bytes_per_s:
            ahead = size / self._bytes_per_s - (time.monotonic() - began)
            if ahead > 0:
                self._cancelled.wait(ahead)


def _write_all(fd: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _explain(failure: Exception) -> str:
    if isinstance(failure, lmdb.IncompatibleError):
        return f"LMDB's file has lost track of some pages ({failure}); rebuild this node from a peer's snapshot"
    return str(failure)
