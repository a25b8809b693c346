"""One connection of a worker's stream to one node: frames out, leases and answers in."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from grpc import aio

from resourcelease import v1
from resourcelease.client.direct import attend, is_ready
from resourcelease.client.errors import OutcomeUnknown, ResourceLeaseError, error_of_status
from resourcelease.client.nodes import Node, Nodes
from resourcelease.errands import Told

__all__ = ["Frames", "Ride"]

# Frames that are not answered for so long have their node asked whether it lives, and so long may it take to say so.
PROBE_AFTER = 1.0
# How long opening a stream may take, and how long ending one in order.
OPEN_SECONDS = 5.0
END_SECONDS = 3.0


class Frames:
    """Frames on their way: those to be written, and those written that were not answered yet, in order."""

    def __init__(self) -> None:
        self.outbox: deque[v1.WorkRequest] = deque()
        self.unanswered: dict[str, tuple[v1.WorkRequest, Told]] = {}
        self.wake = asyncio.Event()
        # Writes a frame at once, or says that it cannot.
        self.write_now: Callable[[v1.WorkRequest], bool] | None = None

    def add(self, request: v1.WorkRequest) -> Told:
        """Hands a frame over; what is told is its answer."""
        told = Told()
        self.unanswered[request.operation_id] = (request, told)
        if self.outbox or self.write_now is None or not self.write_now(request):
            self.outbox.append(request)
            self.wake.set()
        return told

    def again(self, operation_id: str) -> None:
        """Writes a frame again, if it is still waited for."""
        found = self.unanswered.get(operation_id)
        if found is not None:
            self.outbox.append(found[0])
            self.wake.set()

    def start_over(self) -> None:
        """On a new connection everything that was not answered is written again."""
        self.outbox = deque(request for request, _ in self.unanswered.values())
        self.wake.set()

    def fail(self, error: ResourceLeaseError) -> None:
        """Gives up on all frames."""
        unanswered, self.unanswered = self.unanswered, {}
        self.outbox.clear()
        for _, told in unanswered.values():
            if not told.done():
                told.set_exception(error)


class Ride:
    """A stream that is open on a node.

    ``credit`` says how much credit to grant with what is written next, and counts it as granted; ``receive`` takes
    every message of the node.
    """

    def __init__(
        self,
        nodes: Nodes,
        node: Node,
        frames: Frames,
        credit: Callable[[], int],
        receive: Callable[[v1.WorkResponse], None],
    ) -> None:
        self._nodes = nodes
        self._node = node
        self._frames = frames
        self._credit = credit
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._call: Any = node.stream("Work", nodes.metadata)
        self._heard = self._loop.time()
        self._gave_up = ""
        self.ending = False

    async def run(self, opening: v1.WorkRequest) -> None:
        """Opens the stream and serves it until it ends; raises what ended it, unless it was asked for."""
        writer = None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._call.write(opening)
                first = await self._call.read()
            if first is aio.EOF:
                raise OutcomeUnknown(f"{self._node.address} ended the stream at once")
            self._receive(first)
            self._nodes.answered(self._node)
            self._frames.start_over()
            writer = self._loop.create_task(self._write())
            self._frames.write_now = self._write_now
            await self._read()
        except TimeoutError:
            raise OutcomeUnknown(f"{self._node.address} does not open a stream") from None
        except aio.AioRpcError as error:
            raise error_of_status(error, self._node.address) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._gave_up and not (task and task.cancelling()):
                raise OutcomeUnknown(self._gave_up) from None
            raise
        finally:
            self._frames.write_now = None
            self._call.cancel()
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def end(self) -> None:
        """Closes our side, once what is in the outbox has been written; the node answers what is under way."""
        self.ending = True
        self._frames.wake.set()
        self._loop.call_later(END_SECONDS, self._call.cancel)

    def give_up(self, why: str) -> None:
        """Leaves the node."""
        self._gave_up = why
        # Not in the middle of what it says: leases may follow.
        self._loop.call_soon(self._call.cancel)

    async def _read(self) -> None:
        probing = self._loop.create_task(self._probe())
        attend(self._call, self._take)
        try:
            while (message := await self._call.read()) is not aio.EOF:
                self._take(message)
        except asyncio.CancelledError:
            if not self.ending or (self._task_is_cancelled()):
                raise
        finally:
            probing.cancel()

    def _take(self, message: v1.WorkResponse) -> bool:
        self._heard = self._loop.time()
        self._receive(message)
        return True

    def _task_is_cancelled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _write_now(self, frame: v1.WorkRequest) -> bool:
        if self.ending or not is_ready(self._call):
            return False
        frame.credit = self._credit()
        self._call.write_now(frame)
        return True

    async def _write(self) -> None:
        frames = self._frames
        while True:
            while frames.outbox:
                frame = frames.outbox.popleft()
                frame.credit = self._credit()
                await self._call.write(frame)
            if credit := self._credit():
                await self._call.write(v1.WorkRequest(credit=credit))
                continue
            if self.ending:
                await self._call.done_writing()
                return
            frames.wake.clear()
            await frames.wake.wait()

    async def _probe(self) -> None:
        """Finds out a node that is frozen, or a connection that leads nowhere."""
        while True:
            await asyncio.sleep(PROBE_AFTER)
            if not self._frames.unanswered or self._loop.time() - self._heard < PROBE_AFTER:
                continue
            if not await self._nodes.is_alive(self._node, PROBE_AFTER):
                self.give_up(f"{self._node.address} does not answer")
                return
