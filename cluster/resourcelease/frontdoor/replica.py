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
from resourcelease.frontdoor.refusals import Refused, refused_by_consensus
from resourcelease.machine import Machine
from resourcelease.model.errors import Refusal
from resourcelease.model.events import shard_of
from resourcelease.model.ops import Op, pack_op
from resourcelease.model.results import Result

__all__ = ["Replica", "Replicates"]

_CONSENSUS_ERRORS = (Busy, NoLeader, OutcomeUnknown, TooLarge)
# One proposal of gathered ops weighs no more than about this; a larger op goes alone.
_GATHERED_BYTES_MAX = 1 << 20
_GATHERED_OPS_MAX = 1024
# A caller's deadline is answered so much before it, so that the answer arrives.
_MARGIN_S = 0.05

_T = TypeVar("_T")
# A packed op, and who waits for its result.
_Gathered = tuple[bytes, "asyncio.Future[Any]"]


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
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Gathered] = []
        self._gathering_since = 0.0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

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
        return self.submit(op)

    async def _run_alone(self, op: Op, remaining_s: float) -> Result:
        return (await self.run_together([op], remaining_s))[0]

    async def run_together(self, ops: Sequence[Op], remaining_s: float | None = None) -> Sequence[Result]:
        """Several ops, in one entry of the log."""
        timeout_s = self.answer_s if remaining_s is None else min(self.answer_s, remaining_s - _MARGIN_S)
        try:
            return await self._propose_packed([pack_op(op) for op in ops], max(timeout_s, 0.001))
        except _CONSENSUS_ERRORS as error:
            raise refused_by_consensus(error) from error

    def submit(self, op: Op) -> "asyncio.Future[Any]":
        """One op, gathered with those of the same moment. A future cancelled before that is not proposed at all."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._gathered.append((pack_op(op), future))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._propose_gathered)
            self._gathering_since = time.monotonic()
        elif time.monotonic() - self._gathering_since > GATHER_S:
            # Others can begin with it while the rest of this pass of the loop is done here.
            self._propose_gathered(more=True)
        return future

    async def linearize(self, wanted: bool, remaining_s: float | None) -> None:
        """Before a read that is to see everything that was acknowledged before it."""
        if not wanted:
            return
        timeout_s = self.answer_s if remaining_s is None else min(self.answer_s, remaining_s - _MARGIN_S)
        try:
            await self.consensus.barrier(max(timeout_s, 0.001))
        except _CONSENSUS_ERRORS as error:
            raise refused_by_consensus(error) from error

    async def close(self) -> None:
        """Waits for what is under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._idle.wait()

    def _propose_gathered(self, *, more: bool = False) -> None:
        gathered, self._gathered = self._gathered, []
        batch: list[_Gathered] = []
        size = 0
        for op, future in gathered:
            if future.done():
                continue
            if batch and (size + len(op) > _GATHERED_BYTES_MAX or len(batch) >= _GATHERED_OPS_MAX):
                self._begin(batch, more=True)
                batch, size = [], 0
            batch.append((op, future))
            size += len(op)
        if batch:
            self._begin(batch, more=more)

    def _begin(self, batch: list[_Gathered], *, more: bool) -> None:
        self._under_way += 1
        self._idle.clear()
        try:
            self._check_room()
            self.consensus.begin([op for op, _ in batch], self.answer_s, partial(self._ended, batch), more=more)
        except Exception as error:
            self._ended(batch, error)

    def _ended(self, batch: list[_Gathered], answer: Sequence[Any] | Exception) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()
        if isinstance(answer, Exception):
            for _, future in batch:
                if not future.done():
                    known = isinstance(answer, _CONSENSUS_ERRORS)
                    future.set_exception(refused_by_consensus(answer) if known else answer)
            return
        for (_, future), result in zip(batch, answer, strict=True):
            if not future.done():
                future.set_result(result)

    async def _propose_packed(self, ops: Sequence[bytes], timeout_s: float) -> Sequence[Any]:
        self._check_room()
        return await self.consensus.propose(ops, timeout_s)

    def _check_room(self) -> None:
        if not self._has_room():
            raise NoLeader("the event log of this node waits for its disk, so it takes no changes")


def expect(result: Result, kind: type[_T], fields: Callable[[], dict[str, str]] | dict[str, str] | None = None) -> _T:
    """The result as the kind that its op gives; a refusal is raised."""
    if isinstance(result, Refusal):
        raise Refused.of(result, fields() if callable(fields) else fields)
    assert isinstance(result, kind), result
    return result
