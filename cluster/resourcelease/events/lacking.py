"""What a node's log lacks: found by a look at all names, headers and footers, and into the files under suspicion."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from resourcelease.events.exchange import Holding
from resourcelease.storage.errors import NewerFormat
from resourcelease.storage.segments import CorruptSegment, Damage, Owner, SegmentFile, segment_paths, verify_file

__all__ = ["Stretch", "lacking", "outvoted", "strangers"]


class Stretch(NamedTuple):
    """Events that are not here, or not sound; both ends included."""

    first: int
    last: int
    # The file that is damaged, if that is why.
    damaged: Path | None = None


class _File(NamedTuple):
    first: int
    # 0 while the file is open.
    last: int
    sound: bool
    path: Path


def lacking(directory: Path, retired: int, suspects: Sequence[Path] = (), through: int = 0) -> list[Stretch]:
    """What there should be between what was retired and event ``through``, and is not; in order.

    Without the latter the log ends where its files do, which a snapshot may have left behind.
    """
    files = [_look(first, path, path in suspects) for first, path in segment_paths(directory)]
    return list(_between(files, retired, through))


def strangers(directory: Path, owner: Owner) -> list[Path]:
    """Files of another cluster or shard."""
    found = []
    for _, path in segment_paths(directory):
        with suppress(FileNotFoundError, CorruptSegment, NewerFormat), SegmentFile(path) as file:
            if not owner.wrote(file.header.cluster_id, file.header.shard):
                found.append(path)
    return found


def outvoted(own: Iterable[Holding], told: Sequence[Iterable[Holding]], members: int) -> list[int]:
    """The segments here, by their first event, of which a majority of all members holds another content.

    Their content is proven by the digest; the one here may be sound by itself, and still be no part of this history.
    """
    votes: dict[int, Counter[tuple[int, bytes]]] = {}
    for holdings in told:
        for each in holdings:
            votes.setdefault(each.first, Counter())[each.last, each.digest] += 1
    found = []
    for mine in own:
        for (last, digest), count in votes.get(mine.first, Counter()).items():
            if count * 2 > members and (last, digest) != (mine.last, mine.digest):
                found.append(mine.first)
    return found


def _between(files: Sequence[_File], retired: int, through: int) -> Iterator[Stretch]:
    reached = retired
    for place, file in enumerate(files):
        if file.first > reached + 1:
            yield Stretch(reached + 1, file.first - 1)
        is_last = place + 1 == len(files)
        if not is_last and not (file.sound and file.last):
            # Damaged, or without its end.
            yield Stretch(file.first, files[place + 1].first - 1, file.path)
            reached = files[place + 1].first - 1
        elif not file.sound:
            yield Stretch(file.first, file.first, file.path)
        else:
            # The open file is written to the end.
            reached = max(reached, file.last or through)
    if through > reached and not (files and not files[-1].sound):
        yield Stretch(reached + 1, through)


def _look(first: int, path: Path, suspected: bool) -> _File:
    try:
        with SegmentFile(path) as file:
            footer = file.footer
            if suspected and footer is not None:
                verify_file(path)
        return _File(first, footer.span.last if footer is not None else 0, True, path)
    except FileNotFoundError:
        return _File(first, 0, True, path)
    except CorruptSegment as error:
        # An open file that has only been begun is no damage.
        return _File(first, 0, error.kind is Damage.CUT and error.offset == 0, path)
    except NewerFormat:
        return _File(first, 0, False, path)
