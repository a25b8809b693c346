"""The directory of a log: its files by name, and a register of what their content cannot say."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from resourcelease.storage.errors import CorruptStore, NewerFormat, WrongIdentity
from resourcelease.storage.layout import fsync_directory, write_json
from resourcelease.storage.segments.format import SEGMENT_VERSION, SUFFIX

__all__ = [
    "ASIDE_SUFFIX",
    "DRAFT_SUFFIX",
    "Owner",
    "Register",
    "has_history",
    "log_directory",
    "put_aside",
    "segment_paths",
]

# Files that were found to be no part of the log, and kept for whoever looks for the cause.
ASIDE_SUFFIX = ".damaged"
# What is being put in place; deleted on the next start if the node dies over it.
DRAFT_SUFFIX = ".incoming"
_REGISTER = "register.json"
_DIGITS = 20


class Owner(NamedTuple):
    """Whose log this is."""

    cluster_id: str
    node_id: str
    shard: str = ""

    def wrote(self, cluster_id: str, shard: str) -> bool:
        """Whether what names this cluster and shard belongs here."""
        return (self.cluster_id, self.shard) == (cluster_id, shard)


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """First sequence number and path of every segment file, in order. Files with other names are nobody's business."""
    found = []
    for path in directory.iterdir():
        digits = path.name.removesuffix(SUFFIX)
        if path.name.endswith(SUFFIX) and len(digits) == _DIGITS and digits.isdecimal() and digits.isascii():
            found.append((int(digits), path))
    return sorted(found)


def log_directory(path: Path) -> Path | None:
    """Where a path has a log: a node's directory, that of one of ``resourcelease dev``, or the log's own.

    By its name it is one also while nothing is in it.
    """
    for place in (path / "segments", path / "data" / "segments"):
        if place.is_dir():
            return place
    return path if path.is_dir() and has_history(path) else None


def has_history(directory: Path) -> bool:
    """Whether there is something of a log in its directory."""
    return (directory / _REGISTER).exists() or bool(segment_paths(directory))


def put_aside(path: Path) -> Path:
    """Takes a file out of the log that is no part of it; it is kept under another name."""
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    path.rename(aside)
    fsync_directory(path.parent)
    return aside


class Register:
    """``register.json``: the owner, how far history was deleted on purpose, and what readers have yet to take.

    Every change is on disk, whole, before the call returns. Calls may come from any thread.
    """

    def __init__(self, directory: Path, owner: Owner, retired: int, readers: Mapping[str, int]) -> None:
        self._path = directory / _REGISTER
        self._lock = threading.Lock()
        self.owner = owner
        self._retired = retired
        self._readers = dict(readers)

    @classmethod
    def open(cls, directory: Path, owner: Owner) -> "Register":
        """The register of a directory, which is founded if there is none. Refuses one that belongs to somebody else."""
        register = cls.read(directory)
        if register is None:
            register = cls(directory, owner, 0, {})
            with register._lock:
                register._write()
        elif register.owner != owner:
            theirs = register.owner
            raise WrongIdentity(
                f"{directory} holds the log of node {theirs.node_id} of cluster {theirs.cluster_id}, shard "
                f"{theirs.shard!r}, not that of {owner.node_id} of {owner.cluster_id}, shard {owner.shard!r}: "
                "give this node its own directory"
            )
        return register

    @classmethod
    def read(cls, directory: Path) -> "Register | None":
        """The register as it is on disk; None if there is none."""
        path = directory / _REGISTER
        try:
            fields: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptStore(path, f"the register of the log cannot be read: {error}") from error
        try:
            if fields["format"] > SEGMENT_VERSION:
                raise NewerFormat(f"{path}: written in format {fields['format']}; this release reads {SEGMENT_VERSION}")
            owner = Owner(str(fields["cluster_id"]), str(fields["node_id"]), str(fields["shard"]))
            readers = {str(name): int(first) for name, first in fields["readers"].items()}
            return cls(directory, owner, int(fields["retired"]), readers)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStore(path, f"the register of the log is none: {error}") from error

    @property
    def retired(self) -> int:
        """Events up to this one were deleted on purpose."""
        with self._lock:
            return self._retired

    @property
    def readers(self) -> Mapping[str, int]:
        """The first event that each registered reader has yet to take."""
        with self._lock:
            return dict(self._readers)

    def protect(self, reader: str, first: int) -> None:
        """Keeps events from ``first`` on for a reader, and no longer those before it."""
        with self._lock:
            if self._readers.get(reader) != first:
                self._readers[reader] = first
                self._write()

    def release(self, reader: str) -> None:
        """Forgets a reader."""
        with self._lock:
            if self._readers.pop(reader, None) is not None:
                self._write()

    def retire(self, through: int) -> None:
        """Notes that events up to this one are about to be deleted."""
        with self._lock:
            if through > self._retired:
                self._retired = through
                self._write()

    def _write(self) -> None:
        fields = {
            "format": SEGMENT_VERSION,
            **self.owner._asdict(),
            "retired": self._retired,
            "readers": self._readers,
        }
        write_json(self._path, fields)
