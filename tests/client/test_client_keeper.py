"""Keeping leases on whatever loop the program runs on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from fake_cluster import until

from resourcelease import v1
from resourcelease.client.errors import LeaseLost
from resourcelease.client.grants import leases_of_messages
from resourcelease.client.keeper import Keeper
from resourcelease.client.lease import Lease


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_leases_that_run_out_at_once_are_lost_in_any_order(factory: Callable[[], Any]) -> None:
    async def beat(leases: list[Lease]) -> v1.HeartbeatResponse:
        return v1.HeartbeatResponse()

    def lease(fence: int, deadline: float) -> Lease:
        granted = v1.Lease(handle=v1.Handle(sequence_id=fence, attempt=1, lease_id=fence), remaining_ms=1000)
        acks: Any = None
        (made,) = leases_of_messages([granted], acks, "w", 0.0)
        made.deadline = deadline
        return made

    async def story() -> None:
        now = asyncio.get_running_loop().time()
        keeper = Keeper(beat, 10.0)
        leases = [lease(1, now), lease(2, now - 1), lease(3, now + 0.01)]
        for each in leases:
            keeper.add(each)
        await until(lambda: all(each.error for each in leases))
        assert {type(each.error) for each in leases} == {LeaseLost}
        await keeper.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story())
