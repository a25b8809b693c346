"""What nodes tell each other beside consensus: where clients reach them, and digests of their history.

Each node says its own client address when it is asked, so no configuration has to repeat it and none can be stale.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from resourcelease.consensus import Applied
from resourcelease.events import NO_ANSWER
from resourcelease.frontdoor.replica import Replica

__all__ = ["Digest", "Neighbours"]

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_ADDRESS_MAX = 256
# Digests of so many entries are remembered, for a neighbour that compares.
_CHAINS_MAX = 20_000
# How long a node waits to reach the index that another wants to compare.
_REACH_S = 5.0
# A digest over the whole state is computed only where that takes no time that would be missed.
_STATE_ITEMS_MAX = 50_000


class Digest(NamedTuple):
    """What one node says of itself at an index; digests in hex, "" where it cannot tell."""

    at: int
    chain: str
    state_index: int
    state: str
    last_sequence: int
    problem: str


class Neighbours:
    """The other nodes, as this one knows them."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._addresses: dict[str, str] = {}
        self._direct: dict[str, str] = {}
        self._own = ""
        self._own_direct = ""
        self._chains: OrderedDict[int, str] = OrderedDict()
        self._applied = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        # Who answers questions of further kinds.
        self.answerers: dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {}
        questions = replica.consensus.questions
        questions.on_asked = self._answer
        questions.on_opened = self._get_to_know

    def start(self, own: str, direct: str = "") -> None:
        """From now on this node tells its address, and where it takes direct streams."""
        self._own, self._own_direct = own, direct
        self._learn(self._replica.consensus.node_id, own, direct)
        for peer in self._replica.consensus.status().connected:
            self._get_to_know(peer)

    def address_of(self, node: str | None) -> str:
        """Where clients reach a node; "" if that is not known."""
        return self._addresses.get(node or "", "")

    def direct_address_of(self, node: str) -> str:
        """Where a node takes direct streams, as host:port#key; "" if nowhere, or not known."""
        return self._direct.get(node, "")

    def applied(self, entries: Sequence[Applied]) -> None:
        """Keeps the digest of each entry."""
        for entry in entries:
            chain: bytes = getattr(entry.outcome, "chain", b"")
            self._chains[entry.index] = chain.hex()
            if len(self._chains) > _CHAINS_MAX:
                self._chains.popitem(last=False)
        self._applied.set()

    async def digest_of(
        self, node: str, index: int, *, state: bool = True, patience_s: float = _REACH_S + _ANSWER_S
    ) -> Digest | None:
        """What a node has at an index, also the digest over its ``state`` if that is wanted; None without an answer."""
        if node == self._replica.consensus.node_id:
            return await self._digest(index, state=state)
        if node not in self._replica.consensus.status().connected:
            return None
        try:
            said = await self.ask(node, {"what": "digest", "index": index, "state": state}, patience_s)
            return Digest(**{name: kind(said[name]) for name, kind in Digest.__annotations__.items()})
        except NO_ANSWER:
            return None

    async def stop(self) -> None:
        """Asks nothing more."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _get_to_know(self, peer: str) -> None:
        task = asyncio.ensure_future(self._meet(peer))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _meet(self, peer: str) -> None:
        try:
            said = await self.ask(peer, self._introduction, _ANSWER_S)
        except (TimeoutError, ValueError, TypeError):
            return
        self._learn(peer, said.get("grpc"), said.get("direct"))

    @property
    def _introduction(self) -> dict[str, Any]:
        return {"what": "address", "mine": self._own, "direct": self._own_direct}

    def _learn(self, peer: str, address: object, direct: object) -> None:
        if isinstance(address, str) and address and len(address) <= _ADDRESS_MAX:
            self._addresses[peer] = address
        self._direct[peer] = direct if isinstance(direct, str) and len(direct) <= _ADDRESS_MAX else ""

    async def ask(self, peer: str, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """A question to another node; ``TimeoutError`` or another error if there is no good answer."""
        body = await self._replica.consensus.questions.ask(peer, msgpack.packb(question), timeout_s)
        said = msgpack.unpackb(body)
        if not isinstance(said, dict):
            raise TypeError("an answer is a map")
        return said

    async def _answer(self, peer: str, body: bytes) -> bytes:
        question = msgpack.unpackb(body)
        if not isinstance(question, dict):
            raise TypeError("a question is a map")
        told: dict[str, Any] = {}
        if question.get("what") == "address":
            self._learn(peer, question.get("mine"), question.get("direct"))
            told = {"grpc": self._own, "direct": self._own_direct}
        elif question.get("what") == "digest":
            told = (await self._digest(int(question["index"]), state=question.get("state", True)))._asdict()
        elif question.get("what") in self.answerers:
            told = await self.answerers[question["what"]](question)
        packed: bytes = msgpack.packb(told)
        return packed

    async def _digest(self, index: int, *, state: bool) -> Digest:
        machine = self._replica.machine
        problem = ""
        try:
            async with asyncio.timeout(_REACH_S):
                while self._replica.machine.applied_index < index:
                    self._applied.clear()
                    await self._applied.wait()
        except TimeoutError:
            problem = f"it has applied only up to index {self._replica.machine.applied_index}"
        machine = self._replica.machine
        chain = self._chains.get(index, "")
        if not chain and machine.applied_index == index:
            chain = machine.chain().hex()
        queues = [queue for name in machine.namespaces() if (queue := machine.queue(name)) is not None]
        small = (
            state and sum(each.pending + each.delayed + each.active + each.dead for each in queues) <= _STATE_ITEMS_MAX
        )
        told = machine.digest().hex() if small else ""
        return Digest(index, chain, machine.applied_index, told, machine.sequence_number, problem)
