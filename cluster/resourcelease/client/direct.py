"""Streams to a node over connections of their own, which cost both sides less than gRPC; that is used where they fail.

A ``DirectStream`` looks to its user like a stream of gRPC: the same methods, the same errors.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from grpc import StatusCode, aio

from resourcelease import v1
from resourcelease.client.errors import code_of
from resourcelease.model.direct import (
    CLOSE,
    DEAD_AFTER,
    MAGIC,
    MESSAGE,
    OPEN,
    STATUS,
    BadFrame,
    Frames,
    frame,
)

__all__ = ["ANSWERS", "DirectStream", "Place", "attend", "is_ready"]

# What comes on the streams that can be had so.
ANSWERS: dict[str, type[Message]] = {"Converse": v1.ConverseResponse, "Work": v1.WorkResponse}
# Who does not take the connection within this time is called over gRPC.
_CONNECT_SECONDS = 0.5
# An answer may be so long, and so much may wait to be read.
_FRAME_BYTES = 64 * 1024 * 1024
_UNREAD_BYTES = 16 * 1024 * 1024
_UNSENT_BYTES = 1024 * 1024
_DETAILS_KEY = "grpc-status-details-bin"

Metadata = Sequence[tuple[str, str]] | None
# Takes a message, or says that it does not.
Take = Callable[[Any], bool]


class Place(NamedTuple):
    """Where a node takes direct streams."""

    host: str
    port: int
    key: str

    @staticmethod
    def of(text: str) -> "Place | None":
        """Reads ``host:port#key``; None for anything else.

        >>> Place.of("[::1]:40123#5eed")
        Place(host='::1', port=40123, key='5eed')
        >>> Place.of("")
        """
        address, _, key = text.partition("#")
        host, _, port = address.rpartition(":")
        if not host or not key or not port.isdecimal() or not 0 < int(port) < 65536:
            return None
        return Place(host.strip("[]"), int(port), key)


class DirectStream:
    """A stream that is opened when it is first used: at the place, or as ``otherwise`` opens it if that fails.

    ``failed`` is told when the place took no stream, or ended one without a word.
    """

    def __init__(
        self,
        place: Place,
        method: str,
        metadata: Metadata,
        context: tuple[ssl.SSLContext, str] | None,
        otherwise: Callable[[], Any],
        failed: Callable[[], None],
    ) -> None:
        self._call: Any = None
        self._attendant: Take | None = None
        self._otherwise = otherwise
        self._failed = failed
        self._opening = asyncio.get_running_loop().create_task(self._open(place, method, metadata, context))

    async def write(self, message: Message) -> None:
        """Sends a message."""
        await (self._call or await self._opened()).write(message)

    async def read(self) -> Any:
        """The next message, ``EOF``, or None for what cannot be read."""
        return await (self._call or await self._opened()).read()

    def attend(self, take: Take) -> None:
        """Has messages taken as they come, where no gRPC is in between."""
        self._attendant = take
        if isinstance(self._call, _Call):
            self._call.attendant = take

    @property
    def ready(self) -> bool:
        """Whether a message can be written at once, without waiting for anything."""
        return isinstance(self._call, _Call) and self._call.ready

    def write_now(self, message: Message) -> None:
        """Sends a message, when it is ready."""
        self._call.write_now(message)

    async def done_writing(self) -> None:
        """Says that nothing more will be sent."""
        await (self._call or await self._opened()).done_writing()

    def cancel(self) -> None:
        """Ends it at once."""
        self._opening.cancel()
        if self._call is not None:
            self._call.cancel()

    async def _opened(self) -> Any:
        return await asyncio.shield(self._opening)

    async def _open(
        self, place: Place, method: str, metadata: Metadata, context: tuple[ssl.SSLContext, str] | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        encryption: dict[str, Any] = {}
        if context is not None:
            encryption = {"ssl": context[0], "server_hostname": context[1] or place.host}
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, call = await loop.create_connection(
                    lambda: _Call(ANSWERS[method], self._failed), place.host, place.port, **encryption
                )
        except (OSError, TimeoutError):
            self._failed()
            try:
                self._call = self._otherwise()
            except aio.UsageError as error:
                raise _rpc_error(StatusCode.CANCELLED, "the client is closed") from error
        else:
            call.attendant = self._attendant
            call.open(v1.DirectOpen(method=method, key=place.key, headers=dict(metadata or ())))
            self._call = call
        return self._call


class _Call(asyncio.Protocol):
    """An open one."""

    def __init__(self, answer: type[Message], failed: Callable[[], None]) -> None:
        self._answer = answer
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames(_FRAME_BYTES)
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        # Who takes messages as they come, while somebody waits in ``read`` for what is left to be read there.
        self.attendant: Take | None = None
        self._heard = False
        self._cancelled = False
        # How it ended: with an error, or well.
        self._error: aio.AioRpcError | None = None
        self._over = False
        self._room = asyncio.Event()
        self._room.set()

    def open(self, opening: v1.DirectOpen) -> None:
        """Says what it is for."""
        self._write(MAGIC + frame(OPEN, opening.SerializeToString()))

    # What a stream of gRPC has.

    async def write(self, message: Message) -> None:
        """Sends a message, at the pace of its reader."""
        self.write_now(message)
        await self._room.wait()

    @property
    def ready(self) -> bool:
        """Whether the node reads, as far as is known."""
        return not self._over and self._transport is not None and self._room.is_set()

    def write_now(self, message: Message) -> None:
        """Sends a message, when it is ready."""
        self._write(frame(MESSAGE, message.SerializeToString()))

    async def read(self) -> Any:
        """The next message, ``EOF``, or None for what cannot be read."""
        while not self._unread:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._error is not None:
                raise self._error
            if self._over:
                return aio.EOF
            self._reader = self._loop.create_future()
            await self._reader
        content = self._unread.popleft()
        before = self._unread_bytes
        self._unread_bytes -= len(content)
        if before > _UNREAD_BYTES >= self._unread_bytes and self._transport is not None:
            self._transport.resume_reading()
        try:
            return self._answer.FromString(content)
        except DecodeError:
            return None

    async def done_writing(self) -> None:
        """Says that nothing more will be sent."""
        self._write(frame(CLOSE))

    def cancel(self) -> None:
        """Ends it at once."""
        self._cancelled = True
        self._finish()
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is up."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        _ask_for_life(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if not self._over:
            self._fail(StatusCode.UNAVAILABLE, f"the connection was lost ({exc or 'closed by the node'})")

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        try:
            for kind, content in self._frames.cut(data):
                self._take(kind, content)
        except (BadFrame, DecodeError) as error:
            self._fail(StatusCode.UNKNOWN, f"sent what is no frame of a direct stream: {error}")
            assert self._transport is not None
            self._transport.abort()

    def pause_writing(self) -> None:
        """The node does not read."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def _take(self, kind: int, content: bytes) -> None:
        if self._over:
            return
        if kind == MESSAGE:
            self._heard = True
            if self._taken(content):
                return
            self._unread.append(content)
            self._unread_bytes += len(content)
            if self._unread_bytes > _UNREAD_BYTES and self._transport is not None:
                self._transport.pause_reading()
            self._wake_reader()
        elif kind == STATUS:
            status = status_pb2.Status.FromString(content)
            if status.code:
                self._fail(code_of(status), status.message, content)
            else:
                self._finish()
        else:
            raise BadFrame(f"kind {kind}")

    def _taken(self, content: bytes) -> bool:
        """Whether the attendant takes a message: there and then, without a task that has to be woken for it."""
        reader = self._reader
        if self.attendant is None or reader is None or reader.done():
            return False
        try:
            message = self._answer.FromString(content)
        except DecodeError:
            return False
        try:
            return self.attendant(message)
        except Exception as error:
            # Whoever reads is to meet it, unless the stream was cancelled first.
            if not reader.done():
                reader.set_exception(error)
            return True

    def _write(self, data: bytes) -> None:
        if self._error is not None:
            raise self._error
        if self._over or self._transport is None:
            raise asyncio.InvalidStateError("the stream is over")
        self._transport.write(data)

    def _fail(self, code: StatusCode, message: str, details: bytes = b"") -> None:
        self._error = _rpc_error(code, message, details)
        if not self._heard:
            self._failed()
        self._finish()

    def _finish(self) -> None:
        self._over = True
        self._room.set()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def attend(stream: Any, take: Take) -> None:
    """Has the messages of a stream taken as they come, if it is one that can do that; the others are to be read.

    Who takes is called while somebody waits in ``read``, and what it raises is raised there.
    """
    if isinstance(stream, DirectStream):
        stream.attend(take)


def is_ready(stream: Any) -> bool:
    """Whether the stream has ``write_now``, and it may be used: no task has to be woken then to write."""
    return isinstance(stream, DirectStream) and stream.ready


def _rpc_error(code: StatusCode, message: str, details: bytes = b"") -> aio.AioRpcError:
    trailing = aio.Metadata((_DETAILS_KEY, details)) if details else aio.Metadata()
    return aio.AioRpcError(code, aio.Metadata(), trailing, details=message)


def _ask_for_life(connection: socket.socket | None) -> None:
    if connection is None:
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in DEAD_AFTER.items():
            # Not every system has all of them.
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
