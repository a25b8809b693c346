"""What the streams that both sides write to have in common: messages on their way out, and how a stream ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from resourcelease.frontdoor.refusals import Refused

__all__ = ["Departures", "Duplex"]

# How long a stream that is ended waits for its last message to leave.
_LAST_WRITE_S = 1.0

_M = TypeVar("_M")


class Departures:
    """Messages that wait for one writer, at the pace of their reader; what waits, and in what order, is the heirs'."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        self._stopped = False
        # Something has been taken out.
        self._left = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether more wait than may: whoever does not read its answers is not read either."""
        raise NotImplementedError

    async def room(self) -> None:
        """Waits until fewer wait."""
        while self.full:
            self._left.clear()
            await self._left.wait()

    async def drained(self) -> None:
        """Waits until everything has been written."""
        await self._idle.wait()

    async def settled(self) -> None:
        """Begins no further write, and waits for the one under way: a stream cannot be given a status before."""
        self._stopped = True
        await self._unblocked.wait()

    def _came(self) -> None:
        self._idle.clear()
        self._filled.set()

    async def _arrival(self) -> None:
        self._idle.set()
        self._filled.clear()
        await self._filled.wait()

    async def _send(self, send: Callable[[_M], Awaitable[None]], message: _M) -> None:
        self._unblocked.clear()
        await send(message)
        self._unblocked.set()


class Duplex:
    """A stream that is over when one of its tasks is, or when it is ended from outside."""

    def __init__(self) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _until_over(self, departures: Departures, *work: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.ensure_future(each) for each in work]
        for task in tasks:
            task.add_done_callback(self._task_done)
        try:
            await self._ended
        except Refused:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WRITE_S):
                    await departures.settled()
            raise
        finally:
            for task in tasks:
                task.cancel()

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        if self._ended.done() or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
