"""The end of the log, where it is written: one file at a time, frames behind frames, and a footer at last."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from resourcelease.storage.layout import fsync_directory
from resourcelease.storage.points import reach
from resourcelease.storage.segments.directory import put_aside
from resourcelease.storage.segments.errors import CorruptSegment, SegmentsStopped
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.footer import Footer, FramePlace, pack_footer
from resourcelease.storage.segments.format import Header, pack_header, pack_trailer, segment_name
from resourcelease.storage.segments.frames import NewFrame
from resourcelease.storage.segments.summary import Span, Tally

__all__ = ["Tail"]

logger = logging.getLogger(__name__)


class Tail:
    """A file that is being written. Each step may be tried again after an error that left the disk as it was.

    Bytes are written at places that are known beforehand, so a write that was cut short is simply written again.
    """

    def __init__(self, path: Path, header: Header, fd: int, offset: int) -> None:
        self.path = path
        self.header = header
        self._fd = fd
        self._offset = offset
        self._tally = Tally()
        self._places: list[FramePlace] = []
        self._bodiless = False
        # Whether the file's name is durable.
        self._named = False
        self.last = header.first - 1
        self.chain = header.chain

    @classmethod
    def create(cls, directory: Path, header: Header) -> "Tail":
        """A new file with nothing but its header."""
        path = directory / segment_name(header.first)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            reach("segment.created")
            block = pack_header(header)
            _write_at(fd, [block], 0)
            reach("segment.headed")
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return cls(path, header, fd, len(block))

    @classmethod
    def reopen(cls, path: Path) -> "Tail | None":
        """Goes on with a file that was not sealed, behind its last frame that is in order; what follows is cut.

        None, and the file put aside, if not even its header is in order.
        """
        try:
            file = SegmentFile(path, mend=True)
        except CorruptSegment as error:
            _put_aside(path, error)
            return None
        with file:
            found = list(_sound_frames(file))
            end = found[-1].end if found else file.start
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            tail = cls(path, file.header, fd, end)
            for frame in found:
                tail._note(frame.span, frame.offset, frame.chain, bodiless=frame.bodiless)
            if end < file.size:
                logger.warning("%s: %d bytes behind event %d are cut", path, file.size - end, tail.last)
                os.ftruncate(fd, end)
                reach("resume.cut")
        os.fsync(fd)
        return tail

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return self._offset

    @property
    def empty(self) -> bool:
        """Whether there is no frame in it."""
        return not self._places

    def write(self, frame: NewFrame) -> None:
        """Appends a frame; ``sync`` makes it durable."""
        _write_at(self._fd, frame.parts, self._offset)
        self._note(frame.meta.span, self._offset, frame.meta.chain, bodiless=frame.bodiless)
        self._offset += sum(map(len, frame.parts))
        reach("segment.written")

    def sync(self) -> None:
        """Makes everything that was appended durable, the file's name included."""
        self._make_durable()
        reach("segment.durable")

    def seal(self, *, ends_early: bool = False) -> Footer:
        """Ends the file: footer and trailer, durable."""
        footer = Footer(
            span=self._tally.span(),
            frames=self._places,
            digest=self.chain,
            ends_early=ends_early,
            bodiless=self._bodiless,
            offset=self._offset,
        )
        block = pack_footer(footer)
        _write_at(self._fd, [block], self._offset)
        reach("segment.footed")
        _write_at(self._fd, [pack_trailer(self._offset, len(block))], self._offset + len(block))
        reach("segment.ended")
        self._make_durable()
        reach("segment.sealed")
        return footer

    def close(self) -> None:
        """Lets go of the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        """Deletes the file, which has nothing in it."""
        self.close()
        self.path.unlink(missing_ok=True)
        fsync_directory(self.path.parent)

    def _make_durable(self) -> None:
        try:
            os.fdatasync(self._fd)
            reach("segment.synced")
            if not self._named:
                fsync_directory(self.path.parent)
                self._named = True
        except OSError as error:
            # What the system could not write it may have let go of: to try again would prove nothing.
            raise SegmentsStopped(f"{self.path} cannot be made durable: {error}") from error

    def _note(self, span: Span, offset: int, chain: bytes, *, bodiless: bool) -> None:
        self._tally.merge(span)
        self._places.append(FramePlace.of(offset, span))
        self._bodiless |= bodiless
        self.last = span.last
        self.chain = chain


class _Found:
    """What has to be remembered of a frame that was there already; its content has not."""

    __slots__ = ("bodiless", "chain", "end", "offset", "span")

    def __init__(self, span: Span, offset: int, end: int, chain: bytes, *, bodiless: bool) -> None:
        self.span = span
        self.offset = offset
        self.end = end
        self.chain = chain
        self.bodiless = bodiless


def _sound_frames(file: SegmentFile) -> Iterable[_Found]:
    """The frames up to the first that is not in order."""
    try:
        for frame in file.scan():
            yield _Found(frame.meta.span, frame.offset, frame.end, frame.meta.chain, bodiless=not frame.bodies)
    except CorruptSegment as error:
        logger.warning("%s", error)


def _put_aside(path: Path, error: CorruptSegment) -> None:
    """A file that was only begun is deleted; one with more in it is kept for people under another name."""
    logger.warning("%s", error)
    if error.kind == "cut":
        path.unlink()
    else:
        put_aside(path)
    fsync_directory(path.parent)


def _write_at(fd: int, parts: Sequence[bytes], offset: int) -> None:
    """Writes all of it; a disk that takes only a part says why at the next attempt."""
    written = os.pwritev(fd, parts, offset)
    rest = memoryview(b"".join(parts))[written:] if written < sum(map(len, parts)) else memoryview(b"")
    while rest:
        offset += written
        written = os.pwritev(fd, [rest], offset)
        rest = rest[written:]
