"""Frames on a connection: four bytes of length, then so many bytes; and the handshake that every one begins with."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, cast

import msgpack

from resourcelease.consensus.entries import OLDEST_VERSION
from resourcelease.consensus.wire import PROTOCOL_VERSION, WireError

__all__ = ["AreYouThere", "GoAway", "Hello", "Line", "TurnedAway", "check_hello", "framed", "note_of"]

_LENGTH = Struct(">I")
_MAGIC = "resourcelease"
_HELLO_BYTES_MAX = 4096
# No message begins with this byte: msgpack never uses it.
_NOTE = b"\xc1"
_ASKED, _THERE, _AWAY = 0, 1, 2
_WORDS_MAX = 1000
# Linux has it.
_INCOMING_CPU: int | None = getattr(socket, "SO_INCOMING_CPU", None)


class TurnedAway(Exception):
    """Another node does not let this process in: another one lives under the same id, or its release is too old."""


class AreYouThere(NamedTuple):
    """Asks whether the process at the other end lives, or says that it does."""

    # Drawn anew for each question: what a process that has died left on its way cannot hold it.
    number: int
    answer: bool = False

    def to_frame(self) -> bytes:
        """As it is sent."""
        return _NOTE + bytes(msgpack.packb([_THERE if self.answer else _ASKED, self.number]))


class GoAway(NamedTuple):
    """Says that the process at the other end is one too many, and why."""

    words: str

    def to_frame(self) -> bytes:
        """As it is sent."""
        return _NOTE + bytes(msgpack.packb([_AWAY, self.words]))


def note_of(frame: bytes) -> AreYouThere | GoAway | None:
    """What connections say to each other about themselves; None for a message between nodes.

    >>> note_of(AreYouThere(7).to_frame())
    AreYouThere(number=7, answer=False)
    """
    if frame[:1] != _NOTE:
        return None
    try:
        kind, value = msgpack.unpackb(frame[1:])
    except Exception as error:  # msgpack raises many kinds
        raise WireError("a note that cannot be read") from error
    if kind in (_ASKED, _THERE) and type(value) is int:
        return AreYouThere(value, kind == _THERE)
    if kind == _AWAY and type(value) is str:
        return GoAway(" ".join(value.split())[:_WORDS_MAX])
    raise WireError("a note of an unknown kind")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks, and to whom it believes to speak."""

    cluster_id: str
    node_id: str
    # The node it wants; a reused address is noticed so.
    wanted: str
    incarnation: int
    # Only asks whether it is let in, and hangs up. Nodes that do not know this word turn such a hello away.
    asks: bool = False
    # The newest version of entries that it reads.
    reads: int = OLDEST_VERSION

    def to_frame(self) -> bytes:
        """As it is sent."""
        fields = [_MAGIC, PROTOCOL_VERSION, self.cluster_id, self.node_id, self.wanted, self.incarnation]
        # As short as it can be: releases that read the oldest version only know no more.
        if self.reads > OLDEST_VERSION:
            fields += [self.asks, self.reads]
        elif self.asks:
            fields.append(True)
        return bytes(msgpack.packb(fields))


def framed(frames: Iterable[bytes]) -> bytes:
    """Frames as they travel; an empty one is a sign of life.

    >>> framed([b"ab", b""])
    b'\\x00\\x00\\x00\\x02ab\\x00\\x00\\x00\\x00'
    """
    pieces = []
    for frame in frames:
        pieces.append(_LENGTH.pack(len(frame)))
        pieces.append(frame)
    return b"".join(pieces)


class Line(asyncio.Protocol):
    """One connection, as frames.

    What arrives is handed on within the very pass of the loop that read it, so a node whose loop was late hears what
    its leader sent meanwhile before a timer can make it stand for election. Up to the hello nothing is read beyond one
    small frame; the rest waits until ``attach``.
    """

    def __init__(self, bytes_max: int, made: "Callable[[Line], None] | None" = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._bytes_max = bytes_max
        self._made = made
        self._take: Callable[[list[bytes]], None] | None = None
        self._buffer = bytearray()
        # How much must be in the buffer before it is worth a look.
        self._wanted = _LENGTH.size
        self._transport: asyncio.Transport | None = None
        self.heard_at = self._loop.time()
        self.hello: asyncio.Future[bytes] = self._loop.create_future()
        # Ends with the connection; with a ``WireError`` if that is why.
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def attach(self, take: Callable[[list[bytes]], None]) -> None:
        """Has all frames after the hello handed to ``take``, those of one read together."""
        self._take = take
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._look()

    def send(self, frames: Iterable[bytes]) -> None:
        """Sends at once, as far as the system takes it; lost if the connection is."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(frames))

    def finish(self) -> None:
        """Ends the connection once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def peer_address(self) -> str:
        """Where the other side calls from."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "nowhere"

    @property
    def sent_from(self) -> int | None:
        """The processor that the other side last sent from, where it is on this machine and the system tells."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if not here or not there or here[0] != there[0] or _INCOMING_CPU is None:
            return None
        # Between two of one machine a sender does the receiver's part of the work, and on its own processor.
        connection: socket.socket = transport.get_extra_info("socket")
        processor = connection.getsockopt(socket.SOL_SOCKET, _INCOMING_CPU)
        return processor if processor >= 0 else None

    @property
    def unsent_bytes(self) -> int:
        """What the other side has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is up."""
        self._transport = cast(asyncio.Transport, transport)
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        self.heard_at = self._loop.time()
        self._buffer += data
        if len(self._buffer) >= self._wanted:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        for future in (self.hello, self.ended):
            if not future.done():
                future.set_exception(exc or ConnectionResetError("the other side closed the connection"))
                # Nobody may be waiting for it.
                future.exception()

    def _look(self) -> None:
        try:
            if not self.hello.done():
                self._look_for_hello()
            elif self._take is not None and (frames := self._split(self._bytes_max, len(self._buffer))):
                self._take(frames)
        except WireError as error:
            for future in (self.hello, self.ended):
                if not future.done():
                    future.set_exception(error)
                    future.exception()
            self.abort()

    def _look_for_hello(self) -> None:
        if frames := self._split(_HELLO_BYTES_MAX, 1):
            assert self._transport is not None
            self._transport.pause_reading()
            self.hello.set_result(frames[0])

    def _split(self, bytes_max: int, count_max: int) -> list[bytes]:
        """Takes whole frames off the buffer; empty ones are left out."""
        buffer = bytes(self._buffer)
        frames: list[bytes] = []
        at = 0
        self._wanted = _LENGTH.size
        while len(buffer) - at >= _LENGTH.size and len(frames) < count_max:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > bytes_max:
                raise WireError(f"a frame of {length} bytes, where {bytes_max} are allowed")
            end = at + _LENGTH.size + length
            if end > len(buffer):
                self._wanted = end - at
                break
            if length:
                frames.append(buffer[at + _LENGTH.size : end])
            at = end
        del self._buffer[:at]
        return frames


def check_hello(frame: bytes, cluster_id: str, node_id: str, wanted: str | None = None) -> Hello:
    """Reads the other side's hello; ``wanted`` is who should be there, if this side called. Raises ``TurnedAway``."""
    note = note_of(frame)
    if isinstance(note, GoAway):
        raise TurnedAway(note.words)
    theirs = _parse(frame)
    if theirs.cluster_id != cluster_id:
        raise WireError(f"node {theirs.node_id!r} belongs to cluster {theirs.cluster_id!r}, not to {cluster_id!r}")
    if theirs.wanted != node_id:
        raise WireError(f"node {theirs.node_id!r} wants {theirs.wanted!r} at this address; here is {node_id!r}")
    if wanted is not None and theirs.node_id != wanted:
        raise WireError(f"{theirs.node_id!r} answers at the address of {wanted!r}")
    return theirs


def _parse(frame: bytes) -> Hello:
    try:
        magic, version, cluster_id, node_id, wanted, incarnation, *more = msgpack.unpackb(frame)
    except Exception as error:  # anything but these fields is not a hello
        raise WireError("the connection does not begin with a hello; is this address another service's?") from error
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise WireError(f"protocol {magic!r} version {version!r}; this node speaks {_MAGIC!r} {PROTOCOL_VERSION}")
    if not (isinstance(cluster_id, str) and isinstance(node_id, str) and isinstance(wanted, str)):
        raise WireError("a hello with names that are not text")
    # What a later release adds behind these two is passed over.
    asks = more[0] if more else False
    reads = more[1] if len(more) > 1 else OLDEST_VERSION
    if type(incarnation) is not int or type(asks) is not bool or type(reads) is not int or reads < OLDEST_VERSION:
        raise WireError("a hello that ends in something else")
    return Hello(cluster_id, node_id, wanted, incarnation, asks, reads)
