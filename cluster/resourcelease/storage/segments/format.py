"""Blocks: what a segment file is made of, byte by byte. ``docs/segment-format.md`` is the specification.

Every byte of a file belongs to a block, and every block says how long it is and has two checksums: one over its head
and one over the rest. So a length is believed only once the head that it stands in is known to be sound.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from resourcelease.storage.errors import NewerFormat
from resourcelease.storage.segments.errors import CorruptSegment, Damage

__all__ = [
    "BODILESS",
    "FOOTER",
    "FRAME",
    "HEADER",
    "HEAD_BYTES",
    "SEGMENT_VERSION",
    "STORED_BYTES_MAX",
    "SUFFIX",
    "TRAILER_BYTES",
    "Block",
    "Header",
    "block_parts",
    "pack_block",
    "pack_header",
    "pack_trailer",
    "read_block",
    "read_header",
    "read_trailer",
    "segment_name",
    "unpack_map",
]

SEGMENT_VERSION = 1
SUFFIX = ".rlseg"

# The first four bytes of a block say what it is.
HEADER = b"RLSH"
FRAME = b"RLSF"
FOOTER = b"RLSI"
_TRAILER = b"RLSE"
_NAMES = {HEADER: "header", FRAME: "frame", FOOTER: "footer"}

# A flag of a frame: the bodies of its items were left out.
BODILESS = 1

# kind, version, codec, flags, zero, length of meta, length of what is stored, CRC of both, CRC of the head so far
_HEAD = Struct(">4sBBBxIIII")
HEAD_BYTES = _HEAD.size
# kind, version, zeros, offset of the footer, length of the footer's block, CRC of the trailer so far
_TRAILER_PARTS = Struct(">4sB3xQII")
TRAILER_BYTES = _TRAILER_PARTS.size
_CRC = Struct(">I")

# What no block of ours exceeds. A file may claim it, and gets no more memory than it has bytes.
META_BYTES_MAX = {HEADER: 1 << 16, FRAME: 1 << 24, FOOTER: 1 << 28}
STORED_BYTES_MAX = 1 << 30
_NUMBER_MAX = 1 << 62
_CHAIN_BYTES = 32


class Block(NamedTuple):
    """A block as it was read; ``offset`` and ``end`` are where it stands in the file."""

    kind: bytes
    codec: int
    flags: int
    meta: bytes
    stored: bytes
    offset: int
    end: int


class Header(NamedTuple):
    """The first block of a file: whose history it is, and where in it the file begins."""

    cluster_id: str
    shard: str
    # The first event in the file; the file is named by it.
    first: int
    # The first event of the segment: less than ``first`` where the file lacks the segment's beginning.
    segment_first: int
    # The chain before ``first``: the digest of the segment before, where the file is whole.
    chain: bytes

    @property
    def partial(self) -> bool:
        """Whether the beginning of the segment is missing."""
        return self.first != self.segment_first


def segment_name(first: int) -> str:
    """The name of a file.

    >>> segment_name(17)
    '00000000000000000017.rlseg'
    """
    return f"{first:020d}{SUFFIX}"


def block_parts(
    kind: bytes, meta: bytes, stored: bytes = b"", *, codec: int = 0, flags: int = 0
) -> tuple[bytes, bytes]:
    """A block, ready to be written, in two pieces: its head with the meta, and what is to be stored as it was given."""
    body_crc = crc32(stored, crc32(meta))
    head = _HEAD.pack(kind, SEGMENT_VERSION, codec, flags, len(meta), len(stored), body_crc, 0)[:-4]
    return b"".join((head, _CRC.pack(crc32(head)), meta)), stored


def pack_block(kind: bytes, meta: bytes, stored: bytes = b"", *, codec: int = 0, flags: int = 0) -> bytes:
    """A block in one piece."""
    return b"".join(block_parts(kind, meta, stored, codec=codec, flags=flags))


def read_block(fd: int, path: Path, offset: int, end: int) -> Block | None:
    """The block at ``offset``; None if the bytes up to ``end`` are the beginning of one and no more.

    Raises ``CorruptSegment`` if they are not.
    """
    head = os.pread(fd, min(HEAD_BYTES, max(0, end - offset)), offset)
    if len(head) < HEAD_BYTES:
        return None
    kind, version, codec, flags, meta_length, stored_length, body_crc, head_crc = _HEAD.unpack(head)
    if crc32(head[:-4]) != head_crc:
        # Some file systems leave zeros where a file grew and its bytes had no time to arrive.
        if not any(head) and _only_zeros(fd, offset, end):
            return None
        raise CorruptSegment(path, offset, "the head of a block does not match its checksum")
    if version > SEGMENT_VERSION:
        raise NewerFormat(
            f"{path}: at byte {offset}: written in format {version}; this release reads {SEGMENT_VERSION}"
        )
    if kind not in _NAMES or meta_length > META_BYTES_MAX[kind] or stored_length > STORED_BYTES_MAX:
        raise CorruptSegment(path, offset, "no block of a segment")
    length = meta_length + stored_length
    if end - offset - HEAD_BYTES < length:
        return None
    body = os.pread(fd, length, offset + HEAD_BYTES)
    if len(body) < length:
        return None
    if crc32(body) != body_crc:
        raise CorruptSegment(path, offset, f"the {_NAMES[kind]} that begins here does not match its checksum")
    return Block(kind, codec, flags, body[:meta_length], body[meta_length:], offset, offset + HEAD_BYTES + length)


def _only_zeros(fd: int, offset: int, end: int) -> bool:
    while offset < end:
        piece = os.pread(fd, min(1 << 20, end - offset), offset)
        if not piece or any(piece):
            return not piece
        offset += len(piece)
    return True


def pack_header(header: Header) -> bytes:
    """The header's block."""
    return pack_block(HEADER, msgpack.packb(header._asdict()))


def read_header(fd: int, path: Path, size: int) -> tuple[Header, int]:
    """The header, and where the first frame begins."""
    block = read_block(fd, path, 0, size)
    if block is None:
        raise CorruptSegment(path, 0, "the file ends within its header", Damage.CUT)
    if block.kind != HEADER:
        raise CorruptSegment(path, 0, "the file does not begin with a header")
    fields = unpack_map(block.meta, path, 0)
    try:
        header = Header(**{name: fields[name] for name in Header._fields})
    except LookupError as error:
        raise CorruptSegment(path, 0, f"the header has no {error}") from error
    cluster_id, shard, first, segment_first, chain = header
    numbers = type(first) is int and type(segment_first) is int and 1 <= segment_first <= first <= _NUMBER_MAX
    names = type(cluster_id) is str and type(shard) is str
    if not numbers or not names or type(chain) is not bytes or len(chain) != _CHAIN_BYTES:
        raise CorruptSegment(path, 0, "the header does not hold what a header holds")
    if path.name.endswith(SUFFIX) and path.name != segment_name(first):
        raise CorruptSegment(path, 0, f"the file is {segment_name(first)} by its header: it was renamed")
    return header, block.end


def pack_trailer(footer_offset: int, footer_length: int) -> bytes:
    """The last bytes of a sealed file."""
    parts = _TRAILER_PARTS.pack(_TRAILER, SEGMENT_VERSION, footer_offset, footer_length, 0)[:-4]
    return parts + _CRC.pack(crc32(parts))


def read_trailer(fd: int, size: int) -> int | None:
    """Where the footer begins; None if the file does not end in a sound trailer."""
    at = size - TRAILER_BYTES
    parts = os.pread(fd, TRAILER_BYTES, at) if at > 0 else b""
    if len(parts) < TRAILER_BYTES:
        return None
    kind, _, offset, length, crc = _TRAILER_PARTS.unpack(parts)
    if kind != _TRAILER or crc32(parts[:-4]) != crc or offset + length != at:
        return None
    return int(offset)


def unpack_map(meta: bytes, path: Path, offset: int) -> Mapping[str, Any]:
    """The meta of a header or a footer: a map with names as keys."""
    try:
        fields = msgpack.unpackb(meta)
    except (ValueError, TypeError) as error:
        raise CorruptSegment(path, offset, f"its description cannot be read: {error}") from error
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise CorruptSegment(path, offset, "its description is no map")
    return fields
