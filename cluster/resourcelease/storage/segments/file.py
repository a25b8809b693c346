"""One segment file, as its readers see it: sealed, or open and being written."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from resourcelease.model.events import Record
from resourcelease.storage.segments.errors import CorruptSegment, Damage
from resourcelease.storage.segments.footer import Footer, read_footer
from resourcelease.storage.segments.format import FOOTER, FRAME, Block, read_block, read_header, read_trailer
from resourcelease.storage.segments.frames import Frame
from resourcelease.storage.segments.query import ALL, Query

__all__ = ["SegmentFile"]


class SegmentFile:
    """A file that is open for reading; close it, or use it in a ``with``.

    The header and the footer are read at once; frames as they are asked for, one in memory at a time. With ``mend`` a
    file is taken for an open one, whatever its end looks like.
    """

    def __init__(self, path: Path, *, mend: bool = False) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._fd).st_size
            self.header, self.start = read_header(self._fd, path, self.size)
            self.footer = None if mend else self._footer()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Lets go of the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "SegmentFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def sealed(self) -> bool:
        """Whether nothing more will be written to it."""
        return self.footer is not None

    @property
    def whole(self) -> bool:
        """Whether it is sealed and holds its segment from the first event to the last."""
        return self.footer is not None and not self.footer.ends_early and not self.header.partial

    def refresh(self) -> None:
        """Takes in what was written since."""
        if self.footer is None:
            self.size = os.fstat(self._fd).st_size
            self.footer = self._footer()

    def frames(self, query: Query = ALL) -> Iterator[Frame]:
        """The frames that may hold something of the query. Of an open file, those that are there by now."""
        if self.footer is None:
            for frame in self.scan():
                if query.last and frame.meta.span.first > query.last:
                    return
                if query.may_want(frame.meta.span):
                    yield frame
            return
        if not query.may_want(self.footer.span):
            return
        for place, end in self.footer.wanted(query):
            block = self._block(place.offset, end)
            if block is None or block.kind != FRAME or block.end != end:
                raise self._corrupt(place.offset, "the footer knows of a frame here, and there is none that fits")
            yield self._frame(block, place.first)

    def records(self, query: Query = ALL) -> Iterator[Record]:
        """The records that hold something of the query, whole."""
        for frame in self.frames(query):
            for record in frame.records():
                if query.wants(record):
                    yield record

    def scan(self, offset: int = 0, first: int = 0) -> Iterator[Frame]:
        """Every frame from ``offset`` on, whose first event is ``first``, one after the other."""
        offset, first = offset or self.start, first or self.header.first
        end = self.size if self.footer is None else self.footer.offset
        while offset < end:
            block = self._block(offset, end)
            if block is None:
                if self.footer is not None:
                    raise self._corrupt(offset, "the frames end here, and the footer says that they go on")
                return
            if block.kind == FOOTER and self.footer is None:
                self._check_tail(block)
                return
            if block.kind != FRAME:
                raise self._corrupt(offset, "something else stands where a frame belongs")
            frame = self._frame(block, first)
            yield frame
            offset, first = frame.end, frame.meta.span.last + 1

    def _block(self, offset: int, end: int) -> Block | None:
        return read_block(self._fd, self.path, offset, end)

    def _frame(self, block: Block, first: int) -> Frame:
        frame = Frame(self.path, block)
        if frame.meta.span.first != first:
            found = frame.meta.span.first
            raise self._corrupt(block.offset, f"a frame begins with event {found} where {first} is expected")
        return frame

    def _footer(self) -> Footer | None:
        offset = read_trailer(self._fd, self.size)
        if offset is None:
            return None
        block = self._block(offset, self.size) if offset >= self.start else None
        if block is None or block.kind != FOOTER:
            raise self._corrupt(self.size, "the trailer names a footer that is not there")
        footer = read_footer(block, self.path, self.start)
        if footer.span.first != self.header.first:
            raise self._corrupt(offset, "the footer is another file's")
        return footer

    def _check_tail(self, footer: Block) -> None:
        """Behind the footer of a file that has no trailer yet there is nothing, or the beginning of one."""
        self.size = os.fstat(self._fd).st_size
        if read_trailer(self._fd, self.size) is None and self._block(footer.end, self.size) is not None:
            raise self._corrupt(footer.end, "something stands where the trailer belongs")

    def _corrupt(self, offset: int, reason: str, kind: Damage = Damage.DAMAGED) -> CorruptSegment:
        return CorruptSegment(self.path, offset, reason, kind)
