"""Files of the history that a rebuilt state leaves behind, or contradicts; the node then has them from the others."""

from contextlib import suppress
from pathlib import Path

from resourcelease.consensus.members import MEMBERS_ROW
from resourcelease.machine import Machine
from resourcelease.storage import LmdbStore
from resourcelease.storage.layout import fsync_directory
from resourcelease.storage.segments import CorruptSegment, SegmentFile, segment_paths

__all__ = ["put_log_aside"]


def put_log_aside(store: LmdbStore, segments: Path, aside: Path) -> None:
    """Moves the open file away, and sealed ones that end behind the state, or with it and in another way.

    The open one ends before the state, and nothing proves it; once its segment is sealed, repair fetches it whole.
    Of the sealed files before those, repair finds out which ones the majority contradicts.
    """
    machine = Machine.load_rows((key, value) for key, value in store.rows() if key != MEMBERS_ROW)
    last, chain = machine.sequence_number, machine.chain()
    for _, path in reversed(segment_paths(segments)):
        with suppress(FileNotFoundError, CorruptSegment), SegmentFile(path) as file:
            footer = file.footer
            if footer is not None and (footer.span.last < last or (footer.span.last, footer.digest) == (last, chain)):
                break
        path.rename(aside / path.name)
    fsync_directory(segments)
    fsync_directory(aside)
