"""What a node does for its own health: mends its history, and takes itself out if it tells another one."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

from resourcelease import v1
from resourcelease.consensus import Consensus
from resourcelease.events import Repair, Scrubbed, Scrubber
from resourcelease.frontdoor import FrontDoor
from resourcelease.machine import Machine
from resourcelease.node.eventlog import EventLog, log_options
from resourcelease.node.schema import EventsSection
from resourcelease.node.statecare import StateCare
from resourcelease.node.statewatch import StateWatch
from resourcelease.node.takeout import Mark, TakenOut, mark_out, rebuilds

__all__ = ["Upkeep"]

logger = logging.getLogger(__name__)

_COMPARE_EVERY_S = 10.0
# The state is digested seldom: that takes time on all nodes.
_STATE_EVERY_S = 60.0


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
        self.states = StateCare(consensus, door.neighbours, watch, self._take_out)
        door.exchange.states = self.states.digests_at
        # What a start found there; the node is down while it rebuilds.
        self._rebuilds = rebuilds(directory)
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.states.stop()
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
            state=self._state(),
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

    def _state(self) -> v1.StateStatus:
        """How the state compares with the other nodes'."""
        compared = self.states.compared
        status = v1.StateStatus(
            compared_index=compared.index,
            compared_at_ms=compared.at_ms,
            agreeing=compared.agreeing,
            compared_nodes=compared.members,
            rebuilding_node_ids=self.states.rebuilding,
            rebuilds=len(self._rebuilds),
        )
        if self._rebuilds:
            last = self._rebuilds[-1]
            status.rebuilt_at_ms, status.rebuilt_index = last.at_ms, last.index
            status.rebuilt_from, status.rebuilt_because = last.source, last.reason
        return status

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
                await self._take_out(told, True)
                return

    async def _take_out(self, told: str, history: bool) -> None:
        error = TakenOut(
            f"this node is out: {told}. It serves nobody and takes no part until it has taken over the state of a "
            f"majority; what it has now is kept in {self._directory / 'put-aside'}"
        )
        mark = Mark(told, history, dict(self._consensus.status().members))
        await asyncio.to_thread(mark_out, self._directory, mark)
        self._on_failure(error)

    async def _keep_watch(self) -> None:
        """The leader has all nodes compare their state now and then."""
        while True:
            await asyncio.sleep(self.state_every_s)
            if self._consensus.is_leader:
                await self.states.compare_now()

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
