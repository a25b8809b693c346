"""What following the history brings: one node in a process of its own, one subscriber in this one, decoded messages.

The history is read from its first event to its last, by a subscriber that looks at each event's number; most of it
comes from the files. Nothing else happens on the node meanwhile.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from resourcelease import Client, v1
from resourcelease.cli.processes import LocalCluster
from resourcelease.v1.event_service_pb2_grpc import EventServiceStub
from resourcelease.v1.lease_service_pb2_grpc import LeaseServiceStub

__all__ = ["measure_subscribe"]

_ITEMS_A_CALL = 1_000
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def measure_subscribe(directory: Path, *, events: int, rounds: int) -> dict[str, Any]:
    """Makes about so many events, and reads them; the median of rounds, after one that does not count."""
    return asyncio.run(_measure(directory, events, rounds))


async def _measure(directory: Path, events: int, rounds: int) -> dict[str, Any]:
    cluster = LocalCluster.plan(directory, 1)
    try:
        cluster.start()
        async with Client(cluster.endpoints) as client:
            await cluster.ready(client)
            async with grpc.aio.insecure_channel(cluster.endpoints[0], options=_OPTIONS) as channel:
                await _fill(LeaseServiceStub(channel), events)
                last = (await client.status(linearizable=True)).last_sequence
                took = [await _read(EventServiceStub(channel), last) for _ in range(rounds + 1)]
    finally:
        await cluster.stop()
    return {"subscribe_events": last, "subscribe_events_per_s": round(last / median(took[1:]))}


async def _fill(stub: Any, events: int) -> None:
    """Lifecycles of items with small bodies, in large calls."""
    items = [
        v1.ItemPayload(resource_type="table", resource_id=f"resource-{number:06d}", body=b"x" * 64)
        for number in range(_ITEMS_A_CALL)
    ]
    for number in range(max(1, events // 3 // _ITEMS_A_CALL)):
        put = v1.EnqueueRequest(namespace="jobs", operation_id=f"put-{number}", items=items)
        await stub.Enqueue(put, timeout=60)
        take = v1.LeaseRequest(namespace="jobs", operation_id=f"take-{number}", peer_id="w", max_items=_ITEMS_A_CALL)
        leases = (await stub.Lease(take, timeout=60)).leases
        entries = [v1.CompleteEntry(handle=lease.handle) for lease in leases]
        done = v1.CompleteRequest(namespace="jobs", operation_id=f"done-{number}", peer_id="w", entries=entries)
        await stub.Complete(done, timeout=60)


async def _read(stub: Any, last: int) -> float:
    """Seconds for the whole history; RuntimeError if an event is missing."""
    expected, began = 1, time.perf_counter()
    async for answer in stub.Subscribe(v1.SubscribeRequest(from_sequence=1, to_sequence=last)):
        for event in answer.events:
            if event.sequence_number != expected:
                raise RuntimeError(f"event {event.sequence_number} came where {expected} belongs")
            expected += 1
    if expected != last + 1:
        raise RuntimeError(f"the stream ended before event {expected}, and there are {last}: its time says nothing")
    return time.perf_counter() - began
