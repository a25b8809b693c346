"""Whether this node's state is the majority's; and the state of this node for one that rebuilds its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from resourcelease.consensus import Busy, Consensus, NoLeader, OutcomeUnknown
from resourcelease.events import NO_ANSWER
from resourcelease.frontdoor.neighbours import Neighbours
from resourcelease.machine import Machine
from resourcelease.model.limits import MAX_NAME
from resourcelease.node.statewatch import StateWatch, judged
from resourcelease.storage import CorruptStore

__all__ = ["Compared", "StateCare", "TakeOut"]

logger = logging.getLogger(__name__)

# To reach the index that was named, and to answer a question that needs no work.
_REACH_S = 10.0
_ANSWER_S = 2.0
# A digest of a large state takes its time.
DIGEST_S = 120.0
_WATCHES_MAX = 8
# How long the log is looked at to see how fast it grows.
_PACE_S = 0.5
# Others are told of a place so many entries ahead where the log grows, so that they hear of it before they are there.
_AHEAD = 10
_REBUILDING_MAX = 16

# What is wrong, and whether the history is as well.
TakeOut = Callable[[str, bool], Awaitable[None]]


class Compared(NamedTuple):
    """What the last comparison came to."""

    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    at_ms: int = 0
    # How many nodes, this one among them, had this node's digest, and how many there are.
    agreeing: int = 0
    members: int = 0


class StateCare:
    """Compares now and then, and answers the questions of the other nodes."""

    def __init__(self, consensus: Consensus, neighbours: Neighbours, watch: StateWatch, take_out: TakeOut) -> None:
        self._consensus = consensus
        self._neighbours = neighbours
        self._watch = watch
        self._take_out = take_out
        self._watching: set[asyncio.Future[None]] = set()
        self.compared = Compared()
        # Nodes that are out, and when they last asked for something.
        self._rebuilding: dict[str, float] = {}
        watch.on_damage = self._damaged
        neighbours.answerers |= {
            "watch": self._asked_to_watch,
            "state": self._asked_for_state,
            "state picture": self._asked_for_picture,
            "state piece": self._asked_for_piece,
        }

    @property
    def rebuilding(self) -> list[str]:
        """The nodes that fetch this node's state."""
        now = time.monotonic()
        return sorted(node for node, at in self._rebuilding.items() if now - at < DIGEST_S)

    async def stop(self) -> None:
        """Ends what is under way."""
        tasks = list(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def compare_now(self) -> None:
        """Names an index at which all nodes take the digest of their state, and compare."""
        index = await self._place_ahead(0)
        await self._tell(self._others(), {"what": "watch", "index": index})
        await self._asked_to_watch({"index": index})

    async def digests_at(self, nodes: Sequence[str], patience_s: float) -> tuple[int, dict[str, str]]:
        """The digests of nodes' states at one index, which comes soon; "" for those that told none in time."""
        until = time.monotonic() + patience_s
        index = await self._place_ahead(0)
        self._watch.want(self._machine, index)
        watch = {"what": "watch", "index": index}
        # All are told, since all compare; nobody here waits for those that are not asked.
        others = self._others()
        self._aside(self._tell([node for node in others if node not in nodes], watch))
        await self._tell([node for node in others if node in nodes], watch, min(_ANSWER_S, patience_s / 4))
        await self._go_on_to(index, min(_REACH_S, patience_s / 2))
        left = max(0.0, until - time.monotonic())
        told = await asyncio.gather(*(self._state_of(node, index, left) for node in nodes))
        return index, dict(zip(nodes, told, strict=True))

    @property
    def _machine(self) -> Machine:
        return cast(Machine, self._consensus.machine)

    def _others(self) -> list[str]:
        return [node for node in self._consensus.status().members if node != self._consensus.node_id]

    async def _place_ahead(self, above: int) -> int:
        """An index that all nodes will hear of before they are there; the present one where nothing happens."""
        before = self._machine.applied_index
        await asyncio.sleep(_PACE_S)
        here = self._machine.applied_index
        grown = here - before
        return max(here + (2 * grown + _AHEAD if grown else 0), above + 1 if above else 0)

    async def _tell(self, nodes: Iterable[str], question: dict[str, Any], patience_s: float = _ANSWER_S) -> None:
        asked = [self._neighbours.ask(node, question, patience_s) for node in nodes]
        await asyncio.gather(*asked, return_exceptions=True)

    def _aside(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _asked_to_watch(self, question: Mapping[str, Any]) -> dict[str, Any]:
        index = int(question["index"])
        if len(self._watching) >= _WATCHES_MAX:
            raise ValueError("too many places are watched already")
        self._watch.want(self._machine, index)
        self._aside(self._compare_at(index))
        return {"index": index}

    async def _asked_for_state(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": await self._watch.digest_at(int(question["index"]), DIGEST_S)}

    async def _compare_at(self, index: int) -> None:
        own = await self._watch.digest_at(index, DIGEST_S)
        if not own:
            return
        nodes = self._others()
        told = await asyncio.gather(*(self._state_of(node, index, DIGEST_S) for node in nodes))
        digests = {self._consensus.node_id: own, **dict(zip(nodes, told, strict=True))}
        agreeing = sum(digest == own for digest in digests.values())
        self.compared = Compared(int(own.partition(":")[0]), time.time_ns() // 1_000_000, agreeing, len(digests))
        votes = judged(own, digests)
        if votes:
            await self._take_out(
                f"its state at index {index} is not that of the majority ({votes} of {len(digests)} nodes), although "
                "its events are",
                False,
            )

    async def _state_of(self, node: str, index: int, patience_s: float) -> str:
        if node == self._consensus.node_id:
            return await self._watch.digest_at(index, patience_s)
        if node not in self._consensus.status().connected:
            return ""
        try:
            said = await self._neighbours.ask(node, {"what": "state", "index": index}, patience_s)
            return str(said["state"])
        except NO_ANSWER:
            return ""

    def _damaged(self, error: CorruptStore) -> None:
        self._aside(self._take_out(f"{error.path}: {error.what}", False))

    # For a node that is out.

    async def _asked_for_picture(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The state at an index above one is kept here for a while, and all others take its digest."""
        node, above = str(question["node"])[:MAX_NAME], int(question["above"])
        if not 0 <= above <= self._consensus.status().commit_index + self._consensus.settings.in_flight_entries_max:
            raise ValueError(f"nobody has entry {above} yet")
        self._rebuilding = {known: self._rebuilding[known] for known in self.rebuilding[:_REBUILDING_MAX]}
        self._rebuilding[node] = time.monotonic()
        logger.warning("node %s is out and rebuilds its state; it asks for the state of this one", node)
        index = await self._place_ahead(max(above, 1))
        self._watch.want(self._machine, index, keep=True)
        await self._tell([other for other in self._others() if other != node], {"what": "watch", "index": index})
        await self._go_on_to(index)
        if not await self._watch.reach(index, _REACH_S):
            raise ValueError(f"index {index} was not reached in time")
        return {"index": index, "members": dict(self._consensus.status().members)}

    async def _go_on_to(self, index: int, patience_s: float = _REACH_S) -> None:
        """Where nothing else happens, has empty entries written until an index is reached."""
        until = time.monotonic() + patience_s
        while self._machine.applied_index < index and (left := until - time.monotonic()) > 0:
            try:
                await self._consensus.barrier(min(_ANSWER_S, left))
            except (Busy, NoLeader, OutcomeUnknown):
                await asyncio.sleep(_PACE_S)

    async def _asked_for_piece(self, question: Mapping[str, Any]) -> dict[str, Any]:
        index, number = int(question["index"]), int(question["number"])
        picture = self._watch.kept
        if picture is None or picture.index != index:
            raise ValueError(f"the state at index {index} is not kept here")
        self._rebuilding[str(question["node"])[:MAX_NAME]] = time.monotonic()
        rows, last = await asyncio.to_thread(picture.piece, number)
        return {"rows": rows, "last": last, "term": picture.term, "head": [list(entry) for entry in picture.head]}
