"""The node's replica of the state, as the front door uses it: ops go in, results come out, and reads stand at a place.

Ops that arrive in one pass of the loop are proposed together, so that many callers with an item each cost little more
than one caller with many.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from resourcelease import v1
from resourcelease.consensus import GATHER_S, Busy, Consensus, NoLeader, OutcomeUnknown, TooLarge
from resourcelease.errands import Told, in_a_task
from resourcelease.frontdoor.departures import Leaving
from resourcelease.frontdoor.refusals import Refused, refused_by_consensus
from resourcelease.machine import Machine
from resourcelease.model.errors import Refusal
from resourcelease.model.events import shard_of
from resourcelease.model.ops import Op, pack_op
from resourcelease.model.results import Result

__all__ = ["LOOK_S", "Replica", "Replicates"]

_CONSENSUS_ERRORS = (Busy, NoLeader, OutcomeUnknown, TooLarge)
# One proposal of gathered ops weighs no more than about this; a larger op goes alone.
_GATHERED_BYTES_MAX = 1 << 20
_GATHERED_OPS_MAX = 1024
# A caller's deadline is answered so much before it, so that the answer arrives.
_MARGIN_S = 0.05
# How often somebody has to look at what is under way.
LOOK_S = 0.1
# So long may nothing at all be applied here before callers are sent elsewhere; longer where elections take longer.
_PATIENCE_S = 1.2
# So many looks long a cluster that turned out to be slow is given all the time that there is.
_SLOW_LOOKS = 600
_NOTHING_APPLIED = "this node has applied nothing for a while, and may be cut off from the others"

_T = TypeVar("_T")
# A packed op, and who waits for its result.
_Gathered = tuple[bytes, "asyncio.Future[Any] | Told"]


class Replicates(Protocol):
    """What the front door asks of consensus."""

    async def propose(self, ops: Sequence[bytes], timeout_s: float) -> Sequence[Any]:
        """Has ops applied in one entry, and gives their results."""

    async def barrier(self, timeout_s: float) -> int:
        """Waits until everything acknowledged before is applied here."""


class Replica:
    """Ops in, results out."""

    def __init__(self, consensus: Consensus, answer_s: float, has_room: Callable[[], bool] = lambda: True) -> None:
        self.consensus = consensus
        # Whether the log of events keeps up with what is applied.
        self._has_room = has_room
        self.answer_s = answer_s
        # What the answers to callers leave by.
        self.leaving = Leaving()
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Gathered] = []
        self._gathering_since = 0.0
        # Batches, and what bounds the time of those who wait by themselves, in the order in which they were begun; and
        # at which look that was. What was given up before its answer came, and in which term.
        self._under_way: dict[int, tuple[int, list[_Gathered] | asyncio.Timeout]] = {}
        self._given_up: dict[int, int] = {}
        self._begun = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Time is counted in looks: a process that stood still has not waited.
        self._looks = 0
        settings = consensus.settings
        self.patience_s = max(_PATIENCE_S, settings.election_max_s + settings.heartbeat_s)
        self._patience = round(self.patience_s / LOOK_S)
        self._applied = consensus.status().applied_index
        # At which look something had been applied; 0: not yet in this run. Whether anything was given up since.
        self._moved = 0
        self._stands = False
        self._slow_until = 0

    @property
    def machine(self) -> Machine:
        """The state here, to be read between awaits only."""
        machine = self.consensus.machine
        assert isinstance(machine, Machine)
        return machine

    def position(self, namespace: str = "") -> v1.LogPosition:
        """Where the state here stands."""
        machine = self.machine
        return v1.LogPosition(
            shard_id=shard_of(namespace),
            raft_index=machine.applied_index,
            raft_term=machine.applied_term,
            lease_clock_ms=machine.clock_ms,
        )

    async def run(self, op: Op, remaining_s: float | None = None) -> Result:
        """One op; raises ``Refused`` if it could not be decided, and gives the machine's answer otherwise."""
        return await self.start(op, remaining_s)

    def start(self, op: Op, remaining_s: float | None = None) -> Awaitable[Result]:
        """The same, begun at once: what is submitted next comes behind it, where both have time enough."""
        if remaining_s is not None and remaining_s - _MARGIN_S < self.answer_s:
            return self._run_alone(op, remaining_s)
        return self.ask(op)

    async def _run_alone(self, op: Op, remaining_s: float) -> Result:
        return (await self.run_together([op], remaining_s))[0]

    async def run_together(self, ops: Sequence[Op], remaining_s: float | None = None) -> Sequence[Result]:
        """Several ops, in one entry of the log."""
        await in_a_task()
        try:
            self._check_room()
            packed = [pack_op(op) for op in ops]
            return await self._patiently(self.consensus.propose(packed, self._time_for(remaining_s)))
        except _CONSENSUS_ERRORS as error:
            raise refused_by_consensus(error) from error

    def submit(self, op: Op) -> "asyncio.Future[Any]":
        """One op, gathered with those of the same moment. A future cancelled before that is not proposed at all."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._gather(op, future)
        return future

    def ask(self, op: Op) -> Told:
        """The same; whoever waits for it is told within the turn of consensus that brings the result."""
        told = Told()
        self._gather(op, told)
        return told

    def _gather(self, op: Op, waiter: "asyncio.Future[Any] | Told") -> None:
        self._gathered.append((pack_op(op), waiter))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._propose_gathered)
            self._gathering_since = time.monotonic()
        elif time.monotonic() - self._gathering_since > GATHER_S:
            # Others can begin with it while the rest of this pass of the loop is done here.
            self._propose_gathered(more=True)

    async def linearize(self, wanted: bool, remaining_s: float | None) -> None:
        """Before a read that is to see everything that was acknowledged before it."""
        if not wanted:
            return
        await in_a_task()
        try:
            await self._patiently(self.consensus.barrier(self._time_for(remaining_s)))
        except _CONSENSUS_ERRORS as error:
            raise refused_by_consensus(error) from error

    async def close(self) -> None:
        """Waits for what is under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._idle.wait()

    @property
    def in_touch(self) -> bool:
        """Whether it knows a leader, and is connected to it."""
        status = self.consensus.status()
        return status.leader is not None and (status.leader == status.node_id or status.leader in status.connected)

    def look(self) -> None:
        """Gives up what was begun long ago if nothing was applied since, so that its callers ask another node.

        It may have happened, or happen yet. Before the first entry of a run they wait, since there is a leader to come.
        """
        self._looks += 1
        applied = self.consensus.status().applied_index
        if applied != self._applied:
            self._applied, self._moved, self._stands = applied, self._looks, False
        if not self._moved or self._looks - self._moved < self._patience or self._looks < self._slow_until:
            return
        for number, (begun, what) in list(self._under_way.items()):
            if self._looks - begun <= self._patience:
                break
            self._stands = True
            if isinstance(what, asyncio.Timeout):
                self._over(number)
                what.reschedule(self._loop.time())
            else:
                self._ended(number, what, OutcomeUnknown(_NOTHING_APPLIED))
                self._given_up[number] = self.machine.applied_term

    def _propose_gathered(self, *, more: bool = False) -> None:
        gathered, self._gathered = self._gathered, []
        batch: list[_Gathered] = []
        size = 0
        for op, waiter in gathered:
            if waiter.done():
                continue
            if batch and (size + len(op) > _GATHERED_BYTES_MAX or len(batch) >= _GATHERED_OPS_MAX):
                self._begin(batch, more=True)
                batch, size = [], 0
            batch.append((op, waiter))
            size += len(op)
        if batch:
            self._begin(batch, more=more)

    def _begin(self, batch: list[_Gathered], *, more: bool) -> None:
        number = self._start(batch)
        try:
            self._check_room()
            told = partial(self._ended, number, batch)
            self.consensus.begin([op for op, _ in batch], self._time_for(None), told, more=more)
        except Exception as error:
            self._ended(number, batch, error)

    def _ended(self, number: int, batch: list[_Gathered], answer: Sequence[Any] | Exception) -> None:
        if not self._over(number):
            self._came_late(number, answer)
            return
        if isinstance(answer, Exception):
            known = isinstance(answer, _CONSENSUS_ERRORS)
            for _, waiter in batch:
                if not waiter.done():
                    waiter.set_exception(refused_by_consensus(answer) if known else answer)
        else:
            for (_, waiter), result in zip(batch, answer, strict=True):
                if not waiter.done():
                    waiter.set_result(result)
        self.leaving.leave()

    async def _patiently(self, asking: Awaitable[_T]) -> _T:
        """Waits, in a task, for one who asks by itself, until ``look`` gives it up."""
        number = 0
        try:
            async with asyncio.timeout(None) as bound:
                number = self._start(bound)
                return await asking
        except TimeoutError:
            raise OutcomeUnknown(_NOTHING_APPLIED) from None
        finally:
            self._over(number)

    def _start(self, what: list[_Gathered] | asyncio.Timeout) -> int:
        self._begun += 1
        self._under_way[self._begun] = self._looks, what
        self._idle.clear()
        return self._begun

    def _over(self, number: int) -> bool:
        """Whether it was under way."""
        if self._under_way.pop(number, None) is None:
            return False
        if not self._under_way:
            self._idle.set()
        return True

    def _came_late(self, number: int, answer: Sequence[Any] | Exception) -> None:
        """After it was given up. Where it is answered under the same leader, the cluster is slow, and no worse."""
        if self._given_up.pop(number, None) == self.machine.applied_term and not isinstance(answer, Exception):
            self._slow_until = self._looks + _SLOW_LOOKS

    def _time_for(self, remaining_s: float | None) -> float:
        """What consensus is given. Once things were given up no more than that, so that they do not pile up in it."""
        answer_s = min(self.answer_s, self.patience_s) if self._stands else self.answer_s
        return answer_s if remaining_s is None else max(min(answer_s, remaining_s - _MARGIN_S), 0.001)

    def _check_room(self) -> None:
        if not self._has_room():
            raise NoLeader("the event log of this node waits for its disk, so it takes no changes")


def expect(result: Result, kind: type[_T], fields: Callable[[], dict[str, str]] | dict[str, str] | None = None) -> _T:
    """The result as the kind that its op gives; a refusal is raised."""
    if isinstance(result, Refusal):
        raise Refused.of(result, fields() if callable(fields) else fields)
    assert isinstance(result, kind), result
    return result
