"""More of everything than anybody should want: expiries, waiting callers, calls, and readers who do not read."""

import asyncio
import contextlib
import time

import grpc

from chaos.drills.scene import Broken, Drill, Scene
from chaos.drills.workload import Plan
from resourcelease import v1
from resourcelease.client import Client, Lease, ResourceLeaseError
from resourcelease.v1 import event_service_pb2_grpc

__all__ = ["DRILLS"]

# A namespace for the load, so that the workload's own promises stay exact.
_AWAY = "storm"
_HERD = 2_000
_STORM = 100_000
# How long the leases of the storm last after their last heartbeat.
_STORM_MS = 10_000
_LIGHT = Plan(producers=2, workers=4, stream_workers=1, rate=30.0, open_max=60, lease_ms=5_000)


async def expiry_storm(scene: Scene) -> None:
    """A hundred thousand leases fall due at one moment; all are grantable again soon after."""
    async with Client(scene.cluster.endpoints, namespace=_AWAY, peer_id="storm", timeout=60) as client:
        await client.configure(lease_duration_ms=_STORM_MS, max_attempts=100)
        for first in range(0, _STORM, 5_000):
            await client.enqueue_many(
                {"resource_type": "row", "resource_id": f"r{number}"} for number in range(first, first + 5_000)
            )
        fault = scene.fault(f"{_STORM:,} leases are taken and left to run out together")
        taken = 0
        while taken < _STORM:
            taken += len(await client.lease(min(10_000, _STORM - taken), wait=10))
        began = scene.history.now()
        # From here on, all of them have the same time left.
        await client.heartbeat()
        await scene.work(_STORM_MS / 1000)
        summary = (await client.queues(_AWAY, linearizable=True))[0].summary
        until = time.monotonic() + 20
        while summary.depth.active and time.monotonic() < until:
            await scene.work(0.05)
            summary = (await client.queues(_AWAY, linearizable=True))[0].summary
        if summary.depth.active or summary.depth.pending < _STORM:
            raise Broken(f"of {_STORM:,} leases, {summary.depth.active:,} have not expired after 20 s")
        scene.counts["leases that expired together"] = _STORM
        scene.counts["seconds from the last heartbeat until all had expired"] = scene.history.now() - began
        scene.over(fault, "all have expired")
        await scene.recovered("the storm", began, scene.recover_s + _STORM_MS / 1000)
        await _empty(client)
    await scene.work(scene.seconds * 0.2)


async def herd(scene: Scene) -> None:
    """Two thousand callers wait for work that comes one by one, then at once; each item wakes one caller."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Client(scene.cluster.endpoints, namespace=_AWAY, peer_id=f"herd-{number}", timeout=40)
            )
            for number in range(4)
        ]
        await clients[0].configure(lease_duration_ms=60_000)
        fault = scene.fault(f"{_HERD:,} callers wait for work")
        waiting = [
            asyncio.create_task(clients[at % 4].lease(1, wait=60.0, peer_id=f"caller-{at}")) for at in range(_HERD)
        ]
        try:
            await scene.work(4.0)
            for number in range(20):
                await clients[0].enqueue("row", f"single-{number}")
            await scene.work(1.0)
            single = sum(task.done() for task in waiting)
            if single != 20:
                raise Broken(f"20 items came and {single} of the waiting callers were woken")
            start = scene.history.now()
            await clients[0].enqueue_many(
                {"resource_type": "row", "resource_id": f"r{number}"} for number in range(_HERD - 20)
            )
            leases = await _all_served(clients[0], waiting)
            scene.counts["seconds until all waiting callers had an item"] = scene.history.now() - start
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        scene.over(fault, "all have an item")
        numbers = {lease.sequence_id for lease in leases}
        if len(leases) != _HERD or len(numbers) != _HERD:
            raise Broken(f"{_HERD:,} callers got {len(leases):,} leases of {len(numbers):,} items")
        await clients[0].complete_many([lease.handle for lease in leases])
        await scene.recovered("the herd", start)
    await scene.work(scene.seconds * 0.2)


async def _all_served(client: Client, waiting: list[asyncio.Task[list[Lease]]]) -> list[Lease]:
    """What the callers got, once all have something; there is an item for each."""
    done, still = await asyncio.wait(waiting, timeout=30)
    if still:
        depth = (await client.queues(_AWAY, linearizable=True))[0].summary.depth
        raise Broken(f"{len(still):,} callers have waited 30 s for work while {depth.pending:,} items were pending")
    return [lease for task in done for lease in task.result()]


async def flood(scene: Scene) -> None:
    """One client enqueues as fast as it can into a namespace that is soon full; others go on."""
    async with Client(scene.cluster.endpoints, namespace=_AWAY, peer_id="flood", timeout=10) as client:
        await client.configure(capacity=20_000, high_watermark=10_000, low_watermark=5_000)
        fault = scene.fault("a client floods")
        start = scene.history.now()
        stop = time.monotonic() + scene.seconds * 0.5
        counts = {"items that the flood got in": 0, "refusals that the flood met": 0}

        async def pour() -> None:
            while time.monotonic() < stop:
                try:
                    items = ({"resource_type": "row", "resource_id": "r", "body": b"x" * 200} for _ in range(200))
                    counts["items that the flood got in"] += len(await client.enqueue_many(items, wait=0.0))
                except ResourceLeaseError:
                    counts["refusals that the flood met"] += 1
                    await asyncio.sleep(0.02)

        pouring = [asyncio.create_task(pour()) for _ in range(12)]
        await scene.work(scene.seconds * 0.5)
        await asyncio.gather(*pouring)
        scene.over(fault, "the flood ends")
        scene.counts.update(counts)
        if not counts["refusals that the flood met"]:
            raise Broken("nobody told the flood to slow down")
        await scene.recovered("the flood began", start)
        await _empty(client)
    await scene.work(scene.seconds * 0.2)


async def stalled_reader(scene: Scene) -> None:
    """Subscribers who open a stream and read nothing; nodes neither wait for them nor keep everything for them."""
    fault = scene.fault("20 subscribers read nothing")
    start = scene.history.now()
    async with contextlib.AsyncExitStack() as stack:
        calls = []
        for at in range(20):
            address = scene.cluster.endpoints[at % len(scene.cluster.endpoints)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            stub = event_service_pb2_grpc.EventServiceStub(channel)
            call = stub.Subscribe(v1.SubscribeRequest(from_sequence=1, include_bodies=True))
            await call.read()
            calls.append(call)
        await scene.work(scene.seconds * 0.5)
        await scene.recovered("the stall began", start)
        for call in calls:
            call.cancel()
    scene.over(fault, "they hang up")
    await scene.work(scene.seconds * 0.1)


async def _empty(client: Client) -> None:
    """Takes everything out of the namespace of the load."""
    await client.configure(lease_duration_ms=60_000)
    while leases := await client.lease(5_000, wait=0.2):
        await client.complete_many([lease.handle for lease in leases])


DRILLS = [
    # Half a million events, of which the journal, the tail of the log and the remembered answers keep a good part.
    Drill(
        "expiry-storm",
        "100,000 leases that fall due together are grantable again at once",
        expiry_storm,
        6.0,
        _LIGHT,
        more_mib=320.0,
    ),
    Drill("herd", "2,000 blocked callers: an item wakes one, each gets one", herd, 6.0, _LIGHT),
    Drill("flood", "who floods is told to slow down; others are served", flood, 6.0, _LIGHT),
    Drill("stalled-reader", "who does not read holds nobody up", stalled_reader, 6.0),
]
