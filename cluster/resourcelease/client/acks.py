"""Verdicts and heartbeats by plain calls, joined: for leases that did not come by a stream."""

import asyncio
from collections.abc import Sequence
from typing import Any

from resourcelease import v1
from resourcelease.client.caller import Caller
from resourcelease.client.errors import AlreadySettled, LeaseLost, NotFound, ResourceLeaseError, error_of_item
from resourcelease.client.keeper import Keeper
from resourcelease.client.lane import Lane
from resourcelease.client.lease import Lease
from resourcelease.client.packing import Handles

__all__ = ["GONE", "CallAcks", "lose_the_gone"]

# After one of these the lease is no more.
GONE = (LeaseLost, AlreadySettled, NotFound)

Verdict = ResourceLeaseError | None


def lose_the_gone(leases: Sequence[Lease], verdicts: Sequence[Verdict]) -> None:
    """Tells leases that are no more so."""
    if not any(verdicts):
        return
    for lease, verdict in zip(leases, verdicts, strict=True):
        if isinstance(verdict, GONE):
            lease.lose(verdict)


class CallAcks:
    """What one peer has to say about its leases in one namespace."""

    def __init__(self, caller: Caller, namespace: str, peer_id: str) -> None:
        self._caller = caller
        self._of: dict[str, Any] = {"namespace": namespace, "peer_id": peer_id}
        self._loop = asyncio.get_running_loop()
        self.completing: Lane[tuple[int, int, int], None] = Lane(self._send_complete, caller.runway)
        self.failing: Lane[v1.FailEntry, None] = Lane(self._send_fail, caller.runway)
        self.beating: Lane[v1.Handle, float] = Lane(self._send_heartbeat, caller.runway)
        self._keeper: Keeper | None = None

    async def complete(self, lease: Lease) -> None:
        """Ends the item well."""
        if self._keeper is not None:
            self._keeper.discard(lease)
        try:
            await self.completing.put((lease.sequence_id, lease.attempt, lease.fence))
        except GONE as error:
            lease.lose(error)
            raise

    async def complete_all(self, leases: Sequence[Lease]) -> Sequence[Verdict]:
        """Ends many items well; says of each what was against it."""
        if self._keeper is not None:
            for lease in leases:
                self._keeper.discard(lease)
        handles = [(lease.sequence_id, lease.attempt, lease.fence) for lease in leases]
        verdicts = await self.completing.put_many(handles)
        lose_the_gone(leases, verdicts)
        return verdicts

    async def fail(self, lease: Lease, entry: v1.FailEntry) -> None:
        """Ends the attempt badly, or gives the lease back."""
        if self._keeper is not None:
            self._keeper.discard(lease)
        try:
            await self.failing.put(entry)
        except GONE as error:
            lease.lose(error)
            raise

    async def heartbeat(self, lease: Lease) -> None:
        """Extends the lease."""
        try:
            lease.deadline = max(lease.deadline, await self.beating.put(lease.handle))
        except GONE as error:
            lease.lose(error)
            raise

    def keep(self, lease: Lease) -> None:
        """Extends the lease from now on, until it is settled."""
        if self._keeper is None:
            self._keeper = Keeper(self._beat, lease.remaining / 3)
        self._keeper.interval = min(self._keeper.interval, max(lease.remaining / 3, 0.02))
        self._keeper.add(lease)

    def let_go(self, lease: Lease) -> None:
        """Extends the lease no more: it was settled elsewhere."""
        if self._keeper is not None:
            self._keeper.discard(lease)

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._keeper is not None:
            await self._keeper.close()
        await self.completing.close()
        await self.failing.close()
        await self.beating.close()

    async def _send_complete(self, handles: list[tuple[int, int, int]], oldest: float) -> Sequence[Verdict]:
        request = v1.CompleteRequest(**self._of)
        answer: v1.CompleteResponse = await self._caller.change(
            "Complete", request, self._caller.left(oldest), entries=Handles(handles)
        )
        if answer.completed:
            return [None] * answer.completed
        return [error_of_item(result.error) if result.HasField("error") else None for result in answer.results]

    async def _send_fail(self, entries: list[v1.FailEntry], oldest: float) -> Sequence[Verdict]:
        request = v1.FailRequest(**self._of, entries=entries)
        answer: v1.FailResponse = await self._caller.change("Fail", request, self._caller.left(oldest))
        return [error_of_item(result.error) if result.HasField("error") else None for result in answer.results]

    async def _send_heartbeat(self, handles: list[v1.Handle], oldest: float) -> Sequence[float | ResourceLeaseError]:
        request = v1.HeartbeatRequest(**self._of, handles=handles)
        sent_at = self._loop.time()
        answer: v1.HeartbeatResponse = await self._caller.change("Heartbeat", request, self._caller.left(oldest))
        deadline = sent_at + answer.remaining_ms / 1000
        return [error_of_item(result.error) if result.HasField("error") else deadline for result in answer.results]

    async def _beat(self, leases: list[Lease]) -> v1.HeartbeatResponse:
        request = v1.HeartbeatRequest(**self._of, handles=[lease.handle for lease in leases])
        answer: v1.HeartbeatResponse = await self._caller.change("Heartbeat", request)
        return answer
