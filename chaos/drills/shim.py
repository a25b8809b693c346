"""What stands between a node and its C library where a drill needs a bad disk or a wrong clock; see ``shim.c``."""

import functools
import os
import random
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chaos.drills.node import Node

__all__ = ["Shim", "Undo", "unsynced_pages", "why_no_shim"]

# The words of the control file, in order; ``shim.c`` says what they mean.
_FIELDS = ("delay_us", "flush_errno", "record", "jump_ns", "rate_ppm", "rate_from_ns", "flushes", "wrong_times")
_WORD = struct.Struct("=q")
_HEAD = struct.Struct("=6q")
_WRITE, _FLUSH = 1, 2
PAGE = 4096


def why_no_shim() -> str:
    """Why it cannot be used here; empty if it can."""
    if sys.platform != "linux":
        return "the shim between a node and its C library is for Linux"
    return "" if shutil.which("gcc") else "gcc, which makes the shim for bad disks and clocks, is not installed"


@functools.cache
def _compiled() -> tuple[Path, "tempfile.TemporaryDirectory[str]"]:
    """The library, made once for each run of the drills; it goes when we do."""
    home = tempfile.TemporaryDirectory(prefix="resourcelease-shim-")
    library = Path(home.name) / "shim.so"
    words = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("shim.c"))]
    subprocess.run([*words, "-ldl", "-lpthread"], check=True)
    return library, home


class Shim:
    """The shim of one node: it holds from the node's next start on, and is told what to do at any time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._control = node.directory / "shim.control"
        self._undo = node.directory / "shim.undo"
        node.directory.mkdir(parents=True, exist_ok=True)
        self._control.write_bytes(bytes(_WORD.size * len(_FIELDS)))
        # Where the interpreter's own code is; other libraries keep the true clock.
        caller = "libpython" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "bin/python"
        settings = {
            "LD_PRELOAD": str(_compiled()[0]),
            "SHIM_CONTROL": str(self._control.resolve()),
            "SHIM_UNDO": str(self._undo.resolve()),
            "SHIM_DIR": f"{node.data.resolve()}/",
            "SHIM_CALLER": caller,
        }
        node.wrap(["env", *(f"{name}={value}" for name, value in settings.items())])

    def tell(self, **fields: int) -> None:
        """Sets words of the control file; they hold at once."""
        with self._control.open("r+b", buffering=0) as file:
            for name, value in fields.items():
                file.seek(_FIELDS.index(name) * _WORD.size)
                file.write(_WORD.pack(value))

    def heal(self) -> None:
        """The disk is well and the wall clock right. The rate stays: a clock that goes on never goes back."""
        self.tell(delay_us=0, flush_errno=0, record=0, jump_ns=0)

    def set_rate(self, rate_ppm: int) -> None:
        """All clocks of the node run so much faster from now on."""
        self.tell(rate_from_ns=time.monotonic_ns())
        self.tell(rate_ppm=rate_ppm)

    def count(self, name: str) -> int:
        """What the shim has counted: ``flushes``, or ``wrong_times``."""
        at = _FIELDS.index(name) * _WORD.size
        return int(_WORD.unpack_from(self._control.read_bytes(), at)[0])

    def start_record(self) -> None:
        """From now on keeps what no flush covers; to be told while the node is down."""
        self._undo.unlink(missing_ok=True)
        self.tell(record=1)

    def lose_power(self, chance: random.Random) -> int:
        """After the node was killed: each page that no flush covers is as it was, or as it was written; how many were.

        Flushed content always stays. Names of files, and which files there are, stay too.
        """
        entries = _read(self._undo)
        if not entries:
            raise OSError(f"the shim of {self._node.name} has kept nothing, so no power cut was tried")
        undone = 0
        files = {path.stat().st_ino: path for path in self._node.data.rglob("*") if path.is_file()}
        for inode, undo in unsynced_pages(entries).items():
            if inode in files:
                undone += _undo(files[inode], undo, chance)
        self._undo.unlink(missing_ok=True)
        return undone


class Undo(NamedTuple):
    """What one file was when it was last flushed, as far as it was written since: its size, and bytes by place."""

    size: int
    pieces: list[tuple[int, bytes, int]]


class Entry(NamedTuple):
    """One entry of the undo file, which begins at ``at``."""

    at: int
    kind: int
    inode: int
    offset: int
    old: bytes
    length: int
    file_size: int


def _read(path: Path) -> list[Entry]:
    return list(_entries(path.read_bytes())) if path.exists() else []


def _entries(data: bytes) -> Iterator[Entry]:
    """What the shim has written; the last entry may be cut off, and what it speaks of was not written then."""
    at = 0
    while at + _HEAD.size <= len(data):
        kind, inode, offset, size, length, file_size = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + (size if kind == _WRITE else 0)
        if end > len(data):
            return
        yield Entry(at, kind, inode, offset, data[at + _HEAD.size : end], length, file_size)
        at = end


def unsynced_pages(entries: list[Entry]) -> dict[int, Undo]:
    """For each file, by inode, what to restore; oldest first: the first word on a byte is the one that holds."""
    covered: dict[int, int] = {}
    for entry in entries:
        if entry.kind == _FLUSH:
            covered[entry.inode] = max(covered.get(entry.inode, 0), entry.offset)
    found: dict[int, Undo] = {}
    for entry in entries:
        if entry.kind == _WRITE and entry.at >= covered.get(entry.inode, 0):
            undo = found.setdefault(entry.inode, Undo(entry.file_size, []))
            undo.pieces.append((entry.offset, entry.old, entry.length))
    return found


def _undo(path: Path, undo: Undo, chance: random.Random) -> int:
    now = bytearray(path.read_bytes())
    was = bytearray(now)
    # Newest first, so that the oldest content of each byte is what stays.
    for offset, old, length in reversed(undo.pieces):
        end = min(offset + length, len(was))
        was[offset:end] = old.ljust(length, b"\0")[: max(end - offset, 0)]
    pages = sorted({page for at, _, size in undo.pieces for page in range(at // PAGE, (at + size - 1) // PAGE + 1)})
    lost = [page for page in pages if chance.random() < 0.5]
    with path.open("r+b") as file:
        for page in lost:
            file.seek(page * PAGE)
            file.write(was[page * PAGE : (page + 1) * PAGE])
        if chance.random() < 0.5 and undo.size < len(now):
            file.truncate(undo.size)
        os.fsync(file.fileno())
    return len(lost)
