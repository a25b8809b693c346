"""What nodes tell each other of their files: which segments they have, whether these are sound, and pieces of them."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from resourcelease.events.archive import Archive
from resourcelease.storage.segments import (
    CorruptSegment,
    Log,
    SegmentFile,
    segment_name,
    segment_paths,
    verify,
)

__all__ = ["Exchange", "Findings", "Holding", "holdings"]

PIECE_BYTES = 256 * 1024
_LISTED_MAX = 10_000
# Entries of a segment, told in one answer.
_ENTRIES_MAX = 50_000
# A check shares the processor with the node: it works no longer than this at a stretch, and then pauses as long.
_STRETCH_S = 0.02
_PROBLEMS_MAX = 100


class Holding(NamedTuple):
    """A whole, sealed segment that a node has, by what its footer says."""

    first: int
    last: int
    digest: bytes
    size_bytes: int
    most_wall_ms: int
    bodiless: bool


class Findings(NamedTuple):
    """What a check of a node's files came to."""

    # The first and the last event that was checked; 0 for none.
    first: int
    last: int
    problems: list[str]
    # First and last event of each whole segment, and its digest in hex.
    segments: list[tuple[int, int, str]]

    @property
    def digest(self) -> str:
        """Over all that was checked; equal on nodes that hold the same."""
        whole = sha256()
        for segment in self.segments:
            whole.update(repr(tuple(segment)).encode())
        return whole.hexdigest()

    @staticmethod
    def read(said: Mapping[str, Any]) -> "Findings":
        """From an answer; ValueError, TypeError or LookupError if it is none."""
        segments = [(int(first), int(last), str(digest)) for first, last, digest in said["segments"]]
        return Findings(int(said["first"]), int(said["last"]), [str(each) for each in said["problems"]], segments)


class Exchange:
    """Answers the questions of other nodes, and of this one, about the files here."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        # Digests of the whole state of nodes, at one index that the answer names; "" for those that told none in time.
        self.states: Callable[[Sequence[str], float], Awaitable[tuple[int, dict[str, str]]]] = _no_states
        # Files that a check found damaged.
        self.on_damage: Callable[[list[Path]], None] = lambda paths: None

    async def holdings(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Whole segments from an event on."""
        first = int(question["first"])
        found = await self._archive.run(lambda: list(holdings(self._archive.log, first)))
        return {"holdings": [list(each) for each in found[:_LISTED_MAX]]}

    async def piece(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Some bytes of a segment's file; none at its end, and none of a file that is not there."""
        path = self._archive.log.directory / segment_name(int(question["first"]))
        return {"bytes": await self._archive.run(lambda: _piece(path, int(question["offset"])))}

    async def entries(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The last event of each entry of a segment with the chain after it, from an event on."""
        path = self._archive.log.directory / segment_name(int(question["first"]))
        after = int(question["after"])
        return {"entries": await self._archive.run(lambda: _entries(path, after))}

    async def check(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the files again, all or those of a range, and says what is wrong."""
        found = await self.checked(int(question["first"]), int(question["last"]))
        return found._asdict()

    async def checked(self, first: int, last: int) -> Findings:
        """The same for this node itself."""
        await self._archive.settle()
        found, damaged = await self._archive.run(lambda: _check(self._archive.log, first, last))
        if damaged:
            self.on_damage(damaged)
        return found


async def _no_states(nodes: Sequence[str], seconds: float) -> tuple[int, dict[str, str]]:
    return 0, {}


def holdings(log: Log, first: int = 0) -> Iterator[Holding]:
    """The whole segments of a log that reach to an event or beyond; what cannot be read is left out."""
    paths = segment_paths(log.directory)
    for place, (_, path) in enumerate(paths):
        if place + 1 < len(paths) and paths[place + 1][0] <= first:
            continue
        try:
            with SegmentFile(path) as file:
                if file.whole and file.footer is not None:
                    footer = file.footer
                    span = footer.span
                    yield Holding(span.first, span.last, footer.digest, file.size, span.most_wall_ms, footer.bodiless)
        except (FileNotFoundError, CorruptSegment):
            continue


def _piece(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset))
            return file.read(PIECE_BYTES)
    except FileNotFoundError:
        return b""


def _entries(path: Path, after: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    try:
        with SegmentFile(path) as file:
            chain = file.header.chain
            for frame in file.scan():
                if frame.meta.span.last <= after:
                    chain = frame.meta.chain
                    continue
                for entry in frame.entries():
                    records = [frame.decode(encoded) for encoded in entry]
                    chain = sha256(chain + b"".join(entry)).digest()
                    last = records[-1].sequence + records[-1].count - 1
                    if last > after:
                        found.append((last, chain))
                if len(found) >= _ENTRIES_MAX:
                    break
    except (FileNotFoundError, CorruptSegment):
        pass
    return found


def _check(log: Log, first: int, last: int) -> tuple[Findings, list[Path]]:
    began = time.monotonic()

    def pause(done: int, total: int) -> None:
        nonlocal began
        if time.monotonic() - began > _STRETCH_S:
            time.sleep(_STRETCH_S)
            began = time.monotonic()

    report = verify(log.directory, first=first, last=last, progress=pause)
    files = [file for file in report.files if file.last >= file.header.first]
    segments = [(file.header.first, file.last, file.digest.hex()) for file in files if file.whole]
    problems = [str(problem) for problem in report.problems[:_PROBLEMS_MAX]]
    damaged = [problem.path for problem in report.problems]
    ends = (files[0].header.first, files[-1].last) if files else (0, 0)
    return Findings(*ends, problems, segments), damaged
