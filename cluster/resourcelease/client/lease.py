"""A lease as its holder sees it: the item, the fence, and how long it is still the holder's."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import Literal, NoReturn, Protocol

from resourcelease import v1
from resourcelease.client.errors import LeaseLost, ResourceLeaseError

__all__ = ["GOODBYE_SECONDS", "Acks", "FailItem", "Lease", "complete_all", "fail_entry", "way_of"]

# A lease ends this much earlier for its holder than for the cluster: it was on its way for a while.
MARGIN = 0.05
MOST_MARGIN_SECONDS = 1.0

GOODBYE_SECONDS = 5.0

MAX_CODE = 256
MAX_MESSAGE = 4096


class FailItem(Exception):
    """Raised inside ``async with lease`` to fail the item in a particular way; it does not travel further.

    >>> FailItem("no such table", code="GONE", requeue=False).requeue
    False
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        requeue: bool = True,
        delay: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.metadata = dict(metadata or {})
        self.requeue = requeue
        self.delay = delay


def fail_entry(
    handle: v1.Handle,
    message: str = "",
    *,
    code: str = "",
    metadata: Mapping[str, str] | None = None,
    requeue: bool = True,
    delay: float | None = None,
) -> v1.FailEntry:
    """One failed attempt as the wire has it; texts that are too long are cut."""
    entry = v1.FailEntry(handle=handle, requeue=requeue)
    if message or code or metadata:
        error = v1.Failure(code=code[:MAX_CODE], message=message[:MAX_MESSAGE], metadata=dict(metadata or {}))
        entry.error.CopyFrom(error)
    if delay is not None:
        entry.delay_ms = int(delay * 1000)
    return entry


class Acks(Protocol):
    """The way back of a lease: how its verdict and its heartbeats reach the cluster."""

    def complete(self, lease: "Lease") -> Awaitable[None]:
        """Ends the item well."""
        ...

    def complete_all(self, leases: "Sequence[Lease]") -> Awaitable[Sequence[ResourceLeaseError | None]]:
        """Ends many items well; says of each what was against it."""
        ...

    def fail(self, lease: "Lease", entry: v1.FailEntry) -> Awaitable[None]:
        """Ends the attempt badly, or gives the lease back."""
        ...

    def heartbeat(self, lease: "Lease") -> Awaitable[None]:
        """Extends the lease."""
        ...

    def keep(self, lease: "Lease") -> None:
        """Extends the lease from now on, until it is settled."""
        ...

    def let_go(self, lease: "Lease") -> None:
        """Extends the lease no more: it was settled elsewhere."""
        ...


class Granted(Protocol):
    """What an answer says of leases, each at its place in it."""

    def body(self, place: int) -> bytes:
        """What the producer sent along."""
        ...

    def resource_type(self, place: int) -> str:
        """The kind of resource."""
        ...

    def resource_id(self, place: int) -> str:
        """The resource."""
        ...

    def payload(self, place: int) -> v1.ItemPayload:
        """The whole item."""
        ...

    def last_error(self, place: int) -> v1.Failure | None:
        """How the attempt before failed, if it did."""
        ...

    def enqueued_at_ms(self, place: int) -> int:
        """When the item was enqueued."""
        ...


class Lease:
    """The right to work on one item until a deadline.

    As a context manager it is kept alive by heartbeats, completes the item at the end, and fails it when an exception
    comes out (which then travels on). If the lease is lost meanwhile, the task inside is cancelled and ``LeaseLost``
    comes out. A task cancelled for another reason gives the lease back, which costs the item no attempt.

    ```py
    async with lease:
        store.write(lease.resource_id, fence=lease.fence)
    ```
    """

    __slots__ = (
        "_acks",
        "_cancelled",
        "_completed",
        "_error",
        "_granted",
        "_lost",
        "_place",
        "_settled",
        "_task",
        "attempt",
        "deadline",
        "fence",
        "peer_id",
        "sequence_id",
    )

    def __init__(
        self,
        sequence_id: int,
        attempt: int,
        fence: int,
        granted: Granted,
        place: int,
        acks: Acks,
        peer_id: str,
        now: float,
        remaining: float,
    ) -> None:
        self.sequence_id = sequence_id
        """The item's name for life, in its namespace."""
        self.attempt = attempt
        """Which attempt at the item this is, from 1."""
        self.fence = fence
        """Rises with every grant: pass it to each store, and have the store refuse a lower one."""
        self._granted = granted
        self._place = place
        self._acks = acks
        self.peer_id = peer_id
        """Who holds the lease."""
        self.deadline = now + remaining - min(MARGIN * remaining, MOST_MARGIN_SECONDS)
        """When the lease ends, as the event loop's time; heartbeats move it."""
        self._lost: asyncio.Event | None = None
        self._error: ResourceLeaseError | None = None
        self._settled = self._cancelled = self._completed = False
        self._task: asyncio.Task[object] | None = None

    @property
    def handle(self) -> v1.Handle:
        """What acks show; with it ``Client.complete`` and its siblings work too."""
        return v1.Handle(sequence_id=self.sequence_id, attempt=self.attempt, lease_id=self.fence)

    @property
    def payload(self) -> v1.ItemPayload:
        """The item as it was enqueued."""
        return self._granted.payload(self._place)

    @property
    def resource_type(self) -> str:
        """The kind of resource that the work is about."""
        return self._granted.resource_type(self._place)

    @property
    def resource_id(self) -> str:
        """The resource."""
        return self._granted.resource_id(self._place)

    @property
    def body(self) -> bytes:
        """What the producer sent along."""
        return self._granted.body(self._place)

    @property
    def attributes(self) -> dict[str, str]:
        """The producer's notes."""
        return dict(self.payload.attributes)

    @property
    def last_error(self) -> v1.Failure | None:
        """What went wrong in the attempt before, if it was failed."""
        return self._granted.last_error(self._place)

    @property
    def enqueued_at_ms(self) -> int:
        """When the item was enqueued, wall time in milliseconds."""
        return self._granted.enqueued_at_ms(self._place)

    @property
    def lost(self) -> asyncio.Event:
        """Set at the moment the lease is known to be lost."""
        if self._lost is None:
            self._lost = asyncio.Event()
            if self._error is not None:
                self._lost.set()
        return self._lost

    @property
    def error(self) -> ResourceLeaseError | None:
        """How the lease was lost; None while it was not."""
        return self._error

    @property
    def settled(self) -> bool:
        """Whether it was completed, failed or given back through this object."""
        return self._settled

    @property
    def completed(self) -> bool:
        """Whether the cluster has confirmed that the item is done."""
        return self._completed

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is extended."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    async def complete(self) -> None:
        """Ends the item well."""
        self._settled = True
        await self._acks.complete(self)
        self._completed = True

    async def fail(
        self,
        message: str = "",
        *,
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        requeue: bool = True,
        delay: float | None = None,
    ) -> None:
        """Ends the attempt badly: tried again after ``delay`` seconds, or never with ``requeue=False``."""
        entry = fail_entry(self.handle, message, code=code, metadata=metadata, requeue=requeue, delay=delay)
        self._settled = True
        await self._acks.fail(self, entry)

    async def give_back(self) -> None:
        """Returns the lease unused: the item keeps its place and no attempt is spent."""
        self._settled = True
        await self._acks.fail(self, v1.FailEntry(handle=self.handle, give_back=True))

    async def heartbeat(self) -> None:
        """Extends the lease now. Inside ``async with``, and from ``leases()``, this happens by itself."""
        await self._acks.heartbeat(self)

    def lose(self, error: ResourceLeaseError) -> None:
        """Marks the lease as lost and stops the task that works under it."""
        if self._error is not None:
            return
        self._error = error
        if self._lost is not None:
            self._lost.set()
        if self._task is not None and self._task is not _current_task():
            self._cancelled = True
            self._task.cancel(str(error))

    def mark_settled(self) -> None:
        """Notes that the lease was ended by another way than this object."""
        self._settled = True
        self._acks.let_go(self)

    async def begin(self) -> None:
        """What entering ``async with`` does: the lease is kept alive from now on."""
        if self._error is not None:
            raise LeaseLost(self._error.message) from self._error
        self._acks.keep(self)

    async def end(self, error: BaseException | None) -> bool:
        """What leaving ``async with`` does: completes, or fails with the error; true if that goes no further."""
        if self._settled:
            return isinstance(error, FailItem)
        if self._error is not None:
            if error is None or isinstance(error, FailItem):
                self._raise_lost()
            return False
        if error is None:
            await self.complete()
            return False
        return await self._end_badly(error)

    async def __aenter__(self) -> "Lease":
        await self.begin()
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False] | bool:
        task, self._task = self._task, None
        if self._cancelled and task is not None:
            # As asyncio.timeout does: our own cancel ends here, somebody else's goes on.
            if task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
                self._raise_lost()
            return False
        return await self.end(error)

    async def _end_badly(self, error: BaseException) -> bool:
        if isinstance(error, FailItem):
            await self.fail(
                error.message, code=error.code, metadata=error.metadata, requeue=error.requeue, delay=error.delay
            )
            return True
        try:
            if isinstance(error, Exception):
                await self.fail(str(error), code=type(error).__name__)
            else:
                # Whoever cancels does not want to wait long; what is not told by then, expiry does.
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self.give_back()
        except (ResourceLeaseError, TimeoutError) as refused:
            # The caller's own error matters more than that it could not be told.
            error.add_note(f"and the lease on item {self.sequence_id} could not be ended: {refused}")
        return False

    def _raise_lost(self) -> NoReturn:
        assert self._error is not None
        raise self._error from None

    def __repr__(self) -> str:
        state = "lost" if self._error else "settled" if self._settled else "live"
        what = f"{self.resource_type}/{self.resource_id}"
        return f"<Lease of item {self.sequence_id} ({what}), attempt {self.attempt}, fence {self.fence}, {state}>"


def way_of(lease: Lease) -> Acks:
    """How its verdict reaches the cluster."""
    return lease._acks


async def complete_all(leases: Sequence[Lease]) -> Sequence[ResourceLeaseError | None]:
    """Ends many items well, of leases that came the same way; says of each what was against it."""
    for lease in leases:
        lease._settled = True
    errors = await way_of(leases[0]).complete_all(leases)
    for lease, error in zip(leases, errors, strict=True):
        lease._completed = error is None
    return errors


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
