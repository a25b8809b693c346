"""Turns applied entries into frames and files. Runs on the writer's thread; knows nothing of queues and time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from resourcelease.model.events import Record
from resourcelease.storage.segments.directory import Owner
from resourcelease.storage.segments.errors import SegmentsDiverged
from resourcelease.storage.segments.format import Header
from resourcelease.storage.segments.frames import CODECS, FrameBuilder
from resourcelease.storage.segments.options import LogOptions
from resourcelease.storage.segments.resume import Ending, Position, join
from resourcelease.storage.segments.tail import Tail

__all__ = ["Pen"]


class Pen:
    """Writes behind an ending. ``patiently`` does a step on the disk, and does it again while there is no space."""

    def __init__(self, directory: Path, owner: Owner, ending: Ending, options: LogOptions) -> None:
        self.directory = directory
        self._owner = owner
        self._frame_bytes = options.frame_bytes
        self._builder = FrameBuilder(bodies=options.bodies, codec=CODECS[options.compression])
        self._unsynced = False
        self._events = self._written_frames = self._sealed = self._written_bytes = 0
        # Whether a file was ended since somebody last looked, or nobody has looked yet.
        self.ended_one = True
        self.patiently: Callable[[Callable[[], object]], object] = lambda step: step()
        self._go_on(ending)

    def _go_on(self, ending: Ending) -> None:
        # The last event taken, which need not be written yet, and the chain after it.
        self.last = ending.last
        self._chain = ending.chain
        self._tail = ending.tail
        self._next = self._header(ending.segment_first)

    def _header(self, segment_first: int) -> Header:
        """That of a file which begins behind the last event."""
        return Header(self._owner.cluster_id, self._owner.shard, self.last + 1, segment_first, self._chain)

    def add(self, records: Sequence[Record], chain: bytes, *, sealed: bool) -> None:
        """The records of one entry; nothing of them is durable before ``sync``, unless they end a segment."""
        last = records[-1].sequence + records[-1].count - 1
        if last <= self.last:
            self._again(last, chain, sealed=sealed)
            return
        if records[0].sequence != self.last + 1:
            raise SegmentsDiverged(
                f"events {records[0].sequence} to {last} were applied, and the log ends with event {self.last}: "
                "restart the writer when a snapshot replaces the machine"
            )
        self._builder.add(records, chain)
        self._events += last - self.last
        self.last, self._chain = last, chain
        if sealed or self._builder.size_bytes >= self._frame_bytes:
            self._write()
        if sealed:
            self._seal()

    def _again(self, last: int, chain: bytes, *, sealed: bool) -> None:
        """An entry that is held already: applied again after a restart."""
        if last < self.last:
            return
        if chain != self._chain:
            raise SegmentsDiverged(
                f"event {last} was applied again and is not the same: the log on disk and the state of this node "
                "tell different histories; take the node out, empty its directory and let it join again"
            )
        if sealed and self._tail is not None:
            self._seal()

    def sync(self) -> None:
        """Makes everything that was added durable."""
        if not self._builder.empty:
            self._write()
        if self._unsynced:
            self._the_tail().sync()
            self._unsynced = False

    def rejoin(self, position: Position) -> None:
        """Goes on from where a machine stands that took the place of the one before."""
        self.sync()
        self._go_on(join(Ending(self.last, self._chain, self._tail, self._next.segment_first), position))

    def totals(self) -> tuple[int, int, int, int]:
        """Events, frames, files sealed and bytes written since the start."""
        return self._events, self._written_frames, self._sealed, self._written_bytes

    def close(self) -> None:
        """Lets go of the file."""
        if self._tail is not None:
            self._tail.close()

    def _write(self) -> None:
        frame = self._builder.take()
        if self._tail is None:
            self.patiently(self._begin)
        tail = self._the_tail()
        self.patiently(lambda: tail.write(frame))
        self._written_frames += 1
        self._written_bytes += sum(map(len, frame.parts))
        self._unsynced = True

    def _begin(self) -> None:
        self._tail = Tail.create(self.directory, self._next)

    def _seal(self) -> None:
        tail = self._the_tail()
        self.patiently(tail.seal)
        tail.close()
        self._tail, self._unsynced = None, False
        self._next = self._header(self.last + 1)
        self._sealed += 1
        self.ended_one = True

    def _the_tail(self) -> Tail:
        assert self._tail is not None
        return self._tail
