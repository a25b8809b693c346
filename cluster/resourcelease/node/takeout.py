"""What a node leaves in its directory when it takes itself out, and when it has rebuilt its state."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from resourcelease.storage import StorageError
from resourcelease.storage.layout import fsync_directory, make_directories, remove_tree, write_json

__all__ = ["Mark", "Rebuilt", "TakenOut", "check_not_out", "clear_mark", "mark_out", "note_rebuilt", "put_aside"]
__all__ += ["read_mark", "rebuilds"]

_MARK = "taken-out.json"
_RECORD = "rebuilds.json"
_RECORDED_MAX = 10
# What was replaced is kept for people here, the newest of it.
_ASIDE = "put-aside"
_ASIDE_MAX = 2


class TakenOut(StorageError):
    """This node's history or state is not the majority's, so it serves nobody until it has been rebuilt."""


class Mark(NamedTuple):
    """Why a node took itself out."""

    reason: str
    # Whether its history differs too, not the state alone; for whoever looks for the cause.
    history: bool
    # Id and address of all nodes, as it knew them.
    members: Mapping[str, str]


class Rebuilt(NamedTuple):
    """One rebuilding of the state."""

    at_ms: int
    # The entry whose state was taken over, with its digest, and the node that sent it.
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    digest: str
    source: str
    reason: str
    # Where the rows of before are.
    aside: str


def check_not_out(directory: Path) -> None:
    """Raises ``TakenOut`` if the node in a directory took itself out, and has not been rebuilt."""
    mark = read_mark(directory)
    if mark is not None:
        raise TakenOut(f"{directory / _MARK} says why this node does not start: it took itself out of the cluster")


def read_mark(directory: Path) -> Mark | None:
    """Why the node in a directory is out; None if it is not."""
    try:
        said = json.loads((directory / _MARK).read_text(encoding="utf-8"))
        members = {str(node): str(address) for node, address in said.get("members", {}).items()}
        return Mark(str(said["reason"]), bool(said.get("history", True)), members)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        # Whatever it says, it is there; and all that may be wrong is taken to be.
        return Mark("the mark cannot be read", True, {})


def mark_out(directory: Path, mark: Mark) -> None:
    """Says that the node in a directory is out."""
    write_json(directory / _MARK, {**mark._asdict(), "members": dict(mark.members), "at_ms": _now_ms()})


def clear_mark(directory: Path) -> None:
    """It is out no more."""
    (directory / _MARK).unlink(missing_ok=True)
    fsync_directory(directory)


def rebuilds(directory: Path) -> list[Rebuilt]:
    """The latest rebuildings of the node in a directory, oldest first."""
    try:
        said = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
        return [_rebuilt(each) for each in said["rebuilds"]]
    except (FileNotFoundError, ValueError, TypeError, LookupError):
        return []


def _rebuilt(said: Mapping[str, Any]) -> Rebuilt:
    at_ms, index, term = (int(said[name]) for name in ("at_ms", "index", "term"))
    digest, source, reason, aside = (str(said[name]) for name in ("digest", "source", "reason", "aside"))
    return Rebuilt(at_ms, index, term, digest, source, reason, aside)


def note_rebuilt(directory: Path, rebuilt: Rebuilt) -> None:
    """Writes one down."""
    found = [*rebuilds(directory), rebuilt][-_RECORDED_MAX:]
    write_json(directory / _RECORD, {"rebuilds": [each._asdict() for each in found]})


def put_aside(directory: Path, data: Path, reason: str) -> Path:
    """Keeps a file that is about to be replaced, at no cost: under a second name. What was kept long ago goes."""
    kept = directory / _ASIDE
    make_directories(kept)
    place = kept / f"{_now_ms():015}"
    place.mkdir()
    os.link(data, place / data.name)
    write_json(place / "reason.json", {"reason": reason})
    fsync_directory(kept)
    for old in sorted(each for each in kept.iterdir() if each.is_dir())[:-_ASIDE_MAX]:
        remove_tree(old)
    return place


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
