"""Joins what many callers ask for at the same time into few calls, without keeping a lone caller waiting.

While nothing is under way, what one turn of the event loop brings is sent at the end of that turn. While a call is
under way, the next gathers; a few may be under way at once where there is enough for them.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from resourcelease.client.errors import ResourceLeaseError

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "Lane"]

Entry = TypeVar("Entry")
Result = TypeVar("Result")

# A call carries no more, in entries and in bytes.
MOST_ENTRIES = 2_000
MOST_BYTES = 4 * 1024 * 1024
# Calls under way at once, and how many entries are worth another one.
MOST_FLIGHTS = 4
WORTH_A_FLIGHT = 16


class Lane(Generic[Entry, Result]):
    """Entries of one kind on their way to the cluster.

    ``send`` makes one call of many entries and returns one result per entry, in order; an error among them is raised
    to that entry's caller alone. It is told when the oldest entry was put in.
    """

    def __init__(self, send: Callable[[list[Entry], float], Awaitable[Sequence[Result | ResourceLeaseError]]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._entries: list[Entry] = []
        self._futures: list[asyncio.Future[Result]] = []
        self._sizes: list[int] = []
        self._oldest = 0.0
        self._bytes = 0
        self._woken = False
        self._flights: dict[asyncio.Task[None], None] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._entries and not self._flights

    def put(self, entry: Entry, size: int = 0) -> "asyncio.Future[Result]":
        """Hands an entry over; the future has its result."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if not self._entries:
            self._oldest = self._loop.time()
        self._entries.append(entry)
        self._futures.append(future)
        self._sizes.append(size)
        self._bytes += size
        if not self._woken:
            self._woken = True
            if self._flights:
                self._loop.call_soon(self._depart)
            else:
                # It takes off at the end of this turn, with all that the turn brings.
                self._launch()
        return future

    async def close(self) -> None:
        """Gives up what is under way."""
        for future in self._futures:
            future.cancel()
        self._clear()
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)

    def _depart(self) -> None:
        if self._entries and self._may_depart():
            self._launch()
        else:
            self._woken = False

    def _launch(self) -> None:
        flight = self._loop.create_task(self._fly())
        self._flights[flight] = None
        flight.add_done_callback(self._landed)

    def _board(self) -> tuple[list[Entry], list["asyncio.Future[Result]"]]:
        """The entries of the flight that takes off now; another one is launched if there is enough left for it."""
        self._woken = False
        if len(self._entries) <= MOST_ENTRIES and self._bytes <= MOST_BYTES:
            entries, futures = self._entries, self._futures
            self._clear()
            return entries, futures
        entries, futures = self._first()
        if self._may_depart():
            self._woken = True
            self._launch()
        return entries, futures

    def _may_depart(self) -> bool:
        flights = len(self._flights)
        if not flights:
            return True
        return flights < MOST_FLIGHTS and (len(self._entries) >= WORTH_A_FLIGHT or self._bytes >= MOST_BYTES)

    def _first(self) -> tuple[list[Entry], list["asyncio.Future[Result]"]]:
        """The first entries, as many as one call should carry."""
        many, size = 1, self._sizes[0]
        while many < min(MOST_ENTRIES, len(self._entries)) and size + self._sizes[many] <= MOST_BYTES:
            size += self._sizes[many]
            many += 1
        self._bytes -= size
        del self._sizes[:many]
        entries, self._entries = self._entries[:many], self._entries[many:]
        futures, self._futures = self._futures[:many], self._futures[many:]
        return entries, futures

    def _clear(self) -> None:
        self._entries, self._futures, self._sizes, self._bytes = [], [], [], 0

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        del self._flights[flight]
        # Those who have just been answered come again in this turn: wait for them.
        if self._entries and not self._woken:
            self._woken = True
            self._loop.call_soon(self._depart)

    async def _fly(self) -> None:
        oldest = self._oldest
        entries, futures = self._board()
        try:
            results = await self._send(entries, oldest)
        except Exception as error:
            for future in futures:
                if not future.done():
                    # Each caller gets an error of its own: raising one adds to its traceback.
                    future.set_exception(copy.copy(error))
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        else:
            self._hand_out(futures, results)

    def _hand_out(self, futures: list["asyncio.Future[Result]"], results: Sequence[Any]) -> None:
        for future, result in zip(futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, ResourceLeaseError):
                future.set_exception(result)
            else:
                future.set_result(result)
