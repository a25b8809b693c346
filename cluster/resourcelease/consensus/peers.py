"""Connections to the other nodes.

Of two members the one with the smaller id calls. Whoever is called takes the newest connection of a peer's process and
closes the one before. Each connection has a number, so that what an old one still holds is not taken for the new one's.

A second process under a peer's id is let in once the connection with the first has ended. Until then the first is asked
whether it lives, and if it says so, the second is turned away and ends: it was started from a copy. A node asks all
others whether they let it in before it calls any, and goes on to ask those that should call it and do not.
"""

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from resourcelease.consensus import wire
from resourcelease.consensus.entries import OLDEST_VERSION
from resourcelease.consensus.frames import AreYouThere, GoAway, Hello, Line, TurnedAway, check_hello, note_of
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
# Before its first call a node gives the others so long to say that they do not let it in.
_ASK_AROUND_S = 1.0
# How often it asks those that do not call it.
_KNOCK_S = 1.0
# A peer that takes in less than we send is sent nothing more until it has caught up to this.
_BUFFER_BYTES_MAX = 8 * 1024 * 1024


class _Connection(NamedTuple):
    epoch: int
    line: Line
    # Which run of the peer.
    incarnation: int
    # The newest version of entries that it reads.
    reads: int


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
        turned_away: Callable[[TurnedAway], None],
        reads: int,
        written: Callable[[], int] = lambda: OLDEST_VERSION,
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
        # This process is one too many.
        self._turned_away = turned_away
        # The newest version of entries that this node reads, and the one that the cluster writes.
        self._reads = reads
        self._written = written
        self._connections: dict[str, _Connection] = {}
        # One for each other node: calls it, or knocks at it until it calls.
        self._callers: dict[str, asyncio.Task[None]] = {}
        self._called: set[str] = set()
        self._asked_around: asyncio.Task[None] | None = None
        # Who was asked whether it lives, by the number of the question.
        self._questions: dict[int, asyncio.Future[None]] = {}
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
        others = set(self._addresses) - {self._node_id}
        calls = {node for node in members if node > self._node_id} | (set(learners) & others)
        if self._asked_around is None and others:
            self._asked_around = self._spawn(self._ask_around(others))
        for node in set(self._callers) - others | self._called ^ calls:
            if node in self._callers:
                self._callers.pop(node).cancel()
        self._called = calls
        for node in others - set(self._callers):
            self._callers[node] = self._spawn(self._call(node) if node in calls else self._knock(node))

    def send(self, peer: str, frames: Sequence[bytes]) -> None:
        """Sends on the connection in use; lost if there is none."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.line.send(frames)

    def has_room(self, peer: str) -> bool:
        """Whether a peer keeps up with what it is sent."""
        connection = self._connections.get(peer)
        return connection is None or connection.line.unsent_bytes < _BUFFER_BYTES_MAX

    def read_by(self, peer: str) -> int:
        """The newest version of entries that a peer reads; 0 where it is not connected."""
        connection = self._connections.get(peer)
        return 0 if connection is None else connection.reads

    def processor_of(self, peer: str) -> int | None:
        """Where a peer on this machine was running when it last sent; None where that is not known."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.line.sent_from

    @property
    def connected(self) -> list[str]:
        """Peers with a connection."""
        return sorted(self._connections)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_around(self, nodes: Iterable[str]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASK_AROUND_S):
                await asyncio.gather(*map(self._ask, nodes))

    async def _ask(self, node: str) -> None:
        """Asks a node whether it lets this process in; whoever cannot be asked has no objection."""
        try:
            line, _ = await self._dial(node, asks=True)
        except TurnedAway as words:
            self._turned_away(words)
        except (WireError, OSError, TimeoutError):
            pass
        else:
            line.abort()

    async def _knock(self, node: str) -> None:
        while True:
            await asyncio.sleep(_KNOCK_S * random.uniform(0.5, 1.0))  # noqa: S311 spreads calls, guards nothing
            if node not in self._connections:
                await self._ask(node)

    async def _call(self, node: str) -> None:
        if self._asked_around is not None:
            await asyncio.wait((self._asked_around,))
        delay_s = _RETRY_MIN_S
        while True:
            if node not in self._connections:
                try:
                    line, theirs = await self._dial(node)
                    delay_s = _RETRY_MIN_S
                    await self._serve(line, theirs)
                except TurnedAway as words:
                    self._turned_away(words)
                    return
                except WireError as error:
                    logger.warning("calling %s at %s: %s", node, self._addresses.get(node), error)
                except (OSError, TimeoutError):
                    pass
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 spreads calls, guards nothing
            delay_s = min(delay_s * 2, _RETRY_MAX_S)

    async def _dial(self, node: str, *, asks: bool = False) -> tuple[Line, Hello]:
        """A connection, and what the node says of itself."""
        host, port = split_address(self._addresses[node])
        context = self._tls[1] if self._tls else None
        line = Line(self._frame_bytes_max)
        try:
            async with asyncio.timeout(_GREETING_S):
                await asyncio.get_running_loop().create_connection(lambda: line, host, port, ssl=context)
                line.send([self._hello(node, asks=asks)])
                theirs = check_hello(await line.hello, self._cluster_id, self._node_id, node)
                if words := self._too_old(theirs):
                    raise WireError(words)
        except BaseException:
            line.abort()
            raise
        return line, theirs

    def _hello(self, wanted: str, *, asks: bool = False) -> bytes:
        return Hello(self._cluster_id, self._node_id, wanted, self._incarnation, asks, self._reads).to_frame()

    def _too_old(self, theirs: Hello) -> str:
        """Why a node could not follow the log here; empty if it can."""
        written = self._written()
        if theirs.reads >= written:
            return ""
        return (
            f"the release of node {theirs.node_id} reads entries up to version {theirs.reads}, and this cluster writes "
            f"version {written}: install the release that the other nodes run, or a newer one"
        )

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
            if words := self._too_old(theirs):
                logger.warning("a node is turned away: %s", words)
                line.send([GoAway(words).to_frame()])
                await _finish(line)
                return
            # The caller waits no longer than this for an answer, and calls again.
            async with asyncio.timeout(_GREETING_S):
                twin = await self._living_twin(theirs)
            if twin is not None:
                await self._turn_away(theirs, twin, line)
                return
            line.send([self._hello(theirs.node_id)])
            if theirs.asks:
                await _finish(line)
            else:
                await self._serve(line, theirs)
        except (TurnedAway, WireError) as error:
            logger.warning("a caller was turned away: %s", error)
        except (OSError, TimeoutError):
            pass

    async def _living_twin(self, theirs: Hello) -> _Connection | None:
        """The connection with another process under the same id that lives; waits until it is sure that there is none.

        Silence ends a connection (see ``_keep_alive``), and what a dead process left on its way is no answer.
        """
        while True:
            before = self._connections.get(theirs.node_id)
            if before is None or before.incarnation == theirs.incarnation:
                return None
            number = int.from_bytes(os.urandom(7), "big")
            answered = self._questions[number] = asyncio.get_running_loop().create_future()
            try:
                before.line.send([AreYouThere(number).to_frame()])
                await asyncio.wait((answered, before.line.ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                del self._questions[number]
            if answered.done():
                return before

    async def _turn_away(self, theirs: Hello, twin: _Connection, line: Line) -> None:
        here = self._addresses.get(self._node_id, "an unknown address")
        words = (
            f"node {self._node_id} at {here} is connected with another process that runs as {theirs.node_id}, from "
            f"{twin.line.peer_address}, and that one lives; one of the two was started from a copy of the other's "
            "directory: start no copy, a node whose disk is lost is started with an empty one"
        )
        logger.warning("a second process that runs as %s, from %s, is turned away", theirs.node_id, line.peer_address)
        line.send([GoAway(words).to_frame()])
        await _finish(line)

    async def _serve(self, line: Line, theirs: Hello) -> None:
        peer = theirs.node_id
        before = self._connections.pop(peer, None)
        if before is not None:
            before.line.abort()
            self._closed(peer, before.epoch)
        self._epochs += 1
        epoch = self._epochs
        connection = self._connections[peer] = _Connection(epoch, line, theirs.incarnation, theirs.reads)
        self._opened(peer, epoch)

        def take(frames: list[bytes]) -> None:
            for frame in frames:
                if (note := note_of(frame)) is None:
                    self._received(peer, epoch, wire.decode(frame))
                else:
                    self._noted(line, note)
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

    def _noted(self, line: Line, note: AreYouThere | GoAway) -> None:
        if isinstance(note, GoAway):
            raise WireError("a word that only a caller is told")
        if not note.answer:
            line.send([AreYouThere(note.number, answer=True).to_frame()])
            return
        question = self._questions.get(note.number)
        if question is not None and not question.done():
            question.set_result(None)

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


async def _finish(line: Line) -> None:
    """Lets what was sent arrive, and ends the connection."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GREETING_S):
            line.finish()
            await line.ended


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host stands in brackets.

    >>> split_address("[::1]:7101")
    ('::1', 7101)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
