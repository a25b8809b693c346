"""Connections to the other nodes, over asyncio streams.

Of two members the one with the smaller id calls. Whoever is called takes the newest connection of a peer and closes the
one before. Each connection has a number, so that what an old one still holds is not taken for the new one's.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress

from resourcelease.consensus import wire
from resourcelease.consensus.frames import Hello, answer, greet, read_frame, write_frame
from resourcelease.consensus.wire import Message, WireError

__all__ = ["Peers", "TlsContexts"]

logger = logging.getLogger(__name__)

# Server's and client's context; both demand the other side's certificate.
TlsContexts = tuple[ssl.SSLContext, ssl.SSLContext]

_GREETING_S = 3.0
# Sign of life on an idle connection, and how long silence may last.
_ALIVE_S = 1.0
_SILENCE_S = 4.0
_RETRY_MIN_S = 0.05
# Two nodes that have not found each other again cannot elect a third's successor, so this is short.
_RETRY_MAX_S = 0.25
_LOOK_AGAIN_S = (0.005, 0.02, 0.05, 0.1)
# A peer that takes in less than we send is sent nothing more until it has caught up to this.
_BUFFER_BYTES_MAX = 8 * 1024 * 1024


class _Connection:
    def __init__(self, epoch: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.epoch = epoch
        self.reader = reader
        self.writer = writer
        self.heard_at = asyncio.get_running_loop().time()


class Peers:
    """All connections of one node; tells of them by the four callbacks."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: str,
        incarnation: int,
        frame_bytes_max: int,
        tls: TlsContexts | None,
        opened: Callable[[str, int], None],
        closed: Callable[[str, int], None],
        received: Callable[[str, int, Message], None],
        gone: Callable[[str], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._incarnation = incarnation
        self._frame_bytes_max = frame_bytes_max
        self._tls = tls
        self._opened = opened
        self._closed = closed
        self._received = received
        # Nobody listens at a peer's address any more: its process has ended.
        self._gone = gone
        self._connections: dict[str, _Connection] = {}
        self._callers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: dict[str, str] = {}
        self._epochs = 0
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Opens the port; the address with the port that was given."""
        host, port = split_address(address)
        context = self._tls[0] if self._tls else None
        self._server = await asyncio.start_server(self._accept, host, port, ssl=context)
        self._spawn(self._keep_alive())
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Ends everything."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # An aborted transport lets go of its socket in a later pass of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def want(self, members: Mapping[str, str], learners: Mapping[str, str]) -> None:
        """The nodes to be connected with, by id."""
        self._addresses = {**members, **learners}
        calls = {node for node in members if node > self._node_id} | set(learners)
        calls.discard(self._node_id)
        for node in calls - set(self._callers):
            self._callers[node] = self._spawn(self._call(node))
        for node in set(self._callers) - calls:
            self._callers.pop(node).cancel()

    def send(self, peer: str, frame: bytes) -> None:
        """Sends on the connection in use; lost if there is none."""
        connection = self._connections.get(peer)
        if connection is not None:
            write_frame(connection.writer, frame)

    def has_room(self, peer: str) -> bool:
        """Whether a peer keeps up with what it is sent."""
        connection = self._connections.get(peer)
        return connection is None or connection.writer.transport.get_write_buffer_size() < _BUFFER_BYTES_MAX

    @property
    def connected(self) -> list[str]:
        """Peers with a connection."""
        return sorted(self._connections)

    def _spawn(self, work: "asyncio.Future[None] | object") -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call(self, node: str) -> None:
        delay_s = _RETRY_MIN_S
        while True:
            if node not in self._connections:
                try:
                    reader, writer = await self._dial(node)
                    delay_s = _RETRY_MIN_S
                    await self._serve(node, reader, writer)
                except WireError as error:
                    logger.warning("calling %s at %s: %s", node, self._addresses.get(node), error)
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    pass
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 spreads calls, guards nothing
            delay_s = min(delay_s * 2, _RETRY_MAX_S)

    async def _dial(self, node: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = split_address(self._addresses[node])
        context = self._tls[1] if self._tls else None
        async with asyncio.timeout(_GREETING_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                mine = Hello(self._cluster_id, self._node_id, node, self._incarnation)
                await greet(reader, writer, self._cluster_id, mine, self._node_id)
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(_GREETING_S):
                theirs = await greet(reader, writer, self._cluster_id, None, self._node_id)
            answer(writer, Hello(self._cluster_id, self._node_id, theirs.node_id, self._incarnation))
            await self._serve(theirs.node_id, reader, writer)
        except WireError as error:
            logger.warning("a caller was turned away: %s", error)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        before = self._connections.pop(peer, None)
        if before is not None:
            before.writer.transport.abort()
            self._closed(peer, before.epoch)
        self._epochs += 1
        epoch = self._epochs
        connection = self._connections[peer] = _Connection(epoch, reader, writer)
        self._opened(peer, epoch)
        loop = asyncio.get_running_loop()
        try:
            while True:
                frame = await read_frame(reader, self._frame_bytes_max)
                connection.heard_at = loop.time()
                if frame:
                    self._received(peer, epoch, wire.decode(frame))
        except WireError as error:
            logger.warning("the connection with %s is closed: %s", peer, error)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            if self._connections.get(peer) is connection:
                del self._connections[peer]
                self._closed(peer, epoch)
                self._spawn(self._look_after(peer))

    async def _look_after(self, peer: str) -> None:
        """A refused connection says that the process has ended, much sooner than its silence would.

        A process that is being killed may still be given a connection or two, so it is asked again.
        """
        for pause_s in _LOOK_AGAIN_S:
            address = self._addresses.get(peer)
            if address is None or peer in self._connections:
                return
            host, port = split_address(address)
            try:
                async with asyncio.timeout(_GREETING_S):
                    _, writer = await asyncio.open_connection(host, port)
                writer.transport.abort()
            except ConnectionRefusedError:
                self._gone(peer)
                return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(pause_s)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_ALIVE_S)
            for connection in list(self._connections.values()):
                if loop.time() - connection.heard_at > _SILENCE_S:
                    connection.writer.transport.abort()
                else:
                    with suppress(OSError):
                        write_frame(connection.writer, b"")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host stands in brackets.

    >>> split_address("[::1]:7101")
    ('::1', 7101)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
