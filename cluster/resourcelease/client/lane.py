"""Joins what many callers ask for at the same time into few calls, without keeping a lone caller waiting.

While nothing is under way, what one turn of the event loop brings is sent at the end of that turn. While a call is
under way, the next gathers; a few may be under way at once where there is enough for them. Lanes that share a
``Runway`` gather while any of them has a call under way, and then send at the same moment: the cluster has one entry of
its log to agree on where it would have had one for each lane.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from resourcelease.client.errors import ResourceLeaseError

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "MOST_JOINED", "Lane", "Runway"]

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
# A lane waits no longer for the call of another. One that waits at its node, for room in a queue, may take seconds.
PATIENCE_SECONDS = 0.003


class _Parcel(NamedTuple):
    """What one caller put in."""

    future: "asyncio.Future[Any]"
    # How many entries that belong together; 0 for a single one.
    many: int
    size: int


class Runway:
    """What lanes take off from, together. While a call of one is under way they wait for its end, for a moment."""

    def __init__(self) -> None:
        self._flights: dict[asyncio.Task[Any], None] = {}
        # Calls that are about to take off.
        self._launched: dict[asyncio.Task[Any], None] = {}
        self._waiting: dict[Lane[Any, Any], None] = {}
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def clear(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self._flights and not self._waiting

    def launched(self, flight: "asyncio.Task[Any]") -> None:
        """A call is to take off, as soon as its task runs."""
        self._launched[flight] = None
        flight.add_done_callback(self.landed)

    def taken(self, flight: "asyncio.Task[Any]") -> None:
        """It takes off."""
        self._launched.pop(flight, None)
        self._flights[flight] = None

    def last_to_leave(self) -> bool:
        """Whether whoever asks is a call on its way, and no other one is about to take off."""
        return not self._launched and asyncio.current_task() in self._flights

    def landed(self, flight: "asyncio.Task[Any]") -> None:
        """It is over; may be said twice."""
        self._launched.pop(flight, None)
        self._flights.pop(flight, None)
        if not self._flights and self._waiting:
            self._look_soon()

    def request(self, lane: "Lane[Any, Any]") -> None:
        """A lane has something to send, as soon as may be."""
        self._waiting[lane] = None
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._due:
            # Those who have just been answered come again in this turn: they are waited for.
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        waiting = self._waiting
        if self._flights and not any(lane.has_enough for lane in waiting):
            if waiting and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._wait_no_more)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = {}
        for lane in waiting:
            lane.depart()

    def _wait_no_more(self) -> None:
        self._timer = None
        self._flights.clear()
        self._look()


class Lane(Generic[Entry, Result]):
    """Entries of one kind on their way to the cluster.

    ``send`` makes one call of many entries and returns one result per entry, in order; an error among them is raised
    to that entry's caller alone, or among the results of entries that belong together. It is told when the oldest
    entry was put in.
    """

    def __init__(
        self,
        send: Callable[[list[Entry], float], Awaitable[Sequence[Result | ResourceLeaseError]]],
        runway: Runway | None = None,
    ) -> None:
        self._send = send
        self._runway = runway or Runway()
        self._loop = asyncio.get_running_loop()
        self._entries: list[Entry] = []
        self._parcels: list[_Parcel] = []
        self._oldest = 0.0
        self._bytes = 0
        # Whether a call is about to take off.
        self._launching = False
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
        if self._launching:
            return
        if self._flights or not self._runway.clear:
            self._runway.request(self)
        else:
            # It takes off at the end of this turn, with all that the turn brings.
            self._launch()

    @property
    def has_enough(self) -> bool:
        """Whether what waits here is worth another call while others are under way."""
        many = len(self._entries) >= WORTH_A_FLIGHT or self._bytes >= MOST_BYTES
        return many and len(self._flights) < MOST_FLIGHTS

    def depart(self) -> None:
        """Takes off, unless what waits is little and a call of this lane is under way."""
        if self._entries and not self._launching and (not self._flights or self.has_enough):
            self._launch()

    async def close(self) -> None:
        """Gives up what is under way."""
        _all_closed(self._parcels)
        self._clear()
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)

    def _launch(self) -> None:
        self._launching = True
        flight = self._loop.create_task(self._fly())
        self._flights[flight] = None
        flight.add_done_callback(self._landed)
        self._runway.launched(flight)

    def _board(self) -> tuple[list[Entry], "list[_Parcel]"]:
        """The entries of the flight that takes off now; another one is launched if there is enough left for it."""
        self._launching = False
        if len(self._entries) <= MOST_ENTRIES and self._bytes <= MOST_BYTES:
            entries, parcels = self._entries, self._parcels
            self._clear()
            return entries, parcels
        entries, parcels = self._first()
        self.depart()
        return entries, parcels

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

    def _landed(self, flight: "asyncio.Task[Any]") -> None:
        self._flights.pop(flight, None)
        if self._entries and not self._launching:
            self._runway.request(self)

    async def _fly(self) -> None:
        flight = asyncio.current_task()
        assert flight is not None
        # Only now: what other lanes bring in the same turn leaves in it too.
        self._runway.taken(flight)
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
            if len(parcels) == 1:
                # A lone caller comes again before the task is seen to be done, and would wait. Of several, the first
                # to come again would leave without the others.
                self._landed(flight)
                self._runway.landed(flight)


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
