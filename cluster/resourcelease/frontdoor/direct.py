"""Streams without gRPC: the two that both sides write to, over connections of their own, served as those on gRPC are.

What serves a stream asks little of gRPC: to read, to write, to end with a status, and who is at the other end. Here is
that little over a plain connection. direct.proto says what travels.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError

from resourcelease import v1
from resourcelease.frontdoor.dispatch import plain_status
from resourcelease.frontdoor.refusals import DETAILS_KEY
from resourcelease.model.direct import (
    CLOSE,
    DEAD_AFTER,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    MAGIC,
    MESSAGE,
    OPEN,
    STATUS,
    BadFrame,
    Frames,
    frame,
)

__all__ = ["DirectDoor", "Served", "attend"]

# A beginning that takes longer is none.
_BEGIN_S = 10.0
# So much of a client that is not read yet may wait here; then it is not read either.
_UNREAD_BYTES = 4 * 1024 * 1024
# The same the other way.
_UNSENT_BYTES = 1024 * 1024
_CONNECTIONS_MAX = 4_096

Handler = Callable[[Any, Any], Awaitable[None]]
# Takes a message, or says that it does not.
Take = Callable[[Any], bool]


class Served(NamedTuple):
    """A stream that can be asked for: what reads its messages, and what serves it."""

    read: Callable[[bytes], Any]
    run: Handler


class DirectDoor:
    """Listens for direct streams."""

    def __init__(self, methods: Mapping[str, Served], frame_bytes: int) -> None:
        self._methods = methods
        self.frame_bytes = frame_bytes
        # Drawn for each run: whoever remembers the address of a node that is gone does not end up at another.
        self.key = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Opens the port; returns which. Raises ``OSError`` if it cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host.strip("[]"), port, ssl=context)
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def stop(self, grace_s: float) -> None:
        """Takes no more connections, lets the streams end, and cuts off those that do not."""
        if self._server is not None:
            self._server.close()
        if running := [connection.task for connection in self._connections if connection.task is not None]:
            await asyncio.wait(running, timeout=grace_s)
        for connection in list(self._connections):
            connection.cut()

    def enter(self, connection: "_Connection") -> bool:
        """Counts a connection in, if there is room."""
        if len(self._connections) >= _CONNECTIONS_MAX:
            return False
        self._connections[connection] = None
        return True

    def leave(self, connection: "_Connection") -> None:
        """It is gone."""
        self._connections.pop(connection, None)

    def begin(self, opening: v1.DirectOpen) -> Served | bytes:
        """What serves the stream, or the status of a refusal."""
        if not hmac.compare_digest(opening.key.encode(), self.key.encode()):
            return plain_status(grpc.StatusCode.UNAVAILABLE, "another node is here, or another run of it")
        sizes = [len(name) + len(value) for name, value in opening.headers.items()]
        if len(sizes) > HEADERS_MAX or sum(sizes) > HEADERS_BYTES_MAX:
            return plain_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "there are too many headers")
        served = self._methods.get(opening.method)
        if served is None:
            return plain_status(grpc.StatusCode.UNIMPLEMENTED, f"no stream is named {opening.method[:100]!r}")
        return served


class _Connection(asyncio.Protocol):
    """One connection, which is one stream; to what serves it, the context that gRPC would give."""

    def __init__(self, door: DirectDoor) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames(door.frame_bytes)
        self._magic = b""
        self._beginning = self._loop.call_later(_BEGIN_S, self.cut)
        self._served: Served | None = None
        self._headers: tuple[tuple[str, str], ...] = ()
        self.task: asyncio.Task[None] | None = None
        # Messages that nobody has read, and whoever waits for one.
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        # Told what the attendant met, if that is why it is woken.
        self._reader: asyncio.Future[Exception | None] | None = None
        # Who takes messages as they come, while somebody waits in ``read`` for what is left to be read there.
        self.attendant: Take | None = None
        self._closed = False
        self._ended = False
        self._room = asyncio.Event()
        self._room.set()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is up."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if not self._door.enter(self):
            self._transport.abort()
            return
        _ask_for_life(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with it whoever would be answered."""
        self._beginning.cancel()
        self._door.leave(self)
        self._ended = True
        self._room.set()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        if len(self._magic) < len(MAGIC):
            missing = len(MAGIC) - len(self._magic)
            self._magic += data[:missing]
            data = data[missing:]
            if not MAGIC.startswith(self._magic):
                self.cut()
                return
        try:
            for kind, content in self._frames.cut(data):
                self._take(kind, content)
        except (BadFrame, DecodeError):
            self.cut()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def _take(self, kind: int, content: bytes) -> None:
        if self._ended:
            return
        if self._served is None:
            if kind != OPEN:
                raise BadFrame("a stream begins with an opening")
            self._open(v1.DirectOpen.FromString(content))
        elif kind == MESSAGE and not self._closed:
            if self._taken(content, self._served):
                return
            self._unread.append(content)
            self._unread_bytes += len(content)
            if self._unread_bytes > _UNREAD_BYTES and self._transport is not None:
                self._transport.pause_reading()
            self._wake_reader()
        elif kind == CLOSE and not self._closed:
            self._closed = True
            self._wake_reader()
        else:
            raise BadFrame(f"a frame of kind {kind} is out of place")

    def _taken(self, content: bytes, served: Served) -> bool:
        """Whether the attendant takes a message: there and then, without a task that has to be woken for it."""
        # In no variable: what is met here keeps this frame, and the reader is told of it.
        if self.attendant is None or self._reader is None or self._reader.done():
            return False
        try:
            return self.attendant(served.read(content))
        except Exception as error:
            # Whoever reads is to meet it.
            self._wake_reader(error)
            return True

    def _open(self, opening: v1.DirectOpen) -> None:
        self._beginning.cancel()
        served = self._door.begin(opening)
        if isinstance(served, bytes):
            self._end(served)
            return
        self._served = served
        self._headers = tuple(opening.headers.items())
        self.task = self._loop.create_task(self._serve(served))

    async def _serve(self, served: Served) -> None:
        try:
            # Whatever goes wrong has become a status in there.
            with contextlib.suppress(grpc.aio.AbortError):
                await served.run(None, self)
            self._end(b"")
        finally:
            # All lead back here, and no collector looks for such circles at a node.
            self.attendant = self.task = self._reader = None

    def _end(self, status: bytes) -> None:
        """The last frame, unless there was one."""
        if self._ended or self._transport is None:
            return
        self._ended = True
        self._transport.write(frame(STATUS, status))
        self._transport.close()

    def _wake_reader(self, met: Exception | None = None) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(met)

    def cut(self) -> None:
        """Ends the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # What serves the stream calls: a part of gRPC's context.

    async def read(self) -> Any:
        """The next message, or ``EOF``."""
        assert self._served is not None
        while not self._unread:
            if self._closed:
                return grpc.aio.EOF
            self._reader = self._loop.create_future()
            met, self._reader = await self._reader, None
            if met is not None:
                try:
                    raise met
                finally:
                    # By its traceback it keeps this frame: it is not to be kept in it.
                    del met
        content = self._unread.popleft()
        before = self._unread_bytes
        self._unread_bytes -= len(content)
        if before > _UNREAD_BYTES >= self._unread_bytes and self._transport is not None:
            self._transport.resume_reading()
        return self._served.read(content)

    @property
    def has_room(self) -> bool:
        """Whether its reader keeps up, so that ``write_now`` may be called."""
        return self._room.is_set() and not self._ended

    def write_now(self, message: Any) -> None:
        """Sends a message."""
        if not self._ended and self._transport is not None:
            self._transport.write(frame(MESSAGE, message.SerializeToString()))

    async def write(self, message: Any) -> None:
        """Sends a message, at the pace of its reader."""
        self.write_now(message)
        await self.room()

    async def room(self) -> None:
        """Waits until its reader keeps up."""
        await self._room.wait()

    async def abort(self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, bytes], ...]) -> NoReturn:
        """Ends the stream with a status."""
        self._end(dict(metadata).get(DETAILS_KEY) or plain_status(code, message))
        raise grpc.aio.AbortError

    def done(self) -> bool:
        """Whether nobody would hear an answer."""
        return self._ended

    def peer(self) -> str:
        """Where the other side calls from, as gRPC writes it."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        if not name:
            return "unknown:"
        return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers."""
        return self._headers

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What the client's certificate says, where it had to show one."""
        shown = None if self._transport is None else self._transport.get_extra_info("peercert")
        return _names(shown or {})

    def time_remaining(self) -> None:
        """A stream has no deadline."""


def attend(context: Any, take: Take) -> None:
    """Has the messages of a stream taken as they come, if it is one that can do that; the others are to be read.

    Who takes is called while somebody waits in ``read``, and what it raises is raised there.
    """
    if isinstance(context, _Connection):
        context.attendant = take


def _names(certificate: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """The names in a certificate, under the keys that gRPC has for them."""
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    names = {"x509_common_name": common, "x509_subject_alternative_name": others}
    return {key: [value.encode() for value in values] for key, values in names.items() if values}


def _ask_for_life(connection: socket.socket | None) -> None:
    if connection is None:
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in DEAD_AFTER.items():
            # Not every system has all of them.
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
