"""How a stream ends that both sides write to."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from resourcelease.frontdoor.departures import Departures
from resourcelease.frontdoor.refusals import Refused

__all__ = ["Duplex"]

# How long a stream that is ended waits for its last message to leave.
_LAST_WRITE_S = 1.0


class Duplex:
    """A stream that is over when one of its tasks is, or when it is ended from outside."""

    def __init__(self) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _until_over(self, departures: Departures, *work: Coroutine[Any, Any, None]) -> None:
        tasks = [self._begun(each) for each in work]
        try:
            await self._ended
        except Refused:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WRITE_S):
                    await departures.settled()
            raise
        finally:
            # An error leads by its traceback to this frame, and to us: neither is to lead to it.
            while tasks:
                tasks.pop(0).cancel()
            self._ended = asyncio.get_running_loop().create_future()
            self._ended.set_result(None)

    def _begun(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        if self._ended.done() or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
