"""Whether this node should be sent calls: it knows a leader, hears from it, and keeps up."""

import asyncio
from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]

from resourcelease.frontdoor.replica import LOOK_S, Replica

__all__ = ["Readiness"]

# A node that has applied no more than so many entries less than are committed keeps up.
_BEHIND_MAX = 1_000


class Readiness:
    """Keeps grpc.health.v1 true."""

    def __init__(self, replica: Replica, services: Sequence[str]) -> None:
        self._replica = replica
        self._services = ("", *services)
        self.servicer = health.aio.HealthServicer()
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """As of now."""
        status = self._replica.consensus.status()
        return self._replica.in_touch and status.commit_index - status.applied_index <= _BEHIND_MAX

    async def start(self) -> None:
        """Begins to look, now and then."""
        await self._tell(False)
        self._task = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        """Not ready any more, for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.servicer.enter_graceful_shutdown()

    async def _keep(self) -> None:
        told = False
        while True:
            if self.ready != told:
                told = not told
                await self._tell(told)
            await asyncio.sleep(LOOK_S)

    async def _tell(self, ready: bool) -> None:
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if ready else states.NOT_SERVING
        for service in self._services:
            await self.servicer.set(service, state)
