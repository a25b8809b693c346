"""Where callers of ``lease`` queue up: their wishes go out together, and what comes is dealt out in their order.

What one turn of the event loop brings leaves in one call. A few calls may be under way at once: one of them may be
waiting for work at the node, and who comes next has no way of knowing. Only when all are out do wishes gather.
"""

import asyncio
import copy
from collections import deque

from resourcelease import v1
from resourcelease.client.acks import CallAcks
from resourcelease.client.caller import Caller
from resourcelease.client.grants import leases_of
from resourcelease.client.lease import Lease

__all__ = ["Desk"]

MOST_FLIGHTS = 4
MOST_ITEMS = 10_000


class _Wish:
    __slots__ = ("future", "many", "until")

    def __init__(self, many: int, until: float, future: "asyncio.Future[list[Lease]]") -> None:
        self.many = many
        self.until = until
        self.future = future


class Desk:
    """Wishes for leases of one peer in one namespace that wait equally long."""

    def __init__(self, caller: Caller, namespace: str, peer_id: str, wait: float, acks: CallAcks) -> None:
        self._caller = caller
        self._namespace = namespace
        self._peer_id = peer_id
        self._wait = wait
        self._acks = acks
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Wish] = deque()
        self._flights: dict[asyncio.Task[None], list[_Wish]] = {}
        self._woken = False

    @property
    def idle(self) -> bool:
        """Whether nobody waits here."""
        return not self._waiting and not self._flights

    async def ask(self, many: int) -> list[Lease]:
        """Up to so many leases; none if there was nothing in time."""
        wish = _Wish(many, self._loop.time() + self._wait, self._loop.create_future())
        self._waiting.append(wish)
        self._wake()
        try:
            return await wish.future
        except asyncio.CancelledError:
            if wish.future.done() and not wish.future.cancelled() and wish.future.exception() is None:
                self._give_back(wish.future.result())
            self._ground()
            raise

    async def close(self) -> None:
        """Gives up what is under way."""
        for wish in self._waiting:
            wish.future.cancel()
        self._waiting.clear()
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._woken = False
        if not self._waiting or len(self._flights) >= MOST_FLIGHTS:
            return
        wishes: list[_Wish] = []
        many = 0
        while self._waiting and (not wishes or many + self._waiting[0].many <= MOST_ITEMS):
            wish = self._waiting.popleft()
            if not wish.future.done():
                wishes.append(wish)
                many += wish.many
        if wishes:
            flight = self._loop.create_task(self._fly(wishes, many))
            self._flights[flight] = wishes
            flight.add_done_callback(self._landed)
        if self._waiting:
            self._wake()

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        del self._flights[flight]
        if self._waiting:
            self._wake()

    def _ground(self) -> None:
        """Cancels a call that nobody waits for any more; the node then keeps nothing back for it."""
        for flight, wishes in self._flights.items():
            if all(wish.future.done() for wish in wishes):
                flight.cancel()

    async def _fly(self, wishes: list[_Wish], many: int) -> None:
        wait = max(0.0, wishes[0].until - self._loop.time())
        request = v1.LeaseRequest(namespace=self._namespace, peer_id=self._peer_id, max_items=many, reads_packed=True)
        try:
            answer: v1.LeaseResponse = await self._caller.change("Lease", request, wait=wait)
        except Exception as error:
            for wish in wishes:
                if not wish.future.done():
                    wish.future.set_exception(copy.copy(error))
        else:
            now = self._loop.time()
            leases = deque(leases_of(answer, self._acks, self._peer_id, now))
            self._deal(leases, wishes, now)

    def _deal(self, leases: deque[Lease], wishes: list[_Wish], now: float) -> None:
        unserved = []
        for wish in wishes:
            if wish.future.done():
                continue
            if not leases and now < wish.until - 0.001:
                unserved.append(wish)
                continue
            wish.future.set_result([leases.popleft() for _ in range(min(wish.many, len(leases)))])
        # They were first, and stay so.
        self._waiting.extendleft(reversed(unserved))
        while leases and self._waiting:
            wish = self._waiting.popleft()
            if not wish.future.done():
                wish.future.set_result([leases.popleft() for _ in range(min(wish.many, len(leases)))])
        self._give_back(leases)

    def _give_back(self, leases: "deque[Lease] | list[Lease]") -> None:
        """The callers are gone: the leases go back rather than expire."""
        for lease in leases:
            lease.mark_settled()
            back = self._acks.failing.put(v1.FailEntry(handle=lease.handle, give_back=True))
            back.add_done_callback(_heard)


def _heard(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
