"""Leases as they come: a worker's stream that outlives the node it runs on."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from resourcelease import v1
from resourcelease.client.acks import GONE, lose_the_gone
from resourcelease.client.caller import Caller
from resourcelease.client.errors import LeaseLost, ResourceLeaseError, error_of_item
from resourcelease.client.grants import leases_of
from resourcelease.client.keeper import LEAST_INTERVAL, Keeper, settle_heartbeats
from resourcelease.client.lane import Lane
from resourcelease.client.lease import GOODBYE_SECONDS, Lease
from resourcelease.client.line import Line

__all__ = ["LeaseStream"]

# Handles that one message names.
MOST_HANDLES = 10_000

Verdict = ResourceLeaseError | None


class LeaseStream(AsyncIterator[Lease]):
    """An endless iterator of leases, from ``Client.leases``; several tasks may take from it at once.

    At most ``credit`` leases are unsettled at a time. All of them are kept alive by heartbeats, also while the stream
    moves to another node; one that is lost says so at once (``lease.lost``). ``stop`` ends the iteration and gives
    back what nobody has begun; ``aclose`` gives back the rest too.
    """

    def __init__(self, caller: Caller, namespace: str, peer_id: str, credit: int, *, exclusive: bool) -> None:
        if not 1 <= credit <= MOST_HANDLES:
            raise ValueError(f"credit is {credit}; it must be 1 to {MOST_HANDLES}")
        self.namespace = namespace
        self.peer_id = peer_id
        self._caller = caller
        self._credit = credit
        self._exclusive = exclusive
        self.on_close: Callable[[LeaseStream], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Lease] = deque()
        self._verdicts: dict[int, Lease] = {}
        self._waiters: deque[asyncio.Future[Lease]] = deque()
        # Credit that the node has and has not used.
        self._unused = 0
        self._stopped = False
        self._closed = False
        self._unwell = False
        self._error: ResourceLeaseError | None = None
        self._errands: dict[asyncio.Task[None], None] = {}
        self._keeper = Keeper(self._beat, 10.0, self._on_lost, self._on_expired)
        self._completing: Lane[Lease, None] = Lane(self._send_complete, caller.runway)
        self._failing: Lane[v1.FailEntry, None] = Lane(self._send_fail, caller.runway)
        self._line = Line(caller, self._opening, self._grant, self._receive, self._break)

    # Taking leases.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lease:
        while self._ready:
            lease = self._ready.popleft()
            if lease.error is None:
                return lease
        if self._error is not None:
            raise self._error
        if self._stopped:
            raise StopAsyncIteration
        waiter: asyncio.Future[Lease] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise

    @property
    def held(self) -> list[Lease]:
        """Leases that are not settled, begun or not."""
        return list(self._keeper.held.values())

    async def stop(self) -> None:
        """Takes no more leases, gives back those that nobody has begun, and ends the iteration."""
        if self._stopped:
            return
        self._stopped = True
        self._credit = 0
        self._line.wake()
        self._end_waiters(StopAsyncIteration())
        unbegun = list(self._ready)
        self._ready.clear()
        await self._hand_back(unbegun)

    async def aclose(self) -> None:
        """Stops, gives back all that is unfinished, and closes the stream in order."""
        if self._closed:
            return
        self._closed = True
        await self.stop()
        await self._hand_back(self.held)
        await self._line.close()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._keeper.close()
        await self._completing.close()
        await self._failing.close()
        if self.on_close is not None:
            self.on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # The way back of the leases: what Acks asks for.

    async def complete(self, lease: Lease) -> None:
        """Ends the item well."""
        with self._settling(lease):
            await self._completing.put(lease)

    async def complete_all(self, leases: Sequence[Lease]) -> Sequence[Verdict]:
        """Ends many items well; says of each what was against it."""
        for lease in leases:
            self._keeper.discard(lease)
            self._verdicts[lease.fence] = lease
        try:
            verdicts = await self._completing.put_many(leases)
        finally:
            for lease in leases:
                self._verdicts.pop(lease.fence, None)
        lose_the_gone(leases, verdicts)
        return verdicts

    async def fail(self, lease: Lease, entry: v1.FailEntry) -> None:
        """Ends the attempt badly, or gives the lease back."""
        with self._settling(lease):
            await self._failing.put(entry)
        if entry.HasField("requeue") and not entry.requeue:
            # The cluster counts the peer as disconnected until it hears of it again.
            self._show_life()

    async def heartbeat(self, lease: Lease) -> None:
        """Extends the lease."""
        sent_at = self._loop.time()
        if settle_heartbeats([lease], await self._beat([lease]), sent_at):
            self._keeper.discard(lease)
            assert lease.error is not None
            raise lease.error

    def keep(self, lease: Lease) -> None:
        """Leases of a stream are kept from the start."""

    def let_go(self, lease: Lease) -> None:
        """Extends the lease no more, and has another in its place: it was settled elsewhere."""
        self._keeper.discard(lease)
        self._line.wake()

    @contextmanager
    def _settling(self, lease: Lease) -> Iterator[None]:
        """While a verdict is on its way its lease is no more kept, but still ours."""
        fence = lease.fence
        self._keeper.discard(lease)
        self._verdicts[fence] = lease
        try:
            yield
        except GONE as error:
            lease.lose(error)
            raise
        finally:
            self._verdicts.pop(fence, None)

    # What is sent.

    async def _send_complete(self, leases: list[Lease], oldest: float) -> Sequence[Verdict]:
        entries = [v1.CompleteEntry(handle=lease.handle) for lease in leases]
        request = v1.WorkRequest(complete=v1.WorkComplete(entries=entries))
        done = await self._line.ask(request, self._caller.left(oldest))
        return [error_of_item(result.error) if result.HasField("error") else None for result in done.complete.results]

    async def _send_fail(self, entries: list[v1.FailEntry], oldest: float) -> Sequence[Verdict]:
        request = v1.WorkRequest(fail=v1.WorkFail(entries=entries))
        done = await self._line.ask(request, self._caller.left(oldest))
        return [error_of_item(result.error) if result.HasField("error") else None for result in done.fail.results]

    async def _beat(self, leases: list[Lease]) -> v1.HeartbeatResponse:
        request = v1.WorkRequest(heartbeat=v1.WorkHeartbeat(handles=[lease.handle for lease in leases]))
        return (await self._line.ask(request, self._caller.timeout)).heartbeat

    async def _hand_back(self, leases: Sequence[Lease]) -> None:
        handles = [lease.handle for lease in leases if lease.error is None]
        for lease in leases:
            lease.mark_settled()
        for request in _hand_backs(handles):
            try:
                await self._line.ask(request, min(GOODBYE_SECONDS, self._caller.timeout))
            except ResourceLeaseError:
                return

    async def _return_expired(self, handles: list[v1.Handle]) -> None:
        """However long it takes: it ran out because no node answered."""
        for request in _hand_backs(handles):
            while not self._closed:
                try:
                    await self._line.ask(request, self._caller.timeout)
                    break
                except ResourceLeaseError as error:
                    if not error.transient:
                        return

    def _show_life(self) -> None:
        if not self._unwell and not self._closed:
            self._unwell = True
            self._errand(self._say_alive())

    async def _say_alive(self) -> None:
        try:
            # By name where there is one: `all_of_peer` would also keep alive what was lost on the way.
            handles = [lease.handle for lease in self.held[:1]]
            beat = v1.WorkHeartbeat(handles=handles, all_of_peer=not handles)
            await self._line.ask(v1.WorkRequest(heartbeat=beat), self._caller.timeout)
        except ResourceLeaseError:
            return
        finally:
            self._unwell = False

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._errands[task] = None
        task.add_done_callback(self._errands.pop)

    # What the line asks and tells.

    def _opening(self) -> v1.WorkRequest:
        # With a verdict under way too: it will be sent again, and must not find that its lease was given back.
        held = [lease.handle for lease in (*self._keeper.held.values(), *self._verdicts.values())]
        others = self._exclusive and len(held) <= MOST_HANDLES
        opening = v1.WorkOpen(held=held[:MOST_HANDLES], give_back_others=others, reads_packed=True)
        self._unused = 0
        return v1.WorkRequest(namespace=self.namespace, peer_id=self.peer_id, open=opening, credit=self._grant())

    def _grant(self) -> int:
        """The credit to grant now: what is wanted, less what is in hand and what was granted before."""
        wanted = max(self._credit - len(self._keeper.held), 0)
        credit, self._unused = wanted - self._unused, wanted
        return credit

    def _receive(self, message: v1.WorkResponse) -> None:
        if message.HasField("leases"):
            self._take(message.leases)
        elif message.HasField("lost"):
            for lost in message.lost.leases:
                self._keeper.lose(lost.handle.lease_id, error_of_item(lost.error))
        elif message.HasField("opened"):
            opened = message.opened
            wish = min(opened.heartbeat_interval_ms, opened.lease_duration_ms / 3) / 1000
            self._keeper.interval = max(wish, LEAST_INTERVAL)

    def _take(self, pushed: v1.WorkLeases) -> None:
        now = self._loop.time()
        leases = leases_of(pushed, self, self.peer_id, now)
        self._unused = max(0, self._unused - len(leases))
        for lease in leases:
            self._keeper.add(lease)
            if not self._stopped:
                self._offer(lease)
        if self._stopped:
            self._errand(self._hand_back(leases))

    def _offer(self, lease: Lease) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(lease)
                return
        self._ready.append(lease)

    def _on_expired(self, leases: list[Lease]) -> None:
        # The node extends what its stream holds, and would do so for ever with what we have let go of.
        self._errand(self._return_expired([lease.handle for lease in leases]))

    def _on_lost(self, error: ResourceLeaseError) -> None:
        self._line.wake()
        if isinstance(error, LeaseLost):
            self._show_life()

    def _break(self, error: ResourceLeaseError) -> None:
        self._error = error
        self._end_waiters(error)

    def _end_waiters(self, error: Exception) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()


def _hand_backs(handles: list[v1.Handle]) -> Iterator[v1.WorkRequest]:
    """Frames that give leases back, as many as there have to be."""
    for start in range(0, len(handles), MOST_HANDLES):
        yield v1.WorkRequest(hand_back=v1.HandBack(handles=handles[start : start + MOST_HANDLES]))
