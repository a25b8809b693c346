"""How values are laid out in LMDB, and how damage is seen.

Every value ends in a CRC-32 that covers its key as well, so that a value that turns up under another key is damage too.
A CRC over data followed by its own CRC is always the same number, so checking needs no slicing.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from resourcelease.storage.api import JournalEntry

__all__ = [
    "FORMAT_VERSION",
    "INDEX_KEY_BYTES",
    "KEY_BYTES_MAX",
    "RowsPosition",
    "Vote",
    "index_key",
    "is_sound",
    "pack_number",
    "pack_entries",
    "pack_rows_position",
    "pack_vote",
    "seal",
    "seal_rows",
    "unpack_number",
    "unpack_entry",
    "unpack_rows_position",
    "unpack_vote",
    "unseal",
]

# Raised when an older release could misread what this one writes.
FORMAT_VERSION = 2

# LMDB's own limit for keys.
KEY_BYTES_MAX = 511

INDEX_KEY_BYTES = 8
# What crc32(data + little-endian crc32(data)) is, whatever the data.
_RESIDUE = 0x2144DF1C
_CRC_BYTES = 4
_TERM_BYTES = 8

_crc = struct.Struct("<I").pack
_u64 = struct.Struct(">Q")
_key = _u64.pack
_rows = struct.Struct(">QQQ")


class Vote(NamedTuple):
    """The current term, and the node voted for in it ("": none)."""

    term: int
    voted_for: str


class RowsPosition(NamedTuple):
    """The entry that the stored rows stand for; ``changes`` counts the transactions that changed rows."""

    entry: int
    term: int
    changes: int


def seal(key: bytes, payload: bytes) -> bytes:
    """The payload with a checksum over key and payload behind it."""
    return payload + _crc(crc32(payload, crc32(key)))


def is_sound(key: bytes, value: bytes) -> bool:
    """Whether ``value`` is what ``seal`` made for this key."""
    return crc32(value, crc32(key)) == _RESIDUE


def unseal(value: bytes) -> bytes:
    """The payload of a value that is sound."""
    return value[:-_CRC_BYTES]


def index_key(index: int) -> bytes:
    """Big-endian, so that LMDB's order is the journal's order."""
    return _key(index)


def pack_entries(entries: Iterable[JournalEntry]) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry: index; term, bytes, checksum over all three."""
    for index, term, data in entries:
        key = _key(index)
        head = _key(term)
        yield key, b"".join((head, data, _crc(crc32(data, crc32(head, crc32(key))))))


def unpack_entry(key: bytes, value: bytes) -> JournalEntry | None:
    """The entry, or None when key, term or bytes are not those that were written."""
    if len(key) != INDEX_KEY_BYTES or len(value) < _TERM_BYTES + _CRC_BYTES or not is_sound(key, value):
        return None
    return JournalEntry(_u64.unpack(key)[0], _u64.unpack_from(value)[0], value[_TERM_BYTES:-_CRC_BYTES])


def seal_rows(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Each row as it is stored."""
    return ((key, payload + _crc(crc32(payload, crc32(key)))) for key, payload in rows)


def pack_vote(vote: Vote) -> bytes:
    """The payload of the vote's record."""
    return _key(vote.term) + vote.voted_for.encode()


def unpack_vote(payload: bytes) -> Vote:
    """The opposite of ``pack_vote``."""
    return Vote(_u64.unpack_from(payload)[0], payload[_TERM_BYTES:].decode())


def pack_rows_position(position: RowsPosition) -> bytes:
    """The payload of the rows' record."""
    return _rows.pack(*position)


def unpack_rows_position(payload: bytes) -> RowsPosition:
    """The opposite of ``pack_rows_position``."""
    return RowsPosition(*_rows.unpack(payload))


def pack_number(number: int) -> bytes:
    """The payload of a record that is one number: how far the journal is compacted, or the log ahead has settled."""
    return _key(number)


def unpack_number(payload: bytes) -> int:
    """The opposite of ``pack_number``."""
    number: int = _u64.unpack(payload)[0]
    return number
