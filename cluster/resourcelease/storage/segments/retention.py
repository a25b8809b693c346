"""How much history is kept."""

import logging
from pathlib import Path
from typing import NamedTuple

from resourcelease.storage.layout import fsync_directory
from resourcelease.storage.points import reach
from resourcelease.storage.segments.directory import Register, segment_paths
from resourcelease.storage.segments.errors import CorruptSegment
from resourcelease.storage.segments.file import SegmentFile

__all__ = ["KEEP_ALL", "Retention", "retire"]

logger = logging.getLogger(__name__)


class Retention(NamedTuple):
    """Bounds on the log; 0 is none. A file goes as soon as one of them says so.

    >>> Retention(max_bytes=10 << 30, max_age_ms=30 * 24 * 3600 * 1000).even_unread
    False
    """

    max_bytes: int = 0
    # Of the newest event in a file, by wall time.
    max_age_ms: int = 0
    # Also what a registered reader has yet to take.
    even_unread: bool = False


KEEP_ALL = Retention()


def retire(directory: Path, register: Register, retention: Retention, now_ms: int) -> list[Path]:
    """Deletes the oldest files that retention lets go; never the last one, nor one that is not sealed.

    Which they are is noted in the register first, so that history that is gone on purpose is told from history lost.
    """
    if not retention.max_bytes and not retention.max_age_ms:
        return []
    paths = segment_paths(directory)
    sizes = [path.stat().st_size for _, path in paths]
    over = sum(sizes) - retention.max_bytes if retention.max_bytes else 0
    unread = min(register.readers.values(), default=None)
    going: list[Path] = []
    through = 0
    for (_, path), (next_first, _), size in zip(paths, paths[1:], sizes, strict=False):
        if over <= 0 and not _is_old(path, retention, now_ms):
            break
        if unread is not None and next_first > unread and not retention.even_unread:
            break
        going.append(path)
        through = next_first - 1
        over -= size
    if going:
        _delete(directory, register, going, through)
    return going


def _delete(directory: Path, register: Register, going: list[Path], through: int) -> None:
    register.retire(through)
    reach("retention.noted")
    for path in going:
        path.unlink()
        reach("retention.deleted")
    fsync_directory(directory)
    logger.info("%s: history up to event %d is retired", directory, through)


def _is_old(path: Path, retention: Retention, now_ms: int) -> bool:
    if not retention.max_age_ms:
        return False
    try:
        with SegmentFile(path) as file:
            return file.footer is not None and now_ms - file.footer.span.most_wall_ms > retention.max_age_ms
    except CorruptSegment as error:
        # Damage is for verify to find and a peer to mend; only the bound on size deletes it.
        logger.warning("%s", error)
        return False
