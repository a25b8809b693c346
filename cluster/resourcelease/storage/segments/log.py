"""The log of events in a directory of segment files, whole or in part, also while it is being written."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from resourcelease.model.events import Event, Record
from resourcelease.storage.segments.directory import Owner, segment_paths
from resourcelease.storage.segments.errors import CorruptSegment, Damage, HistoryGone, HistoryMissing
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.footer import Footer
from resourcelease.storage.segments.format import Header
from resourcelease.storage.segments.frames import Frame
from resourcelease.storage.segments.query import ALL, Query

__all__ = ["Log", "SegmentInfo"]


class SegmentInfo(NamedTuple):
    """One file of the log; ``footer`` is None for the open one."""

    path: Path
    header: Header
    footer: Footer | None
    # The last event in the file; of an open file, as of now, and one less than the first if there is none.
    last: int
    size_bytes: int


class Log:
    """Reads a directory. It keeps nothing open between calls, so it may be used from several threads.

    Iterators end with what is there; ask again with ``query.starting(next)`` for what has been written since.
    """

    def __init__(self, directory: Path, owner: Owner | None = None) -> None:
        self.directory = directory
        # Whose log it is, if the reader knows: files of others are then no part of it.
        self.owner = owner

    def segments(self) -> list[SegmentInfo]:
        """All files, in order. Reads headers and footers, and of an open file the descriptions of its frames."""
        paths = segment_paths(self.directory)
        found = []
        for place, (_, path) in enumerate(paths):
            try:
                with SegmentFile(path) as file:
                    found.append(_info(file))
            except FileNotFoundError:
                continue  # retired meanwhile
            except CorruptSegment as error:
                if error.kind is not Damage.CUT or place + 1 < len(paths):
                    raise
        return found

    @property
    def first_sequence(self) -> int:
        """The first event that is kept; 0 if there is none."""
        paths = segment_paths(self.directory)
        return paths[0][0] if paths else 0

    @property
    def last_sequence(self) -> int:
        """The last event on disk as of now; 0 if there is none."""
        paths = segment_paths(self.directory)
        # The last file may be there and have nothing in it yet.
        for first, path in reversed(paths):
            file = self._opened(path, last=path is paths[-1][1])
            if file is not None:
                with file:
                    last = _info(file).last
                if last >= first:
                    return last
        return 0

    def events(self, query: Query = ALL) -> Iterator[Event]:
        """The selected events, in order."""
        for record in self.records(query):
            for event in record.events():
                if query.covers(event):
                    yield event

    def records(self, query: Query = ALL) -> Iterator[Record]:
        """The records that hold selected events, in order, each whole: an event of it may be out of the range."""
        for frame in self.frames(query):
            for record in frame.records():
                if query.wants(record):
                    yield record

    def frames(self, query: Query = ALL) -> Generator[Frame, None, None]:
        """The frames that may hold selected events, in order.

        Raises ``HistoryGone`` where the beginning is not kept, ``HistoryMissing`` at a gap in what is, and
        ``CorruptSegment`` at damage.
        """
        wanted = query.first
        while True:
            file, is_last = self._file_of(wanted)
            if file is None:
                return
            with file:
                last = yield from self._frames_of(file, query, is_last=is_last)
            if last is None:
                return
            wanted = last + 1
            if query.last and wanted > query.last:
                return

    def holds(self, sequence: int) -> bool:
        """Whether an event that is known to be durable is here; raises as ``frames`` does where it is not."""
        file, _ = self._file_of(sequence)
        if file is None:
            return False
        file.close()
        return True

    def _file_of(self, wanted: int) -> tuple[SegmentFile | None, bool]:
        """The file that holds an event, or will hold it; and whether it is the last."""
        while True:
            paths = segment_paths(self.directory)
            if not paths or wanted < paths[0][0]:
                if wanted:
                    self._refuse(wanted, paths)
                if not paths:
                    return None, True
                wanted = paths[0][0]
            place = max(place for place, (first, _) in enumerate(paths) if first <= wanted)
            is_last = place + 1 == len(paths)
            try:
                file = self._opened(paths[place][1], last=is_last)
            except FileNotFoundError:
                continue  # retired meanwhile
            if file is not None and file.footer is not None and file.footer.span.last < wanted:
                last = file.footer.span.last
                file.close()
                if is_last:
                    return None, True
                raise HistoryMissing(self.directory, max(wanted, last + 1), paths[place + 1][0] - 1)
            return file, is_last

    def _opened(self, path: Path, *, last: bool) -> SegmentFile | None:
        """A file; None if it is the last one and not even its header is written."""
        try:
            file = SegmentFile(path)
        except CorruptSegment as error:
            if last and error.kind is Damage.CUT:
                return None
            raise
        if self.owner is not None and not self.owner.wrote(file.header.cluster_id, file.header.shard):
            file.close()
            reason = f"it is of cluster {file.header.cluster_id}, shard {file.header.shard!r}"
            raise CorruptSegment(path, 0, reason, Damage.STRANGER)
        return file

    def _refuse(self, wanted: int, paths: list[tuple[int, Path]]) -> None:
        if paths or wanted > 1:
            raise HistoryGone(wanted, paths[0][0] if paths else 0)

    def _frames_of(self, file: SegmentFile, query: Query, *, is_last: bool) -> Generator[Frame, None, int | None]:
        """What is wanted of a file; gives the last event in it, or None where the log goes no further by now."""
        if file.footer is not None:
            yield from file.frames(query)
            return file.footer.span.last
        offset, first = file.start, file.header.first
        while True:
            for frame in file.scan(offset, first):
                offset, first = frame.end, frame.meta.span.last + 1
                if query.last and frame.meta.span.first > query.last:
                    return None
                if query.may_want(frame.meta.span):
                    yield frame
            file.refresh()
            if file.footer is None:
                if is_last:
                    return None
                reason = "the file ends here without a footer, and a later file exists"
                raise CorruptSegment(file.path, offset, reason, Damage.CUT)
            if first > file.footer.span.last:
                return first - 1


def _info(file: SegmentFile) -> SegmentInfo:
    last = file.header.first - 1
    if file.footer is not None:
        last = file.footer.span.last
    else:
        for frame in file.scan():
            last = frame.meta.span.last
    return SegmentInfo(file.path, file.header, file.footer, last, file.size)
