"""Puts a sealed segment, fetched from another node, in the place of one that is damaged, incomplete or missing."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from resourcelease.storage.layout import fsync_directory
from resourcelease.storage.points import reach
from resourcelease.storage.segments.directory import DRAFT_SUFFIX, Owner, segment_paths
from resourcelease.storage.segments.errors import CorruptSegment, SegmentRefused
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.format import Header, segment_name
from resourcelease.storage.segments.resume import check_owner
from resourcelease.storage.segments.verify import Checked, verify_file

__all__ = ["install"]


def install(source: Path, directory: Path, owner: Owner, *, allow_bodiless: bool = False) -> Checked:
    """Installs a copy of ``source``, atomically, after everything in it was verified; the source is left alone.

    It takes the place of whatever this directory has of the segment. Raises ``CorruptSegment`` if it is damaged itself,
    ``WrongIdentity`` if it is another cluster's, ``SegmentRefused`` if it does not fit here.
    """
    draft = directory / (source.name + DRAFT_SUFFIX)
    try:
        _copy(source, draft)
        checked = verify_file(draft)
        check_owner(source, checked.header, owner)
        if not checked.whole:
            raise SegmentRefused(f"{source} does not hold its whole segment; ask another node for it")
        if not checked.recomputed and not allow_bodiless:
            raise SegmentRefused(f"{source} lacks the bodies of its items, so its digest proves nothing about them")
        held = _held(directory)
        stands_for = _covered(held, checked)
        _check_fit(held, checked)
        reach("install.drafted")
        place = directory / segment_name(checked.header.first)
        draft.rename(place)
        fsync_directory(directory)
        reach("install.replaced")
    finally:
        draft.unlink(missing_ok=True)
    for path in stands_for:
        path.unlink(missing_ok=True)
    fsync_directory(directory)
    reach("install.cleared")
    return checked._replace(path=place)


def _copy(source: Path, draft: Path) -> None:
    with source.open("rb") as given, draft.open("wb") as copy:
        shutil.copyfileobj(given, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


class _Held(NamedTuple):
    """A file that is here, as far as it can be read; ``last`` is 0 where it cannot, or is not sealed."""

    path: Path
    first: int
    header: Header | None
    last: int
    digest: bytes
    # Whether it is the last file and not sealed.
    being_written: bool


def _held(directory: Path) -> list[_Held]:
    paths = segment_paths(directory)
    found = []
    for first, path in paths:
        try:
            with SegmentFile(path) as file:
                last, digest = (file.footer.span.last, file.footer.digest) if file.footer else (0, b"")
                is_open = not last and path == paths[-1][1]
                found.append(_Held(path, first, file.header, last, digest, is_open))
        except CorruptSegment:
            found.append(_Held(path, first, None, 0, b"", being_written=False))
    return found


def _covered(held: list[_Held], new: Checked) -> list[Path]:
    """Files that the new one makes superfluous; ``SegmentRefused`` if one holds more than it does, or otherwise."""
    covered = []
    for file in held:
        begins_within = new.header.first <= file.first <= new.last
        if file.being_written and file.first <= new.last:
            raise SegmentRefused(
                f"{file.path} is being written and holds events of this segment; wait until it is sealed"
            )
        if not begins_within and not file.first < new.header.first <= file.last:
            continue
        if not begins_within or file.last > new.last:
            raise SegmentRefused(
                f"{file.path} holds events {file.first} to {file.last}, the new segment {new.header.first} to "
                f"{new.last}: they are not cut at the same events, so one of them is another history's"
            )
        if file.header is not None and file.header.segment_first != new.header.first:
            raise SegmentRefused(f"{file.path} is of another segment, and begins within the new one: verify the log")
        if file.last == new.last and file.digest != new.digest:
            raise SegmentRefused(
                f"{file.path} has another digest than the new segment: one of them is another history's"
            )
        if file.first != new.header.first:
            covered.append(file.path)
    return covered


def _check_fit(held: list[_Held], new: Checked) -> None:
    """The new segment chains up with the files before and behind it, where they can be read."""
    for file in held:
        follows = file.last == new.header.first - 1 and file.last
        if follows and file.digest != new.header.chain:
            raise SegmentRefused(f"the new segment does not follow {file.path}: one of them is another history's")
        if file.first == new.last + 1 and file.header is not None and file.header.chain != new.digest:
            raise SegmentRefused(f"{file.path} does not follow the new segment: one of them is another history's")
