"""Frames of direct streams, as both sides speak them; direct.proto has the words for it."""

from collections.abc import Iterator
from struct import Struct

__all__ = [
    "CLOSE",
    "DEAD_AFTER",
    "HEADERS_BYTES_MAX",
    "HEADERS_MAX",
    "MAGIC",
    "MESSAGE",
    "OPEN",
    "STATUS",
    "BadFrame",
    "Frames",
    "frame",
]

# What a client sends before its first frame.
MAGIC = b"RLDIRCT1"
# Kinds of frames.
OPEN, MESSAGE, CLOSE, STATUS = 1, 2, 3, 4
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 16 * 1024

# Options of TCP, by name: an end that has died without a word is noticed as soon as it is on gRPC.
DEAD_AFTER = {"TCP_KEEPIDLE": 9, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}

_HEAD = Struct(">IB")
_LENGTH_BYTES = 4


class BadFrame(Exception):
    """What came is no frame, or is too long for one."""


def frame(kind: int, content: bytes = b"") -> bytes:
    """A frame as it travels.

    >>> frame(CLOSE)
    b'\\x00\\x00\\x00\\x01\\x03'
    """
    return _HEAD.pack(1 + len(content), kind) + content


class Frames:
    """Cuts what arrives into frames; holds no more than one unfinished one."""

    __slots__ = ("_buffer", "_most", "_wanted")

    def __init__(self, most: int) -> None:
        """``most``: bytes of content in a frame."""
        self._most = most
        self._buffer = bytearray()
        # How much must be in the buffer before it is worth a look.
        self._wanted = _HEAD.size

    def cut(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are whole now; raises ``BadFrame`` behind the good ones.

        >>> frames = Frames(100)
        >>> list(frames.cut(frame(MESSAGE, b"ab") + frame(CLOSE)[:3]))
        [(2, b'ab')]
        >>> list(frames.cut(frame(CLOSE)[3:]))
        [(3, b'')]
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        at, end = 0, len(data)
        self._wanted = _HEAD.size
        while end - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, at)
            if not 1 <= length <= self._most + 1:
                raise BadFrame(f"a frame of {length} bytes, where 1 to {self._most + 1} are allowed")
            after = at + _LENGTH_BYTES + length
            if after > end:
                self._wanted = after - at
                break
            yield kind, data[at + _HEAD.size : after]
            at = after
        if at < end:
            self._buffer += data[at:]
