"""A look at a large request before it is read: a message of empty entries takes fifty times its size once read."""

from collections.abc import Mapping, Sequence

from resourcelease.model.limits import MAX_ITEMS_PER_OP

__all__ = ["too_many_entries"]

# What is smaller can do no harm, and is not looked at.
_LARGE_BYTES = 256 * 1024
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


_NONE: Mapping[int, Sequence[int]] = {}


def too_many_entries(data: bytes, fields: Sequence[int], nested: Mapping[int, Sequence[int]] = _NONE) -> bool:
    """Whether one of the repeated fields has more than MAX_ITEMS_PER_OP entries; False also for what is no message.

    ``nested`` has the repeated fields of messages inside, by the number of the field that holds such a one.

    >>> too_many_entries(b"\\x22\\x00" * 200_000, [4])
    True
    """
    if len(data) < _LARGE_BYTES or not (fields or nested):
        return False
    counts = dict.fromkeys(fields, 0)
    at, end = 0, len(data)
    try:
        while at < end:
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number in counts:
                counts[number] += 1
                if counts[number] > MAX_ITEMS_PER_OP:
                    return True
            if kind == _LENGTH:
                length, at = _varint(data, at)
                if number in nested and too_many_entries(data[at : at + length], nested[number]):
                    return True
                at += length
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                return False
    except IndexError:
        return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7
