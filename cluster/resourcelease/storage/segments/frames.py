"""Frames: some entries' records together, as they are written and as they are read again."""

import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from struct import pack, unpack_from
from typing import NamedTuple

from resourcelease.model.errors import CorruptLog
from resourcelease.model.events import Record
from resourcelease.storage.segments.bodies import without_bodies
from resourcelease.storage.segments.errors import CorruptSegment
from resourcelease.storage.segments.format import BODILESS, FRAME, STORED_BYTES_MAX, Block, block_parts
from resourcelease.storage.segments.summary import FrameMeta, Tally, read_frame_meta

__all__ = ["CODECS", "Frame", "FrameBuilder", "NewFrame"]

# How the content may be stored. The digest is over the content, so nodes may differ in it.
CODECS = {"none": 0, "zlib": 1}
_PLAIN, _ZLIB = 0, 1
_ZLIB_LEVEL = 1
# What deflate can make of a byte at the very most, and room for an empty one.
_ZLIB_RATIO_MAX = 1040
# In the table of lengths: this record is the first of its entry.
_FIRST = 1 << 31
_LENGTH = _FIRST - 1


class NewFrame(NamedTuple):
    """A frame to be written, as the two pieces of its block: what is stored is not copied for it."""

    meta: FrameMeta
    parts: Sequence[bytes]
    bodiless: bool


class FrameBuilder:
    """Gathers the records of whole entries until they are made a frame."""

    def __init__(self, *, bodies: bool = True, codec: int = _PLAIN) -> None:
        self._bodies = bodies
        self._codec = codec
        self._reset()

    def _reset(self) -> None:
        self._tally = Tally()
        self._table: list[int] = []
        self._pieces: list[bytes] = []
        self._chain = b""
        self.size_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to make a frame of."""
        return not self._table

    def add(self, records: Sequence[Record], chain: bytes) -> None:
        """The records of one entry, and the chain after it."""
        self._tally.add(records)
        self._chain = chain
        pieces = [record.encoded for record in records] if self._bodies else list(map(without_bodies, records))
        lengths = list(map(len, pieces))
        self.size_bytes += sum(lengths)
        lengths[0] |= _FIRST
        self._table += lengths
        self._pieces += pieces

    def take(self) -> NewFrame:
        """The frame of what was gathered; the builder is empty again."""
        table = pack(f">{len(self._table)}I", *self._table)
        raw_length = len(table) + self.size_bytes
        if raw_length > STORED_BYTES_MAX:
            raise ValueError(f"{raw_length} bytes of events in one entry; a frame takes {STORED_BYTES_MAX}")
        meta = FrameMeta(self._tally.span(), raw_length, self._chain)
        stored = b"".join((table, *self._pieces))
        if self._codec == _ZLIB:
            stored = zlib.compress(stored, _ZLIB_LEVEL)
        flags = 0 if self._bodies else BODILESS
        parts = block_parts(FRAME, meta.packed(), stored, codec=self._codec, flags=flags)
        self._reset()
        return NewFrame(meta, parts, not self._bodies)


class Frame:
    """A frame as it was read. Its block's checksums are right; everything else is checked when it is looked at."""

    __slots__ = ("_block", "meta", "path")

    def __init__(self, path: Path, block: Block) -> None:
        self.path = path
        self._block = block
        self.meta: FrameMeta = read_frame_meta(block.meta, path, block.offset)

    @property
    def offset(self) -> int:
        """Where it begins in its file."""
        return self._block.offset

    @property
    def end(self) -> int:
        """Where it ends."""
        return self._block.end

    @property
    def bodies(self) -> bool:
        """Whether it has the bodies of items; without them its digest cannot be recomputed."""
        return not self._block.flags & BODILESS

    def joined(self) -> memoryview:
        """The encoded records, one behind the other."""
        raw, _ = self._content_and_table()
        return memoryview(raw)[4 * self.meta.span.records :]

    def entries(self) -> Iterator[list[bytes]]:
        """The encoded records, entry by entry."""
        raw, table = self._content_and_table()
        at = 4 * len(table)
        entry: list[bytes] = []
        for length in table:
            if length & _FIRST and entry:
                yield entry
                entry = []
            end = at + (length & _LENGTH)
            entry.append(raw[at:end])
            at = end
        yield entry

    def records(self) -> Iterator[Record]:
        """The records, in order and without a gap."""
        expected = self.meta.span.first
        for entry in self.entries():
            for encoded in entry:
                record = self.decode(encoded)
                if record.sequence != expected:
                    raise self._corrupt(f"event {record.sequence} stands where {expected} belongs")
                expected += record.count
                yield record
        if expected != self.meta.span.last + 1:
            raise self._corrupt(f"it ends before event {expected}, and says that it ends with {self.meta.span.last}")

    def decode(self, encoded: bytes) -> Record:
        """One of its records."""
        try:
            return Record.decode(encoded)
        except CorruptLog as error:
            raise self._corrupt(str(error)) from error

    def chained(self, chain: bytes) -> bytes:
        """The chain after this frame, recomputed from what it was before; the stored one if bodies were left out."""
        if not self.bodies:
            return self.meta.chain
        for entry in self.entries():
            digest = sha256(chain)
            for encoded in entry:
                digest.update(encoded)
            chain = digest.digest()
        return chain

    def _content_and_table(self) -> tuple[bytes, Sequence[int]]:
        raw = self._content()
        size = self.meta.span.records
        if 4 * size > len(raw):
            raise self._corrupt("the table of lengths is longer than the frame")
        table = unpack_from(f">{size}I", raw)
        if not table[0] & _FIRST or 4 * size + sum([length & _LENGTH for length in table]) != len(raw):
            raise self._corrupt("the table of lengths does not fit the frame")
        return raw, table

    def _content(self) -> bytes:
        raw_length = self.meta.raw_length
        stored = self._block.stored
        if self._block.codec == _PLAIN:
            raw = stored
        elif self._block.codec != _ZLIB:
            raise self._corrupt(f"stored in a way ({self._block.codec}) that this release does not know")
        elif raw_length > min(STORED_BYTES_MAX, len(stored) * _ZLIB_RATIO_MAX):
            raise self._corrupt("says that it holds more than it can")
        else:
            raw = self._inflated(stored, raw_length)
        if len(raw) != raw_length:
            raise self._corrupt(f"holds {len(raw)} bytes and says {raw_length}")
        return raw

    def _inflated(self, stored: bytes, raw_length: int) -> bytes:
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(stored, raw_length + 1)
        except zlib.error as error:
            raise self._corrupt(f"cannot be decompressed: {error}") from error
        if not inflate.eof or inflate.unused_data:
            raise self._corrupt("does not end where its content ends")
        return raw

    def _corrupt(self, reason: str) -> CorruptSegment:
        return CorruptSegment(self.path, self.offset, f"the frame of event {self.meta.span.first}: {reason}")
