"""LeaseService, call by call: check, op, propose, answer. ``Work`` has a module of its own."""

import asyncio

from resourcelease import v1
from resourcelease.errands import Told, in_a_task
from resourcelease.frontdoor import answers
from resourcelease.frontdoor.acks import Acks
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.granter import Granter
from resourcelease.frontdoor.intake import items_of
from resourcelease.frontdoor.leasing import LeaseWaiter
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.relief import Relief
from resourcelease.frontdoor.replica import Replica, expect
from resourcelease.model.errors import Reason
from resourcelease.model.limits import MAX_ITEMS_PER_OP, MAX_OP_BYTES
from resourcelease.model.ops import Call, Enqueue, Lease
from resourcelease.model.results import Enqueued

__all__ = ["DEFAULT_GRANT_BYTES", "Leases"]

DEFAULT_GRANT_BYTES = 3 * 1024 * 1024
# A call without a deadline waits no longer than this.
_WAIT_S = 60.0
# A wait ends so long before the deadline, so that its answer arrives: a share of what is left, within bounds.
_EARLY_SHARE, _EARLY_MIN_S, _EARLY_MAX_S = 0.1, 0.02, 0.25
# The key of LeaseResponse.leases.
_LEASES = b"\x12"
_TRIED_MAX = 1_000_000
# Takes of one call rise with the lease clock, also from node to node.
_TAKE_MS = 100


class Leases:
    """Enqueue, Lease, Heartbeat, Complete and Fail."""

    def __init__(self, replica: Replica, granter: Granter, relief: Relief) -> None:
        self._replica = replica
        self._granter = granter
        self._relief = relief
        self._acks = Acks(replica)
        self._waiters: set[LeaseWaiter] = set()
        self._stopping: Refused | None = None

    async def enqueue(self, caller: Caller, request: v1.EnqueueRequest) -> v1.EnqueueResponse:
        """Appends items; waits while backpressure is on."""
        items, size, delayed = items_of(request)
        call = caller.call(request, memorable=True)
        remaining_s = caller.remaining_s()
        answer = self._replica.start(Enqueue(call, items), remaining_s)
        if isinstance(answer, Told) and not delayed:
            self._granter.coming(call.namespace, size)
        result = expect(await answer, Enqueued)
        if _pushed_back(result):
            stated_ms = request.wait_ms if request.HasField("wait_ms") else None
            result = await self._enqueue_later(call, items, result, wait_s(stated_ms, remaining_s))
        response = answers.enqueued(result, packed=request.HasField("packed"))
        self._tell_position(response, call.namespace)
        return response

    async def _enqueue_later(self, call: Call, items: bytes, result: Enqueued, left_s: float) -> Enqueued:
        """Tries again whenever backpressure ends, until the time is over."""
        await in_a_task()
        loop = asyncio.get_running_loop()
        until = loop.time() + left_s
        while _pushed_back(result) and loop.time() < until and self._stopping is None:
            queue = self._replica.machine.queue(call.namespace)
            if (
                queue is not None
                and queue.backpressure
                and not await self._relief.wait(call.namespace, until - loop.time())
            ):
                break
            take = max(call.take + 1, self._replica.machine.clock_ms // _TAKE_MS)
            call = call._replace(take=take)
            result = expect(await self._replica.submit(Enqueue(call, items)), Enqueued)
        return result

    async def lease(self, caller: Caller, request: v1.LeaseRequest) -> v1.LeaseResponse:
        """Grants items; waits for the first one."""
        if not 0 <= request.max_items <= MAX_ITEMS_PER_OP:
            refuse(f"must be from 0 (one) to {MAX_ITEMS_PER_OP}, not {request.max_items}", "max_items")
        if not 0 <= request.max_bytes <= MAX_OP_BYTES:
            refuse(f"must be from 0 (3 MiB) to {MAX_OP_BYTES}, not {request.max_bytes}", "max_bytes")
        if not 0 <= request.tried <= _TRIED_MAX:
            refuse(f"must be from 0 to {_TRIED_MAX}, not {request.tried}", "tried")
        call = caller.call(request, needs_peer=True, memorable=True)
        op = Lease(call, request.max_items or 1, request.max_bytes or DEFAULT_GRANT_BYTES)
        stated_ms = request.wait_ms if request.HasField("wait_ms") else None
        waiter = LeaseWaiter(self._granter, op, request.tried)
        self._waiters.add(waiter)
        try:
            granted = await waiter.wait(wait_s(stated_ms, caller.remaining_s()))
        finally:
            self._waiters.discard(waiter)
        packed = answers.packed_leases(granted) if request.reads_packed else None
        if packed is not None:
            response = v1.LeaseResponse(packed=packed)
        else:
            response = v1.LeaseResponse.FromString(answers.leases(granted, _LEASES))
        self._tell_position(response, call.namespace)
        return response

    def _tell_position(self, response: v1.EnqueueResponse | v1.LeaseResponse, namespace: str) -> None:
        response.position.CopyFrom(self._replica.position(namespace))
        response.depth.CopyFrom(answers.depth_of(self._replica.machine.queue(namespace)))

    async def heartbeat(self, caller: Caller, request: v1.HeartbeatRequest) -> v1.HeartbeatResponse:
        """Extends leases, or all of a peer."""
        call = caller.call(request, needs_peer=True)
        if request.metadata:
            # The machine says what is wrong with it.
            call = call._replace(metadata=dict(request.metadata))
        answer = await self._acks.heartbeat(
            call, request.handles, request.all_of_peer, "handles[{}]", caller.remaining_s()
        )
        answer.position.CopyFrom(self._replica.position(call.namespace))
        return answer

    async def complete(self, caller: Caller, request: v1.CompleteRequest) -> v1.CompleteResponse:
        """Ends items well."""
        call = caller.call(request, needs_peer=True)
        field = "entries[{}].handle"
        if request.HasField("packed"):
            if request.entries:
                refuse("give either this or entries", "packed")
            answer = await self._acks.complete_packed(call, request.packed, field, caller.remaining_s())
        else:
            answer = await self._acks.complete(call, request.entries, field, caller.remaining_s())
        answer.position.CopyFrom(self._replica.position(call.namespace))
        return answer

    async def fail(self, caller: Caller, request: v1.FailRequest) -> v1.FailResponse:
        """Ends attempts badly, or gives leases back."""
        call = caller.call(request, needs_peer=True)
        answer = await self._acks.fail(call, request.entries, "entries[{}]", caller.remaining_s())
        answer.position.CopyFrom(self._replica.position(call.namespace))
        return answer

    def send_away(self, refused: Refused, since: float) -> None:
        """Tells those who have waited since a time to ask elsewhere; those who wait for relief try again."""
        for waiter in list(self._waiters):
            if waiter.since <= since:
                waiter.send_away(refused)
        self._relief.wake_older(since)

    def stop(self, refused: Refused) -> None:
        """Tells all who wait to ask elsewhere."""
        self._stopping = refused
        for waiter in list(self._waiters):
            waiter.stop(refused)
        self._relief.wake_all()


def wait_s(stated_ms: int | None, remaining_s: float | None) -> float:
    """How long a call may wait: as it says, and no longer than lets its answer arrive in time."""
    if stated_ms is not None and stated_ms < 0:
        refuse(f"must be from 0, not {stated_ms}", "wait_ms")
    stated_s = _WAIT_S if stated_ms is None else stated_ms / 1000.0
    if remaining_s is None:
        return min(stated_s, 366 * 24 * 3600.0)
    early_s = min(max(remaining_s * _EARLY_SHARE, _EARLY_MIN_S), _EARLY_MAX_S)
    return max(0.0, min(stated_s, remaining_s - early_s))


def _pushed_back(result: Enqueued) -> bool:
    if not result.refused:
        return False
    return any(refusal.reason is Reason.BACKPRESSURE for refusal in result.refused.values())
