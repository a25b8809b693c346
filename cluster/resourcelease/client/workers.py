"""A worker: a function that is run for each item, several at a time, until the process is asked to stop."""

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, overload

from resourcelease.client.client import Client
from resourcelease.client.errors import ResourceLeaseError
from resourcelease.client.lease import Lease
from resourcelease.client.options import DEFAULT_NAMESPACE, Tls
from resourcelease.client.stream import LeaseStream

__all__ = ["Handler", "Worker", "worker"]

Handler = Callable[[Lease], Awaitable[object] | object]

log = logging.getLogger("resourcelease.worker")


class Worker:
    """Runs ``handler`` for every lease, ``concurrency`` at a time.

    A handler that returns completes its item; one that raises fails it, and ``FailItem`` says how. A plain function
    runs in a thread. On SIGTERM or Ctrl-C the worker takes nothing more, gives back what it has not begun, finishes
    what runs for up to ``grace`` seconds, and gives back the rest; none of that costs an item an attempt.

    ```py
    worker = Worker(copy_table, endpoints="127.0.0.1:7101", concurrency=8)
    asyncio.run(worker.run())
    ```
    """

    def __init__(
        self,
        handler: Handler,
        *,
        client: Client | None = None,
        endpoints: str | Iterable[str] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        peer_id: str | None = None,
        tls: Tls | None = None,
        concurrency: int = 4,
        prefetch: int | None = None,
        grace: float = 30.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be 1 or more")
        self.handler = handler
        self.concurrency = concurrency
        self.completed = 0
        """Items completed so far."""
        self.failed = 0
        """Attempts that failed or were lost so far."""
        self._client = client
        self._endpoints = endpoints
        self._namespace = namespace
        self._peer_id = peer_id
        self._tls = tls
        self._credit = concurrency + (concurrency if prefetch is None else prefetch)
        self._grace = grace
        self._stopping: asyncio.Event | None = None
        functools.update_wrapper(self, handler, updated=())

    def __call__(self, lease: Lease) -> Awaitable[object] | object:
        """The handler itself, for tests."""
        return self.handler(lease)

    def stop(self) -> None:
        """Begins the orderly end, as SIGTERM does."""
        if self._stopping is not None:
            self._stopping.set()

    def run_forever(self) -> None:
        """Runs until a signal; for a program that does nothing else."""
        asyncio.run(self.run())

    async def run(self, *, signals: bool = True) -> None:
        """Runs until ``stop``, a signal, or an error that no node and no wait can heal."""
        self._stopping = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            client = self._client
            if client is None:
                client = await stack.enter_async_context(
                    Client(self._endpoints, namespace=self._namespace, tls=self._tls)
                )
            namespace = client.namespace if self._client is not None else self._namespace
            stream = client.leases(self._peer_id, self._credit, namespace=namespace)
            stack.push_async_callback(stream.aclose)
            if signals:
                stack.enter_context(self._signals())
            await self._serve(stream)

    async def _serve(self, stream: LeaseStream) -> None:
        assert self._stopping is not None
        runners = [asyncio.create_task(self._work(stream)) for _ in range(self.concurrency)]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*runners, stopping], return_when=asyncio.FIRST_COMPLETED)
            await stream.stop()
            await asyncio.wait(runners, timeout=self._grace)
        finally:
            stopping.cancel()
            for runner in runners:
                runner.cancel()
            ended = await asyncio.gather(*runners, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    async def _work(self, stream: LeaseStream) -> None:
        async for lease in stream:
            try:
                async with lease:
                    await self._handle(lease)
                self.completed += lease.completed
                self.failed += not lease.completed
            except ResourceLeaseError as error:
                self.failed += 1
                log.warning("item %s, attempt %s: %s", lease.sequence_id, lease.attempt, error)
            except Exception:
                self.failed += 1
                log.exception("item %s, attempt %s failed", lease.sequence_id, lease.attempt)

    async def _handle(self, lease: Lease) -> None:
        if inspect.iscoroutinefunction(self.handler):
            await self.handler(lease)
            return
        result = await asyncio.to_thread(self.handler, lease)
        if inspect.isawaitable(result):
            await result

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C stop the worker in order; a second one does as it always does."""
        loop = asyncio.get_running_loop()
        caught: list[signal.Signals] = []

        def stop(number: signal.Signals) -> None:
            log.info("%s: finishing what runs, giving back the rest", number.name)
            release()
            self.stop()

        def release() -> None:
            while caught:
                loop.remove_signal_handler(caught.pop())

        for number in (signal.SIGTERM, signal.SIGINT):
            # Outside the main thread there are no signals to hear.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, stop, number)
                caught.append(number)
        try:
            yield
        finally:
            release()


@overload
def worker(handler: Handler, /) -> Worker: ...


@overload
def worker(**options: Any) -> Callable[[Handler], Worker]: ...


def worker(handler: Handler | None = None, /, **options: Any) -> Worker | Callable[[Handler], Worker]:
    """Makes a worker of a function; the options are those of ``Worker``.

    ```py
    @worker(endpoints="127.0.0.1:7101", concurrency=8)
    async def copy_table(lease):
        await copy(lease.resource_id, fence=lease.fence)

    copy_table.run_forever()
    ```
    """
    if handler is not None:
        return Worker(handler, **options)
    return functools.partial(Worker, **options)
