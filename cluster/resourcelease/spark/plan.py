"""Which files of which directories make one log, each event from one of them."""

import glob
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from resourcelease.storage.segments import (
    CorruptSegment,
    Damage,
    Footer,
    Header,
    HistoryGone,
    HistoryMissing,
    Query,
    SegmentFile,
    log_directory,
    segment_paths,
)

__all__ = ["Catalog", "Holding", "Piece", "log_directories", "pieces"]


class Holding(NamedTuple):
    """What one file holds."""

    path: Path
    header: Header
    # None for the file that is being written.
    footer: Footer | None
    # The last event in it by now.
    last: int
    # Of an open file: where to go on reading, and the first event and the place of each frame before that.
    offset: int = 0
    frames: tuple[tuple[int, int], ...] = ()

    @property
    def first(self) -> int:
        """The first event in it."""
        return self.header.first

    @property
    def whole(self) -> bool:
        """Whether it holds its segment from the first event to the last."""
        return self.footer is not None and not self.footer.ends_early and not self.header.partial

    @property
    def bodies(self) -> bool:
        """Whether no bodies are known to have been left out."""
        return self.footer is None or not self.footer.bodiless


class Piece(NamedTuple):
    """A part of the log that one task reads: some of one file."""

    path: str
    first: int
    last: int
    # Where in the file to begin if it is not sealed, and the event that stands there; 0: at the beginning.
    offset: int = 0
    at: int = 0


def log_directories(paths: Iterable[str]) -> list[Path]:
    """The directories with segments that paths name: nodes' directories, their ``segments``, or patterns of either.

    Raises FileNotFoundError where there is none.
    """
    found: dict[Path, None] = {}
    for name in paths:
        name = name.removeprefix("file://") if name.startswith("file:///") else name.removeprefix("file:")
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
        logs = [log for match in matches if (log := log_directory(Path(match))) is not None]
        if not logs:
            raise FileNotFoundError(
                f"{name}: there is no log here; name the directory of a node, or the one with its *.rlseg files"
            )
        found |= dict.fromkeys(log.resolve() for log in logs)
    return list(found)


class Catalog:
    """Looks into directories, again and again; what is sealed is looked at once."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = directories
        self._known: dict[Path, Holding] = {}

    def holdings(self) -> list[Holding]:
        """What all files hold by now. Raises ``CorruptSegment`` where they cannot be of one log."""
        found = [holding for directory in self.directories for holding in self._look(directory)]
        self._known = {holding.path: holding for holding in found}
        _check_one_history(found)
        return found

    def _look(self, directory: Path) -> Iterator[Holding]:
        paths = [path for _, path in segment_paths(directory)]
        for path in paths:
            known = self._known.get(path)
            if known is not None and known.footer is not None:
                yield known
                continue
            try:
                with SegmentFile(path) as file:
                    holding = _held(file, known)
            except FileNotFoundError:
                continue  # retired meanwhile
            except CorruptSegment as error:
                if error.kind is Damage.CUT and path == paths[-1]:
                    continue  # begun, and nothing is in it yet
                raise
            if holding.footer is None and path != paths[-1]:
                reason = "the file ends here without a footer, and a later file exists"
                raise CorruptSegment(path, holding.offset, reason, Damage.CUT)
            yield holding


def _held(file: SegmentFile, known: Holding | None) -> Holding:
    if file.footer is not None:
        return Holding(file.path, file.header, file.footer, file.footer.span.last)
    known = known or Holding(file.path, file.header, None, file.header.first - 1, file.start)
    offset, last, frames = known.offset, known.last, list(known.frames)
    for frame in file.scan(offset, last + 1):
        frames.append((frame.meta.span.first, frame.offset))
        offset, last = frame.end, frame.meta.span.last
    return Holding(file.path, file.header, None, last, offset, tuple(frames))


def _check_one_history(holdings: Sequence[Holding]) -> None:
    """Files of one cluster and shard; of segments that several hold whole, all hold the same."""
    digests: dict[int, Holding] = {}
    for holding in holdings:
        head, header = holdings[0], holding.header
        if (header.cluster_id, header.shard) != (head.header.cluster_id, head.header.shard):
            reason = (
                f"this is the log of cluster {header.cluster_id}, shard {header.shard!r}, and {head.path} that of "
                f"cluster {head.header.cluster_id}, shard {head.header.shard!r}: load them apart"
            )
            raise CorruptSegment(holding.path, 0, reason, Damage.STRANGER)
        if holding.whole and holding.footer is not None:
            other = digests.setdefault(holding.first, holding)
            if other.footer is not None and other.footer.digest != holding.footer.digest:
                reason = f"its digest is not that of {other.path}, which holds the same segment: one of them diverged"
                raise CorruptSegment(holding.path, holding.footer.offset, reason, Damage.UNCHAINED)


def pieces(holdings: Sequence[Holding], first: int, last: int, query: Query) -> list[Piece]:
    """The log from ``first`` to ``last`` (0: from what is kept, to what is there), each event once, in order.

    What the query surely does not want is left out. Raises ``HistoryGone`` and ``HistoryMissing`` where events are
    not there, and ``CorruptSegment`` where files do not follow each other.
    """
    chosen = list(_cover(sorted(holdings, key=lambda one: one.first), first, last))
    for (before, _), (after, begins) in pairwise(chosen):
        digest = before.footer.digest if before.footer is not None else None
        follows = begins == after.first == before.last + 1
        if follows and digest is not None and after.header.chain != digest:
            reason = f"it does not follow {before.path}: the digest that it begins with is another"
            raise CorruptSegment(after.path, 0, reason, Damage.UNCHAINED)
    found = []
    for place, (holding, begins) in enumerate(chosen):
        ends = chosen[place + 1][1] - 1 if place + 1 < len(chosen) else holding.last
        ends = min(ends, last or ends)
        if query.within(begins, ends) and _may_hold(holding, query):
            found.append(_piece(holding, begins, ends))
    return found


def _piece(holding: Holding, begins: int, ends: int) -> Piece:
    place = bisect_right(holding.frames, begins, key=itemgetter(0)) - 1
    at, offset = holding.frames[place] if place >= 0 else (0, 0)
    return Piece(str(holding.path), begins, ends, offset, at)


def _cover(holdings: Sequence[Holding], first: int, last: int) -> Iterator[tuple[Holding, int]]:
    """Files that hold the log from ``first`` on, each with the first event that is to be read from it."""
    holdings = [holding for holding in holdings if holding.last >= holding.first]
    if not holdings:
        if first > 1:
            raise HistoryGone(first, 0)
        return
    wanted = first or holdings[0].first
    if wanted < holdings[0].first:
        raise HistoryGone(wanted, holdings[0].first)
    end = max(holding.last for holding in holdings)
    end = min(end, last) if last else end
    place, best = 0, holdings[0]
    while wanted <= end:
        while place < len(holdings) and holdings[place].first <= wanted:
            best = max(best, holdings[place], key=lambda one: (one.last, one.whole, one.bodies))
            place += 1
        if best.last < wanted:
            raise HistoryMissing(best.path.parent, wanted, holdings[place].first - 1)
        yield best, wanted
        wanted = best.last + 1


def _may_hold(holding: Holding, query: Query) -> bool:
    if holding.footer is None:
        return True
    return query.may_want(holding.footer.span) and next(iter(holding.footer.wanted(query)), None) is not None
