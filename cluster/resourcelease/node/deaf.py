"""A node that is out: connected with the others and deaf to all of the protocol, so it can only ask them things.

It votes for nobody and acknowledges nothing, as if it were not there.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgpack

from resourcelease.consensus import wire
from resourcelease.consensus.frames import TurnedAway
from resourcelease.consensus.peers import Peers, TlsContexts
from resourcelease.consensus.questions import Questions
from resourcelease.consensus.wire import Message
from resourcelease.model.ops import ENTRY_VERSION

__all__ = ["DeafNode"]


class DeafNode:
    """Asks, and does nothing else; ``listen``, and ``close`` in the end."""

    def __init__(self, cluster_id: str, node_id: str, frame_bytes_max: int, tls: TlsContexts | None) -> None:
        self._peers = Peers(
            cluster_id=cluster_id,
            node_id=node_id,
            incarnation=int.from_bytes(os.urandom(7), "big"),
            frame_bytes_max=frame_bytes_max,
            tls=tls,
            opened=lambda peer, epoch: None,
            closed=lambda peer, epoch: None,
            received=self._received,
            settled=lambda: None,
            gone=lambda peer: None,
            turned_away=self._turned_away,
            reads=ENTRY_VERSION,
        )
        self._questions = Questions(lambda peer, message: self._peers.send(peer, [wire.encode(message)]))
        # Ends with the word of another node that this process is one too many.
        self.turned_away: asyncio.Future[TurnedAway] = asyncio.get_running_loop().create_future()

    async def listen(self, address: str, members: Mapping[str, str]) -> None:
        """Opens the port and calls the others."""
        await self._peers.listen(address)
        self._peers.want(members, {})

    async def close(self) -> None:
        """Ends everything."""
        await self._questions.close()
        await self._peers.close()

    @property
    def connected(self) -> list[str]:
        """The nodes that can be asked."""
        return self._peers.connected

    async def ask(self, peer: str, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer of a node; ``TimeoutError`` or another error if there is no good one."""
        said = msgpack.unpackb(await self._questions.ask(peer, msgpack.packb(dict(question)), timeout_s))
        if not isinstance(said, dict):
            raise TypeError("an answer is a map")
        return said

    def _received(self, peer: str, epoch: int, message: Message) -> None:
        if message["type"] == "answer":
            self._questions.received(peer, message)

    def _turned_away(self, words: TurnedAway) -> None:
        if not self.turned_away.done():
            self.turned_away.set_result(words)
