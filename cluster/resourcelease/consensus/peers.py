"""Connections to the other nodes.

Of two members the one with the smaller id calls. Whoever is called takes the newest connection of a peer and closes the
one before. Each connection has a number, so that what an old one still holds is not taken for the new one's.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from resourcelease.consensus import wire
from resourcelease.consensus.frames import Hello, Line, check_hello
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


class _Connection(NamedTuple):
    epoch: int
    line: Line


class Peers:
    """All connections of one node; tells of them by the callbacks."""

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
        settled: Callable[[], None],
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
        # After all messages that one read brought.
        self._settled = settled
        # Nobody listens at a peer's address any more: its process has ended.
        self._gone = gone
        self._connections: dict[str, _Connection] = {}
        self._callers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: dict[str, str] = {}
        self._wanted: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._epochs = 0
        self._server: asyncio.Server | None = None
        self._closing = False

    async def listen(self, address: str) -> str:
        """Opens the port; the address with the port that was given."""
        host, port = split_address(address)
        context = self._tls[0] if self._tls else None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, host, port, ssl=context)
        self._spawn(self._keep_alive())
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Ends everything."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.line.abort()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # An aborted transport lets go of its socket in a later pass of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def want(self, members: Mapping[str, str], learners: Mapping[str, str]) -> None:
        """The nodes to be connected with, by id."""
        if self._wanted == (members, learners):
            return
        self._wanted = (dict(members), dict(learners))
        self._addresses = {**members, **learners}
        calls = {node for node in members if node > self._node_id} | set(learners)
        calls.discard(self._node_id)
        for node in calls - set(self._callers):
            self._callers[node] = self._spawn(self._call(node))
        for node in set(self._callers) - calls:
            self._callers.pop(node).cancel()

    def send(self, peer: str, frames: Sequence[bytes]) -> None:
        """Sends on the connection in use; lost if there is none."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.line.send(frames)

    def has_room(self, peer: str) -> bool:
        """Whether a peer keeps up with what it is sent."""
        connection = self._connections.get(peer)
        return connection is None or connection.line.unsent_bytes < _BUFFER_BYTES_MAX

    @property
    def connected(self) -> list[str]:
        """Peers with a connection."""
        return sorted(self._connections)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call(self, node: str) -> None:
        delay_s = _RETRY_MIN_S
        while True:
            if node not in self._connections:
                try:
                    line = await self._dial(node)
                    delay_s = _RETRY_MIN_S
                    await self._serve(node, line)
                except WireError as error:
                    logger.warning("calling %s at %s: %s", node, self._addresses.get(node), error)
                except (OSError, TimeoutError):
                    pass
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 spreads calls, guards nothing
            delay_s = min(delay_s * 2, _RETRY_MAX_S)

    async def _dial(self, node: str) -> Line:
        host, port = split_address(self._addresses[node])
        context = self._tls[1] if self._tls else None
        line = Line(self._frame_bytes_max)
        try:
            async with asyncio.timeout(_GREETING_S):
                await asyncio.get_running_loop().create_connection(lambda: line, host, port, ssl=context)
                line.send([self._hello(node)])
                check_hello(await line.hello, self._cluster_id, self._node_id, node)
        except BaseException:
            line.abort()
            raise
        return line

    def _hello(self, wanted: str) -> bytes:
        return Hello(self._cluster_id, self._node_id, wanted, self._incarnation).to_frame()

    def _accepted(self) -> Line:
        return Line(self._frame_bytes_max, self._made)

    def _made(self, line: Line) -> None:
        if self._closing:
            line.abort()
            return
        # Also when it is cancelled before it has begun.
        self._spawn(self._greet(line)).add_done_callback(lambda _: line.abort())

    async def _greet(self, line: Line) -> None:
        try:
            async with asyncio.timeout(_GREETING_S):
                theirs = check_hello(await line.hello, self._cluster_id, self._node_id)
            line.send([self._hello(theirs.node_id)])
            await self._serve(theirs.node_id, line)
        except WireError as error:
            logger.warning("a caller was turned away: %s", error)
        except (OSError, TimeoutError):
            pass

    async def _serve(self, peer: str, line: Line) -> None:
        before = self._connections.pop(peer, None)
        if before is not None:
            before.line.abort()
            self._closed(peer, before.epoch)
        self._epochs += 1
        epoch = self._epochs
        connection = self._connections[peer] = _Connection(epoch, line)
        self._opened(peer, epoch)

        def take(frames: list[bytes]) -> None:
            for frame in frames:
                self._received(peer, epoch, wire.decode(frame))
            self._settled()

        try:
            line.attach(take)
            await line.ended
        except WireError as error:
            logger.warning("the connection with %s is closed: %s", peer, error)
        except OSError:
            pass
        finally:
            line.abort()
            if self._connections.get(peer) is connection:
                del self._connections[peer]
                self._closed(peer, epoch)
                if not self._closing:
                    self._spawn(self._look_after(peer))

    async def _look_after(self, peer: str) -> None:
        """A refused connection says that the process has ended, much sooner than its silence would.

        A process that is being killed may still be given a connection or two, so it is asked again.
        """
        loop = asyncio.get_running_loop()
        for pause_s in _LOOK_AGAIN_S:
            address = self._addresses.get(peer)
            if address is None or peer in self._connections:
                return
            host, port = split_address(address)
            try:
                async with asyncio.timeout(_GREETING_S):
                    transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
                transport.abort()
            except ConnectionRefusedError:
                self._gone(peer)
                return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(pause_s)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_ALIVE_S)
            # Who was stopped or late itself cannot say who was silent meanwhile.
            punctual = loop.time() - began < 2 * _ALIVE_S
            for connection in list(self._connections.values()):
                if punctual and loop.time() - connection.line.heard_at > _SILENCE_S:
                    connection.line.abort()
                else:
                    connection.line.send([b""])


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host stands in brackets.

    >>> split_address("[::1]:7101")
    ('::1', 7101)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
