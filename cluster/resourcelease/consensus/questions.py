"""Small questions from node to node beside the protocol: who are you, what have you got. Lost ones are not repeated."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from resourcelease.consensus.wire import Message

__all__ = ["Questions"]

logger = logging.getLogger(__name__)

_ASKED_MAX = 1024


class Questions:
    """What this node asks of others and is asked; bodies are opaque here.

    ``on_asked`` answers; ``on_opened`` hears of each new connection, when it is a good time to ask.
    """

    def __init__(self, send: Callable[[str, Message], None]) -> None:
        self._send = send
        self._count = 0
        self._asked: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.on_asked: Callable[[str, bytes], Awaitable[bytes]] | None = None
        self.on_opened: Callable[[str], None] | None = None

    async def ask(self, peer: str, body: bytes, timeout_s: float) -> bytes:
        """The answer of a peer; ``TimeoutError`` if none comes."""
        self._count += 1
        number = self._count
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = (peer, answer)
        self._send(peer, {"type": "ask", "number": number, "body": body})
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._asked[number]

    def opened(self, peer: str) -> None:
        """A connection is up."""
        if self.on_opened is not None:
            self.on_opened(peer)

    def received(self, peer: str, message: Message) -> None:
        """A question or an answer came."""
        if message["type"] == "answer":
            asked, answer = self._asked.get(message["number"], ("", None))
            if answer is not None and asked == peer and not answer.done():
                answer.set_result(message["body"])
        elif self.on_asked is not None and len(self._answering) < _ASKED_MAX:
            task = asyncio.ensure_future(self._answer(peer, message["number"], message["body"]))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """Answers no more."""
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, peer: str, number: int, body: bytes) -> None:
        assert self.on_asked is not None
        try:
            answer = await self.on_asked(peer, body)
        except Exception:
            logger.warning("a question of %s was not answered", peer, exc_info=True)
            return
        self._send(peer, {"type": "answer", "number": number, "body": answer})
