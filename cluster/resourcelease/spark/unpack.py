"""Many values of msgpack at once."""

from collections.abc import Iterable
from struct import Struct
from typing import Any

import msgpack

__all__ = ["unpack_all"]

# The head of an array in msgpack: its kind, and how many values it has.
_ARRAY, _OF_32_BITS = Struct(">BI"), 0xDD


def unpack_all(encoded: Iterable[bytes | memoryview], size: int) -> list[Any]:
    """So many values, one behind the other. Raises ValueError if there are more, or fewer.

    As one array: an ``Unpacker`` that is fed takes longer, and so does one value after the other.

    >>> unpack_all([msgpack.packb(1), msgpack.packb([2, 3])], 2)
    [1, [2, 3]]
    """
    values: list[Any] = msgpack.unpackb(b"".join((_ARRAY.pack(_OF_32_BITS, size), *encoded)))
    return values
