"""A worker's line to its cluster: frames and answers over one stream after the other, whichever node is up."""

import asyncio
from collections.abc import Callable

from resourcelease import v1
from resourcelease.client.caller import Caller
from resourcelease.client.errors import NoLeader, OutcomeUnknown, ResourceLeaseError, error_of_item
from resourcelease.client.nodes import Nodes
from resourcelease.client.ride import Frames, Ride
from resourcelease.errands import Told

__all__ = ["Line"]

# How often a node may say that it has no leader before the line moves to another.
PATIENCE = 3


class Line:
    """Asks under operation ids that stay the same over reconnects, so every frame takes effect once.

    ``opening`` makes the first message of a stream; ``grant`` says how much credit goes with what is written next;
    ``receive`` takes what the node sends of its own accord; ``broken`` is told the error after which no node will do.
    """

    def __init__(
        self,
        caller: Caller,
        opening: Callable[[], v1.WorkRequest],
        grant: Callable[[], int],
        receive: Callable[[v1.WorkResponse], None],
        broken: Callable[[ResourceLeaseError], None],
    ) -> None:
        self._caller = caller
        self._opening = opening
        self._grant = grant
        self._pass_on = receive
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._refusals: dict[str, int] = {}
        self._opened = 0
        self._closing = False
        self._leaving = False
        self._error: ResourceLeaseError | None = None
        self._ride: Ride | None = None
        self._task = self._loop.create_task(self._run())

    def wake(self) -> None:
        """There may be credit to grant."""
        self._frames.wake.set()

    async def ask(self, request: v1.WorkRequest, timeout: float) -> v1.WorkDone:
        """Sends a frame, again and elsewhere if need be, until it is answered."""
        if self._error is not None:
            raise self._error
        request.operation_id = self._caller.operation_id()
        told = self._frames.add(request)
        timer = self._loop.call_later(timeout, _overdue, told)
        try:
            done: v1.WorkDone = await told
            return done
        finally:
            timer.cancel()
            self._frames.unanswered.pop(request.operation_id, None)
            self._refusals.pop(request.operation_id, None)

    async def close(self) -> None:
        """Writes what is to be written, hears what is under way, and ends the stream in order."""
        self._closing = True
        if self._ride is not None and self._opened:
            self._ride.end()
            await asyncio.wait([self._task], timeout=self._caller.timeout)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._frames.fail(OutcomeUnknown("the stream was closed before the answer came"))

    async def _run(self) -> None:
        nodes = self._caller.nodes
        await nodes.look_around()
        nodes.staying += 1
        try:
            await self._ride_on(nodes)
        finally:
            nodes.staying -= 1

    async def _ride_on(self, nodes: Nodes) -> None:
        failures = 0
        while not self._closing:
            node, opened = nodes.current(), self._opened
            self._leaving = False
            self._ride = Ride(nodes, node, self._frames, self._credit, self._receive)
            error: ResourceLeaseError | None = None
            try:
                await self._ride.run(self._opening())
            except ResourceLeaseError as met:
                error = met
            finally:
                self._ride = None
            if self._closing:
                return
            if error is not None and not error.transient:
                self._error = error
                self._frames.fail(error)
                self._broken(error)
                return
            failures = 0 if self._opened > opened else failures + 1
            nodes.failed(node)
            if failures or nodes.current().resting_until > self._loop.time():
                await asyncio.sleep(self._caller.backoff.wait(failures, self._caller.chance))

    def _credit(self) -> int:
        return 0 if self._leaving else self._grant()

    def _receive(self, message: v1.WorkResponse) -> None:
        if message.HasField("done"):
            self._answer(message.done)
        elif message.HasField("go_away"):
            # The old stream is read to its end first, so that nothing that was pushed is lost on the way.
            self._leaving = True
            if self._ride is not None:
                self._ride.end()
        else:
            self._opened += message.HasField("opened")
            self._pass_on(message)

    def _answer(self, done: v1.WorkDone) -> None:
        found = self._frames.unanswered.get(done.operation_id)
        if found is None or found[1].done():
            return
        if not done.HasField("error"):
            found[1].set_result(done)
            return
        error = error_of_item(done.error)
        if not isinstance(error, NoLeader | OutcomeUnknown):
            found[1].set_exception(error)
            return
        times = self._refusals[done.operation_id] = self._refusals.get(done.operation_id, 0) + 1
        # A node that does not know the outcome has waited for it long enough; another may be nearer to a leader.
        if (times % PATIENCE == 0 or isinstance(error, OutcomeUnknown)) and self._ride is not None:
            self._ride.give_up(str(error))
            return
        wait = self._caller.backoff.wait(times, self._caller.chance, error.retry_after)
        self._loop.call_later(wait, self._frames.again, done.operation_id)


def _overdue(told: Told) -> None:
    if not told.done():
        told.set_exception(OutcomeUnknown("no node answered in time; what was sent may or may not have taken effect"))
