"""Numbers in the encoding of protobuf, for messages that are put together from parts."""

__all__ = ["varint"]

_SEVEN = 1 << 7
_FOURTEEN = 1 << 14
# A number below 2^14 in its last two digits of base 128, and as digits that others follow.
_LAST = [bytes((n,)) if n < _SEVEN else bytes((n & 127 | 128, n >> 7)) for n in range(_FOURTEEN)]
_MORE = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(_FOURTEEN)]


def varint(number: int) -> bytes:
    """A number that is not negative, in base 128.

    >>> varint(300), varint(1 << 40) == b"\\x80" * 5 + b"\\x20"
    (b'\\xac\\x02', True)
    """
    if number < _FOURTEEN:
        return _LAST[number]
    if number < 1 << 28:
        return _MORE[number & 16383] + _LAST[number >> 14]
    return _MORE[number & 16383] + varint(number >> 14)
