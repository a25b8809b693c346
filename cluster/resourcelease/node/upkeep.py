"""What a node does for its own health: mends its history, and takes itself out if it tells another one."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from resourcelease import v1
from resourcelease.consensus import Consensus
from resourcelease.events import Repair, Scrubbed, Scrubber
from resourcelease.frontdoor import FrontDoor
from resourcelease.machine import Machine
from resourcelease.node.eventlog import EventLog, log_options
from resourcelease.node.schema import EventsSection
from resourcelease.node.statewatch import StateWatch, judged
from resourcelease.storage import StorageError
from resourcelease.storage.layout import write_json

__all__ = ["TakenOut", "Upkeep", "check_not_out"]

logger = logging.getLogger(__name__)

_COMPARE_EVERY_S = 10.0
# The state is digested seldom: that takes time on all nodes.
_STATE_EVERY_S = 60.0
# To reach the index that was named, and to say so.
_REACH_S = 10.0
_ANSWER_S = 2.0
_WATCHES_MAX = 4
_MARK = "taken-out.json"


class TakenOut(StorageError):
    """This node's history or state is not the majority's, so it serves nobody until an operator has rebuilt it."""


class Upkeep:
    """Runs beside the front door of a node."""

    compare_every_s = _COMPARE_EVERY_S
    state_every_s = _STATE_EVERY_S

    def __init__(
        self,
        directory: Path,
        consensus: Consensus,
        door: FrontDoor,
        log: EventLog,
        events: EventsSection,
        watch: StateWatch,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._directory = directory
        self._consensus = consensus
        self._neighbours = door.neighbours
        self._on_failure = on_failure
        self._watch = watch
        self._watching: set[asyncio.Task[None]] = set()
        door.neighbours.answerers |= {"watch": self._asked_to_watch, "state": self._asked_for_state}
        self._tasks: list[asyncio.Task[None]] = []
        self.repair = Repair(
            log.archive,
            door.neighbours.ask,
            self._others,
            retention=log_options(events).retention,
            bodies=events.bodies,
        )
        self.scrubber: Scrubber | None = None
        if events.scrub:
            self.scrubber = Scrubber(
                log.archive.log.directory,
                lambda path: self._from_afar(lambda: log.archive.on_trouble([path])),
                lambda: self._from_afar(self.repair.compare),
                bytes_per_s=events.scrub_bytes_per_s,
                rest_s=events.scrub_every_hours * 3600.0,
            )
        self._log = log
        door.cluster.history = self._history
        self._loop = asyncio.get_running_loop()
        self._repairs = events.repair
        if events.repair:
            log.archive.hopeful = lambda: self.repair.hopeful
            log.archive.on_trouble = self.repair.look
            door.exchange.on_damage = self.repair.look

    def start(self) -> None:
        """Begins."""
        if self._repairs:
            self.repair.start()
        if self.scrubber is not None:
            self.scrubber.start()
        self._tasks = [asyncio.ensure_future(each) for each in (self._keep(), self._keep_watch())]

    async def stop(self) -> None:
        """Ends."""
        tasks = [*self._tasks, *self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.repair.stop()
        if self.scrubber is not None:
            await asyncio.to_thread(self.scrubber.stop)

    @property
    def _machine(self) -> Machine:
        return cast(Machine, self._consensus.machine)

    def _history(self) -> v1.HistoryStatus:
        """How the files here are, for ``Status``."""
        scrubbed = self.scrubber.found if self.scrubber is not None else Scrubbed()
        head = self._machine.sequence_number
        return v1.HistoryStatus(
            scrub_rounds=scrubbed.rounds,
            scrubbed_at_ms=scrubbed.round_ended_ms,
            files_scrubbed=scrubbed.files,
            files_damaged=scrubbed.damaged,
            segments_mended=self.repair.mended,
            readers=[
                v1.HistoryReader(
                    name=reader.name,
                    holder=reader.holder,
                    position=max(0, reader.position),
                    lag=max(0, head - max(0, reader.position)),
                )
                for reader in self._log.readers.registered()
            ],
        )

    def _from_afar(self, tell: Callable[[], None]) -> None:
        """From another thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell)

    def _others(self) -> list[str]:
        return [node for node in self._consensus.status().members if node != self._consensus.node_id]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.compare_every_s)
            told = await self._differs()
            if told:
                await self._take_out(told)
                return

    async def _take_out(self, told: str) -> None:
        error = TakenOut(
            f"this node is out: {told}. It serves nobody and takes no part. Keep {self._directory} for whoever "
            "looks for the cause; remove the node from the cluster, and add one with a new name and an empty "
            "directory, which is sent a snapshot and the history by the others"
        )
        await asyncio.to_thread(_mark_out, self._directory, str(error))
        self._on_failure(error)

    async def _keep_watch(self) -> None:
        """The leader names an index now and then, at which all nodes take the digest of their state."""
        while True:
            await asyncio.sleep(self.state_every_s)
            if not self._consensus.is_leader:
                continue
            before = self._machine.applied_index
            await asyncio.sleep(1.0)
            rate = self._machine.applied_index - before
            # So far ahead that the others hear of it before they are there; where nothing happens they are there.
            index = self._machine.applied_index + (2 * rate + 10 if rate else 0)
            question = {"what": "watch", "index": index}
            asked = [self._neighbours.ask(node, question, _ANSWER_S) for node in self._others()]
            await asyncio.gather(self._asked_to_watch(question), *asked, return_exceptions=True)

    async def _asked_to_watch(self, question: Mapping[str, Any]) -> dict[str, Any]:
        index = int(question["index"])
        if len(self._watching) >= _WATCHES_MAX:
            raise ValueError("too many places are watched already")
        self._watch.want(self._machine, index)
        task = asyncio.ensure_future(self._compare_state(index))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return {"index": index}

    async def _asked_for_state(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": await self._watch.digest_at(int(question["index"]), _REACH_S)}

    async def _compare_state(self, index: int) -> None:
        own = await self._watch.digest_at(index, _REACH_S)
        if not own:
            return
        nodes = self._others()
        told = await asyncio.gather(*(self._state_of(node, index) for node in nodes))
        votes = judged(own, {self._consensus.node_id: own, **dict(zip(nodes, told, strict=True))})
        if votes:
            members = len(nodes) + 1
            await self._take_out(
                f"its state at index {index} is not that of the majority ({votes} of {members} nodes), although its "
                "events are"
            )

    async def _state_of(self, node: str, index: int) -> str:
        try:
            said = await self._neighbours.ask(node, {"what": "state", "index": index}, _REACH_S + _ANSWER_S)
            return str(said["state"])
        except (TimeoutError, ValueError, TypeError, LookupError):
            return ""

    async def _differs(self) -> str:
        """How this node differs from the majority of all members; "" if it does not, or nobody can tell."""
        index = self._consensus.machine.applied_index
        others = self._others()
        nodes = [self._consensus.node_id, *others]
        digests = await asyncio.gather(*(self._neighbours.digest_of(node, index, state=False) for node in nodes))
        own = digests[0]
        chains = Counter(digest.chain for digest in digests if digest is not None and digest.chain)
        if own is None or not own.chain or len(chains) < 2:
            return ""
        usual, votes = chains.most_common(1)[0]
        if usual == own.chain or votes * 2 <= len(nodes):
            return ""
        return f"its events up to index {index} are not those of the majority ({votes} of {len(nodes)} nodes)"


def check_not_out(directory: Path) -> None:
    """Raises ``TakenOut`` if the node in a directory took itself out."""
    path = directory / _MARK
    if path.exists():
        raise TakenOut(f"{path} says why this node does not start: it took itself out of the cluster")


def _mark_out(directory: Path, reason: str) -> None:
    write_json(directory / _MARK, {"reason": reason, "at_ms": time.time_ns() // 1_000_000})
