"""A thread that runs the loop, and what waits for it: ``resourcelease.sync`` is made of it."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from resourcelease.client.client import Client
from resourcelease.client.errors import ResourceLeaseError
from resourcelease.client.lease import Lease
from resourcelease.client.stream import LeaseStream

__all__ = ["BlockingClient", "BlockingLease", "BlockingStream", "LoopThread"]

T = TypeVar("T")
LeaseT = TypeVar("LeaseT", bound="BlockingLease")
_END: Any = object()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="resourcelease", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for its result."""
        if not self.loop.is_running() and not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: nobody wants the answer any more.
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _shut(thread: LoopThread, client: Client) -> None:
    if thread.loop.is_running():
        thread.run(client.close())
        thread.stop()


class BlockingClient:
    """What ``sync.Client`` stands on: an async client, and its loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = LoopThread()
        # Also when it is dropped without being closed, and at the end of the program.
        self._shut = weakref.finalize(self, _shut, self._thread, client)

    def close(self) -> None:
        """Closes everything; leases that are held by streams go back."""
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._client)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(source, _END)

        try:
            while (each := self._run(following())) is not _END:
                yield each
        finally:
            if (close := getattr(source, "aclose", None)) is not None and self._shut.alive:
                self._run(close())


class BlockingLease:
    """What ``sync.Lease`` stands on.

    As a context manager it completes its item, or fails it when an exception comes out. A thread cannot be stopped
    from outside: look at ``is_lost`` in long work. A lost lease raises ``LeaseLost`` at the end in any case.
    """

    def __init__(self, lease: Lease, thread: LoopThread) -> None:
        self._lease = lease
        self._thread = thread

    @property
    def sequence_id(self) -> int:
        """The item's name for life, in its namespace."""
        return self._lease.sequence_id

    @property
    def attempt(self) -> int:
        """Which attempt at the item this is, from 1."""
        return self._lease.attempt

    @property
    def fence(self) -> int:
        """Rises with every grant: pass it to each store, and have the store refuse a lower one."""
        return self._lease.fence

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be lost; stop working then."""
        return self._lease.error is not None

    @property
    def error(self) -> ResourceLeaseError | None:
        """How the lease was lost; None while it was not."""
        return self._lease.error

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is extended."""
        return max(0.0, self._lease.deadline - self._thread.loop.time())

    def __enter__(self) -> Self:
        self._thread.run(self._lease.begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._thread.run(self._lease.end(error))

    def __repr__(self) -> str:
        return repr(self._lease)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)


class BlockingStream(Generic[LeaseT]):
    """Leases as they come, for one thread or several; see ``LeaseStream``."""

    def __init__(self, stream: LeaseStream, thread: LoopThread, wrap: type[LeaseT]) -> None:
        self._stream = stream
        self._thread = thread
        self._wrap = wrap

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LeaseT:
        async def following() -> Lease:
            return await anext(self._stream, _END)

        lease = self._thread.run(following())
        if lease is _END:
            raise StopIteration
        return self._wrap(lease, self._thread)

    def stop(self) -> None:
        """Takes no more leases, gives back those that nobody has begun, and ends the iteration."""
        self._thread.run(self._stream.stop())

    def close(self) -> None:
        """Stops, and gives back all that is unfinished."""
        self._thread.run(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
