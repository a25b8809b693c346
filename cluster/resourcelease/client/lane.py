"""Joins what many callers ask for at the same time into few calls, without keeping a lone caller waiting.

While nothing is under way, what one turn of the event loop brings is sent at the end of that turn. While a call is
under way, the next gathers; a few may be under way at once where there is enough for them.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from resourcelease.client.errors import ResourceLeaseError

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "MOST_JOINED", "Lane"]

Entry = TypeVar("Entry")
Result = TypeVar("Result")

# A list that is longer goes alone: joined with others it would make them wait, and costs little by itself.
MOST_JOINED = 50
# A call carries no more, in entries and in bytes.
MOST_ENTRIES = 2_000
MOST_BYTES = 4 * 1024 * 1024
# Calls under way at once, and how many entries are worth another one.
MOST_FLIGHTS = 4
WORTH_A_FLIGHT = 16


class _Parcel(NamedTuple):
    """What one caller put in."""

    future: "asyncio.Future[Any]"
    # How many entries that belong together; 0 for a single one.
    many: int
    size: int


class Lane(Generic[Entry, Result]):
    """Entries of one kind on their way to the cluster.

    ``send`` makes one call of many entries and returns one result per entry, in order; an error among them is raised
    to that entry's caller alone, or among the results of entries that belong together. It is told when the oldest
    entry was put in.
    """

    def __init__(self, send: Callable[[list[Entry], float], Awaitable[Sequence[Result | ResourceLeaseError]]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._entries: list[Entry] = []
        self._parcels: list[_Parcel] = []
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
        self._add(_Parcel(future, 0, size))
        return future

    def put_many(
        self, entries: Sequence[Entry], size: int = 0
    ) -> "asyncio.Future[Sequence[Result | ResourceLeaseError]]":
        """Hands over entries that belong together, at most ``MOST_ENTRIES``; the future has all results, in order."""
        future: asyncio.Future[Sequence[Result | ResourceLeaseError]] = self._loop.create_future()
        if not self._entries:
            self._oldest = self._loop.time()
        self._entries += entries
        self._add(_Parcel(future, len(entries), size))
        return future

    def _add(self, parcel: "_Parcel") -> None:
        self._parcels.append(parcel)
        self._bytes += parcel.size
        if not self._woken:
            self._woken = True
            if self._flights:
                self._loop.call_soon(self._depart)
            else:
                # It takes off at the end of this turn, with all that the turn brings.
                self._launch()

    async def close(self) -> None:
        """Gives up what is under way."""
        _all_closed(self._parcels)
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

    def _board(self) -> tuple[list[Entry], "list[_Parcel]"]:
        """The entries of the flight that takes off now; another one is launched if there is enough left for it."""
        self._woken = False
        if len(self._entries) <= MOST_ENTRIES and self._bytes <= MOST_BYTES:
            entries, parcels = self._entries, self._parcels
            self._clear()
            return entries, parcels
        entries, parcels = self._first()
        if self._may_depart():
            self._woken = True
            self._launch()
        return entries, parcels

    def _may_depart(self) -> bool:
        flights = len(self._flights)
        if not flights:
            return True
        return flights < MOST_FLIGHTS and (len(self._entries) >= WORTH_A_FLIGHT or self._bytes >= MOST_BYTES)

    def _first(self) -> tuple[list[Entry], "list[_Parcel]"]:
        """The first entries, as many as one call should carry."""
        parcels, many, size = 0, 0, 0
        for parcel in self._parcels:
            more = parcel.many or 1
            if parcels and (many + more > MOST_ENTRIES or size + parcel.size > MOST_BYTES):
                break
            parcels, many, size = parcels + 1, many + more, size + parcel.size
        self._bytes -= size
        entries, self._entries = self._entries[:many], self._entries[many:]
        taken, self._parcels = self._parcels[:parcels], self._parcels[parcels:]
        return entries, taken

    def _clear(self) -> None:
        self._entries, self._parcels, self._bytes = [], [], 0

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        del self._flights[flight]
        # Those who have just been answered come again in this turn: wait for them.
        if self._entries and not self._woken:
            self._woken = True
            self._loop.call_soon(self._depart)

    async def _fly(self) -> None:
        oldest = self._oldest
        entries, parcels = self._board()
        try:
            results = await self._send(entries, oldest)
        except Exception as error:
            for parcel in parcels:
                if not parcel.future.done():
                    # Each caller gets an error of its own: raising one adds to its traceback.
                    parcel.future.set_exception(copy.copy(error))
        except asyncio.CancelledError:
            _all_closed(parcels)
            raise
        else:
            _hand_out(parcels, results)


def _all_closed(parcels: "list[_Parcel]") -> None:
    for parcel in parcels:
        if not parcel.future.done():
            parcel.future.set_exception(RuntimeError("the client is closed"))


def _hand_out(parcels: "list[_Parcel]", results: Sequence[Any]) -> None:
    at = 0
    for future, many, _ in parcels:
        first, at = at, at + (many or 1)
        if future.done():
            continue
        if many:
            future.set_result(results[first:at])
        elif isinstance(results[first], ResourceLeaseError):
            future.set_exception(results[first])
        else:
            future.set_result(results[first])
    assert at == len(results)
