"""What a node's log lacks: found by a look at all names, headers and footers, and into the files under suspicion."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from resourcelease.storage.errors import NewerFormat
from resourcelease.storage.segments import CorruptSegment, Damage, SegmentFile, segment_paths, verify_file

__all__ = ["Stretch", "lacking"]


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


def lacking(directory: Path, retired: int, suspects: Sequence[Path] = ()) -> list[Stretch]:
    """What there should be between what was retired and the end of the log, and is not; in order."""
    files = [_look(first, path, path in suspects) for first, path in segment_paths(directory)]
    return list(_between(files, retired))


def _between(files: Sequence[_File], retired: int) -> Iterator[Stretch]:
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
            reached = max(reached, file.last)


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
