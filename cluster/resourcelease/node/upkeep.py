"""What a node does for its own health: mends its history, and takes itself out if it tells another one."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from resourcelease.consensus import Consensus
from resourcelease.events import Repair
from resourcelease.frontdoor import FrontDoor
from resourcelease.node.eventlog import EventLog, log_options
from resourcelease.node.schema import EventsSection
from resourcelease.storage import StorageError
from resourcelease.storage.layout import write_json

__all__ = ["TakenOut", "Upkeep", "check_not_out"]

logger = logging.getLogger(__name__)

_COMPARE_EVERY_S = 10.0
_MARK = "taken-out.json"


class TakenOut(StorageError):
    """This node's history is not that of the majority, so it serves nobody until an operator has rebuilt it."""


class Upkeep:
    """Runs beside the front door of a node."""

    compare_every_s = _COMPARE_EVERY_S

    def __init__(
        self,
        directory: Path,
        consensus: Consensus,
        door: FrontDoor,
        log: EventLog,
        events: EventsSection,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._directory = directory
        self._consensus = consensus
        self._neighbours = door.neighbours
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self.repair = Repair(
            log.archive,
            door.neighbours.ask,
            self._others,
            retention=log_options(events).retention,
            bodies=events.bodies,
        )
        self._repairs = events.repair
        if events.repair:
            log.archive.hopeful = lambda: self.repair.hopeful
            log.archive.on_trouble = self.repair.look
            door.exchange.on_damage = self.repair.look

    def start(self) -> None:
        """Begins."""
        if self._repairs:
            self.repair.start()
        self._task = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.repair.stop()

    def _others(self) -> list[str]:
        return [node for node in self._consensus.status().members if node != self._consensus.node_id]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.compare_every_s)
            told = await self._differs()
            if told:
                error = TakenOut(
                    f"this node is out: {told}. It serves nobody and takes no part. Keep {self._directory} for whoever "
                    "looks for the cause; remove the node from the cluster, and add one with a new name and an empty "
                    "directory, which is sent a snapshot and the history by the others"
                )
                await asyncio.to_thread(_mark_out, self._directory, str(error))
                self._on_failure(error)
                return

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
