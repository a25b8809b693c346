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
from resourcelease.errands import Errands

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
# After so many calls in a row that one caller made alone, the next one does not wait for the end of the turn.
LONE_CALLS = 3


class _Parcel(NamedTuple):
    """What one caller put in."""

    future: "asyncio.Future[Any]"
    # How many entries that belong together; 0 for a single one.
    many: int
    size: int


class _Flight:
    """A call of many callers."""

    __slots__ = ()


class Runway:
    """What lanes take off from, together. While a call of one is under way they wait for its end, for a moment."""

    def __init__(self) -> None:
        self._flights: dict[_Flight, None] = {}
        # Calls that are about to take off, and whether one is just doing so.
        self._launched: dict[_Flight, None] = {}
        self._leaving = False
        # How many calls in a row have left alone, with what one caller brought.
        self._lone = 0
        self._waiting: dict[Lane[Any, Any], None] = {}
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def clear(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self._flights and not self._waiting

    def launched(self, flight: _Flight) -> bool:
        """A call is to take off at the end of this turn; or now, when nothing more is to be expected of it."""
        self._launched[flight] = None
        return self._lone >= LONE_CALLS and len(self._launched) == 1

    def take_off(self, flight: _Flight, parcels: int, go: Callable[[], None]) -> None:
        """It takes off."""
        self._launched.pop(flight, None)
        self._lone = self._lone + 1 if parcels == 1 and not self._launched and not self._flights else 0
        self._flights[flight] = None
        self._leaving = True
        try:
            go()
        finally:
            self._leaving = False

    def last_to_leave(self) -> bool:
        """Whether whoever asks is a call that is just taking off, and no other one is about to."""
        return self._leaving and not self._launched

    def landed(self, flight: _Flight) -> None:
        """It is over; may be said twice."""
        self._launched.pop(flight, None)
        self._flights.pop(flight, None)
        if not self._flights and self._waiting:
            self._look_soon()

    def request(self, lane: "Lane[Any, Any]") -> None:
        """A lane has something to send, as soon as may be."""
        self._lone = 0
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
        # The call that is about to take off.
        self._launching: _Flight | None = None
        self._flights: dict[_Flight, None] = {}
        self._errands = Errands()

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
        if self._launching is not None:
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
        if self._entries and self._launching is None and (not self._flights or self.has_enough):
            self._launch()

    async def close(self) -> None:
        """Gives up what is under way."""
        _all_closed(self._parcels)
        self._clear()
        flight, self._launching = self._launching, None
        if flight is not None:
            self._landed(flight)
        self._errands.cancel()
        await self._errands.over()

    def _launch(self) -> None:
        flight = self._launching = _Flight()
        self._flights[flight] = None
        if self._runway.launched(flight):
            self._take_off(flight)
        else:
            self._loop.call_soon(self._take_off, flight)

    def _take_off(self, flight: _Flight) -> None:
        if flight is not self._launching:
            # The lane was closed meanwhile.
            return
        oldest = self._oldest
        entries, parcels = self._board()

        def go() -> None:
            work = self._fly(flight, entries, parcels, oldest)
            self._errands.begin(work, lambda error: self._over(flight, error))

        self._runway.take_off(flight, len(parcels), go)

    def _board(self) -> tuple[list[Entry], "list[_Parcel]"]:
        """The entries of the flight that takes off now; another one is launched if there is enough left for it."""
        self._launching = None
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

    def _over(self, flight: _Flight, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._loop.call_exception_handler({"message": "a call ended in an error of its own", "exception": error})
        if flight in self._flights:
            # When those who were answered had their turn: else the first to come again would leave without the others.
            self._loop.call_soon(self._landed, flight)

    def _landed(self, flight: _Flight) -> None:
        self._flights.pop(flight, None)
        self._runway.landed(flight)
        if self._entries and self._launching is None:
            self._runway.request(self)

    async def _fly(self, flight: _Flight, entries: list[Entry], parcels: "list[_Parcel]", oldest: float) -> None:
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
                # A lone caller comes again at once, and is not to wait for itself.
                self._landed(flight)


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
