"""Work that waits for an answer and for little else: at a node for the cluster, at a client for a node.

A task that waits is woken by way of a future, in a later pass of the loop; for a call that costs a node some hundred
microseconds in all that is a good part. An errand is gone on with where the answer comes, and becomes a task only when
it has to wait for something else.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

__all__ = ["Errand", "Errands", "Told", "here", "in_a_task"]

logger = logging.getLogger(__name__)

_Work = Coroutine[Any, Any, Any]


class _Here(threading.local):
    # Whether an errand is gone on with just now, in this thread: each has a loop of its own.
    running = False


here = _Here()


class Told:
    """An answer that will come: to a function, or to the one errand or task that awaits it.

    >>> told = Told()
    >>> told.then(lambda told: print(told.result()))
    >>> told.set_result("done")
    done
    """

    __slots__ = ("_error", "_future", "_over", "_result", "_tell")

    def __init__(self) -> None:
        self._over = False
        self._result: Any = None
        self._error: Exception | None = None
        self._tell: Callable[[Told], None] | None = None
        self._future: asyncio.Future[None] | None = None

    def done(self) -> bool:
        """Whether it was said, or nobody waits for it any more."""
        return self._over or (self._future is not None and self._future.done())

    def set_result(self, result: Any) -> None:
        """Says it."""
        self._result = result
        self._say()

    def set_exception(self, error: Exception) -> None:
        """Says why it cannot be said."""
        self._error = error
        self._say()

    def result(self) -> Any:
        """What was said; an error is raised, once."""
        if self._error is None:
            return self._result
        error, self._error = self._error, None
        try:
            raise error
        finally:
            # By its traceback it keeps this frame and the caller's: were it kept here, that would be a circle.
            del error

    def exception(self) -> Exception | None:
        """Why it could not be said, or None."""
        return self._error

    def then(self, tell: "Callable[[Told], None]") -> None:
        """Has ``tell`` called where it is said; at once if it was said before."""
        if self._over:
            tell(self)
        else:
            self._tell = tell

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self._over, self._tell = True, None

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self._over:
            if here.running:
                yield self
            else:
                self._future = asyncio.get_running_loop().create_future()
                yield from self._future
        return self.result()

    def _say(self) -> None:
        self._over = True
        if self._future is not None and not self._future.done():
            # Only that there is something: the task that is woken looks here.
            self._future.set_result(None)
        if self._tell is not None:
            try:
                self._tell(self)
            except Exception:  # others may be told by the same hand, which must not stop at this
                logger.exception("whoever waited for an answer stumbled over it")


async def in_a_task() -> None:
    """From here on the caller runs in a task of its own, which ``asyncio.timeout`` needs."""
    if here.running:
        await asyncio.sleep(0)


class Errand:
    """A coroutine under way, at first without a task."""

    __slots__ = ("_over", "_task", "_told", "_work")

    def __init__(self, work: _Work, over: "Callable[[Errand, BaseException | None], None]") -> None:
        self._work = work
        self._over = over
        self._told: Told | None = None
        self._task: asyncio.Task[None] | None = None

    def go(self, _: Told | None = None) -> None:
        """Goes on with it, up to where it has to wait again."""
        self._told = None
        self._step(self._work.send, None)

    def cancel(self) -> None:
        """Ends it where it stands, as a task is ended."""
        if self._task is not None:
            self._task.cancel()
        elif self._told is not None:
            self._told.leave()
            self._told = None
            self._step(self._work.throw, asyncio.CancelledError)

    def _step(self, go_on: Callable[[Any], Any], by: Any) -> None:
        try:
            before, here.running = here.running, True
            try:
                waits = go_on(by)
            finally:
                here.running = before
        except StopIteration:
            self._over(self, None)
        except (Exception, asyncio.CancelledError) as error:
            self._over(self, error)
        else:
            self._wait(waits)

    def _wait(self, waits: Any) -> None:
        if type(waits) is Told:
            self._told = waits
            waits.then(self.go)
        else:
            self._task = asyncio.get_running_loop().create_task(_Rest(self._work, waits))
            self._task.add_done_callback(self._task_over)

    def _task_over(self, task: "asyncio.Task[None]") -> None:
        self._over(self, asyncio.CancelledError() if task.cancelled() else task.exception())


class _Rest(Coroutine[Any, Any, None]):
    """What is left of a coroutine that waits for something already.

    No coroutine itself: one that is cancelled before its first step ends without a word to the work in it.
    """

    __slots__ = ("_begun", "_waits", "_work")

    def __init__(self, work: _Work, waits: Any) -> None:
        self._work = work
        self._waits = waits
        self._begun = False

    def send(self, value: Any) -> Any:
        """Goes on; the first time, only says what is waited for."""
        if self._begun:
            return self._work.send(value)
        self._begun = True
        waits, self._waits = self._waits, None
        return waits

    def throw(self, *error: Any) -> Any:
        """Goes on with an error."""
        if not self._begun:
            self._begun = True
            waits, self._waits = self._waits, None
            if waits is not None:
                waits.cancel()
        return self._work.throw(*error)

    def close(self) -> None:
        """Ends it."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError


class Errands:
    """Those of one stream."""

    def __init__(self) -> None:
        self._running: dict[Errand, Callable[[BaseException | None], None]] = {}
        self._waiting: asyncio.Future[None] | None = None

    @property
    def under_way(self) -> int:
        """How many have not come to their end."""
        return len(self._running)

    def begin(self, work: _Work, over: Callable[[BaseException | None], None]) -> Errand:
        """Begins one; ``over`` hears when it is at its end, and of the error that it ended with."""
        errand = Errand(work, self._over)
        self._running[errand] = over
        errand.go()
        return errand

    async def over(self) -> None:
        """Waits until none is under way."""
        await self.fewer_than(1)

    async def fewer_than(self, many: int) -> None:
        """Waits until fewer are under way; one may wait at a time."""
        while len(self._running) >= many:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def cancel(self) -> None:
        """Ends all."""
        for errand in list(self._running):
            errand.cancel()

    def _over(self, errand: Errand, error: BaseException | None) -> None:
        self._running.pop(errand)(error)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
