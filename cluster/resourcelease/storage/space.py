"""What is done about a full disk: a little space that is kept back, and a look at how much there is."""

import os
from pathlib import Path

from resourcelease.storage.environment import is_disk_full
from resourcelease.storage.layout import fsync_directory

__all__ = ["Ballast", "free_bytes", "has_room"]


class Ballast:
    """A file that only takes space.

    Compaction frees pages inside LMDB's file, but it needs a few new ones first. On a disk with nothing left it gets
    them from here.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self.missing = size > 0

    def fill(self) -> bool:
        """Takes the space back if it was given away; False while there is none to take."""
        if self._size == 0 or (self._path.exists() and self._path.stat().st_size == self._size):
            self.missing = False
            return True
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._size)
            fsync_directory(self._path.parent)
        except OSError:
            # An aid that is missing is no reason to stop.
            self.drop()
            return False
        self.missing = False
        return True

    def drop(self) -> bool:
        """Gives the space away; False when that was done before."""
        self.missing = self._size > 0
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


def has_room(directory: Path, size: int) -> bool:
    """Whether ``size`` more bytes can be stored in ``directory``, quotas and reserves included: it is tried."""
    probe = directory / "probe"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        return not is_disk_full(error)
    finally:
        probe.unlink(missing_ok=True)
    return True


def free_bytes(path: Path) -> int:
    """How much an ordinary process may still write where ``path`` is."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize
