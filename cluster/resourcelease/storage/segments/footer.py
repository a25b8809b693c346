"""The footer of a sealed file: what is in it, and where, so that most of it need not be read."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from resourcelease.storage.segments.errors import CorruptSegment
from resourcelease.storage.segments.format import FOOTER, Block, pack_block, unpack_map
from resourcelease.storage.segments.query import Query
from resourcelease.storage.segments.summary import Span, read_span

__all__ = ["Footer", "FramePlace", "pack_footer", "read_footer"]

_NUMBER_MAX = 1 << 62
_CHAIN_BYTES = 32


class FramePlace(NamedTuple):
    """Where a frame is, and what a reader must know to pass over it."""

    offset: int
    first: int
    least_wall_ms: int
    most_wall_ms: int
    # A mask, bit n for type n.
    types: int
    namespaces: tuple[str, ...]

    @classmethod
    def of(cls, offset: int, span: Span) -> "FramePlace":
        """The place of a frame with this span."""
        return cls(offset, span.first, span.least_wall_ms, span.most_wall_ms, span.types, tuple(span.counts))


class Footer(NamedTuple):
    """What a sealed file says of itself."""

    span: Span
    # The bytes of all encoded records, before compression and before bodies were left out.
    frames: Sequence[FramePlace]
    # The chain after the last event; the digest of the segment, unless ``ends_early``.
    digest: bytes
    # The segment goes on behind the last event here: the node missed the rest, and another file may hold it.
    ends_early: bool
    # Whether some frame lacks its bodies.
    bodiless: bool
    # Where the footer stands.
    offset: int

    def wanted(self, query: Query) -> Iterator[tuple[FramePlace, int]]:
        """The frames that may hold something of the query, each with the offset where it ends."""
        ends = [*(place.offset for place in self.frames[1:]), self.offset]
        lasts = [*(place.first - 1 for place in self.frames[1:]), self.span.last]
        for place, end, last in zip(self.frames, ends, lasts, strict=True):
            if query.within(place.first, last) and query.may_want_part(*place[2:]):
                yield place, end


def pack_footer(footer: Footer) -> bytes:
    """The footer's block."""
    names = list(footer.span.counts)
    bits = {name: 1 << place for place, name in enumerate(names)}
    size = (len(names) + 7) // 8
    masks = [sum(bits[name] for name in place.namespaces).to_bytes(size, "little") for place in footer.frames]
    fields = {
        "span": footer.span.packed(),
        "digest": footer.digest,
        "ends_early": footer.ends_early,
        "bodiless": footer.bodiless,
        "namespaces": names,
        "frames": {
            "offset": [place.offset for place in footer.frames],
            "first": [place.first for place in footer.frames],
            "least_wall_ms": [place.least_wall_ms for place in footer.frames],
            "most_wall_ms": [place.most_wall_ms for place in footer.frames],
            "types": [place.types for place in footer.frames],
            "namespaces": masks,
        },
    }
    return pack_block(FOOTER, msgpack.packb(fields))


def read_footer(block: Block, path: Path, start: int) -> Footer:
    """The footer in a block; ``start`` is where the frames of the file begin."""
    fields = unpack_map(block.meta, path, block.offset)
    try:
        span = read_span(fields["span"])
        digest, ends_early, bodiless = fields["digest"], fields["ends_early"], fields["bodiless"]
        frames = _places(fields["frames"], fields["namespaces"])
        if type(digest) is not bytes or len(digest) != _CHAIN_BYTES:
            raise ValueError("the digest is none")
        if type(ends_early) is not bool or type(bodiless) is not bool:
            raise ValueError("a mark is neither true nor false")
        _check_order(frames, span, start, block.offset)
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptSegment(path, block.offset, f"the footer cannot be read: {error}") from error
    return Footer(span, frames, digest, ends_early, bodiless, block.offset)


def _places(columns: Mapping[str, Any], names: Any) -> list[FramePlace]:
    numbers = [columns[name] for name in FramePlace._fields[:-1]]
    masks = columns["namespaces"]
    if not all(type(column) is list for column in (*numbers, masks, names)):
        raise ValueError("the index of frames is no table")
    if not all(type(value) is int and 0 <= value <= _NUMBER_MAX for column in numbers for value in column):
        raise ValueError("a number of the index is none")
    if not all(type(mask) is bytes and len(mask) == (len(names) + 7) // 8 for mask in masks):
        raise ValueError("a mask of the index is none")
    if not all(type(name) is str for name in names):
        raise ValueError("a name of the index is none")
    known: dict[bytes, tuple[str, ...]] = {}
    for mask in masks:
        if mask not in known:
            bits = int.from_bytes(mask, "little")
            known[mask] = tuple(name for place, name in enumerate(names) if bits >> place & 1)
    return [FramePlace._make((*row, known[mask])) for *row, mask in zip(*numbers, masks, strict=True)]


def _check_order(frames: Sequence[FramePlace], span: Span, start: int, end: int) -> None:
    """Frames stand one behind the other, in the file and in the log."""
    if not frames or frames[0].offset != start or frames[0].first != span.first:
        raise ValueError("the index does not begin where the file does")
    for before, after in pairwise(frames):
        if before.offset >= after.offset or before.first >= after.first:
            raise ValueError("the index is not in order")
    if frames[-1].offset >= end or frames[-1].first > span.last:
        raise ValueError("the index does not end where the file does")
