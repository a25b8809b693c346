"""The history as a stream."""

import asyncio
import sys
from typing import Any

import grpc

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ack, fresh, items, refusal
from resourcelease import v1
from resourcelease.frontdoor.tail import Tail
from resourcelease.model.eventdata import EventType, IdsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call


async def read(call: Any, wanted: int) -> list[v1.Event]:
    found: list[v1.Event] = []
    async with asyncio.timeout(10):
        while len(found) < wanted:
            found += (await call.read()).events
    return found


async def live_through(stubs: Stubs, namespace: str) -> None:
    worker = fresh("worker")
    enqueue = v1.EnqueueRequest(
        namespace=namespace, operation_id=fresh("op"), peer_id="p", items=items("a", "b", body=b"secret")
    )
    await stubs.lease.Enqueue(enqueue, timeout=10)
    lease = v1.LeaseRequest(namespace=namespace, operation_id=fresh("op"), peer_id=worker, max_items=2)
    leases = (await stubs.lease.Lease(lease, timeout=10)).leases
    done = v1.CompleteRequest(namespace=namespace, operation_id=fresh("op"), peer_id=worker, entries=ack(*leases))
    await stubs.lease.Complete(done, timeout=10)


def test_history_first_then_live_without_a_gap(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        status = await stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=10)
        start = status.last_sequence + 1
        await live_through(stubs, namespace)
        calls = [each.event.Subscribe(v1.SubscribeRequest(from_sequence=start)) for each in trio.stubs.values()]
        seen = [await read(call, 8) for call in calls]
        await live_through(stubs, namespace)
        seen = [events + await read(call, 7) for call, events in zip(calls, seen, strict=True)]
        numbers = [event.sequence_number for event in seen[0]]
        assert numbers == list(range(start, start + len(numbers)))
        # Every node tells the same, byte for byte.
        texts = [[event.SerializeToString(deterministic=True) for event in events][:15] for events in seen]
        assert texts[0] == texts[1] == texts[2]
        kinds = {event.type for event in seen[0] if event.namespace == namespace}
        assert {v1.EventType.EVENT_TYPE_ENQUEUE, v1.EventType.EVENT_TYPE_COMPLETED} <= kinds
        put = next(event for event in seen[0] if event.type == v1.EventType.EVENT_TYPE_ENQUEUE)
        assert (put.payload.resource_id, put.payload.body, put.payload.body_size) == ("a", b"", 6)
        assert put.metadata["operation_id"]
        for call in calls:
            call.cancel()

    run(scenario())


def test_filters_and_an_end(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        start = (await stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=10)).last_sequence + 1
        await live_through(stubs, namespace)
        end = (await stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=10)).last_sequence
        request = v1.SubscribeRequest(
            from_sequence=start,
            to_sequence=end,
            namespaces=[namespace],
            types=[v1.EventType.EVENT_TYPE_ENQUEUE],
            resource_types=["table"],
            include_bodies=True,
        )
        async with asyncio.timeout(10):
            answers = [answer async for answer in stubs.event.Subscribe(request)]
        events = [event for answer in answers for event in answer.events]
        assert [(event.payload.resource_id, event.payload.body) for event in events] == [
            ("a", b"secret"),
            ("b", b"secret"),
        ]
        assert answers[-1].next_sequence == end + 1
        assert answers[-1].head_sequence >= end

    run(scenario())


def test_from_now_on(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        call: Any = stubs.event.Subscribe(v1.SubscribeRequest(namespaces=[namespace]))
        first = await call.read()
        assert (len(first.events), first.next_sequence) == (0, first.head_sequence + 1)
        await live_through(stubs, namespace)
        events = await read(call, 7)
        assert all(event.sequence_number >= first.next_sequence for event in events)
        call.cancel()

    run(scenario())


def test_publish_says_that_it_is_not_there_yet(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs = await trio.via("leader")
        code, *_ = await refusal(stubs.event.Publish(v1.PublishRequest(source_cluster_id="x"), timeout=5))
        assert code is grpc.StatusCode.UNIMPLEMENTED

    run(scenario())


def record(sequence: int, count: int = 1, size: int = 10) -> Record:
    made = Record(EventType.RELEASED, IdsData(list(range(count)), 1), call=Call("ns"), count=count)
    made.sequence, made.encoded = sequence, bytes(size)
    return made


def test_the_tail_is_bounded_and_survives_a_gap() -> None:
    async def scenario() -> None:
        tail = Tail(1, events_max=10, bytes_max=1000)
        assert (tail.first_sequence, tail.next_sequence) == (1, 1)
        news = asyncio.ensure_future(tail.news())
        await asyncio.sleep(0)
        tail.extend([record(1, 4), record(5, 4), record(9, 4)])
        await news
        assert (tail.first_sequence, tail.next_sequence) == (5, 13)
        assert [each.sequence for each in tail.records(6)] == [5, 9]
        assert list(tail.records(4)) == list(tail.records(13)) == []
        tail.extend([record(13, 1, 2000)])
        assert (tail.first_sequence, tail.next_sequence) == (13, 14)
        tail.extend([record(100)])
        assert (tail.first_sequence, tail.next_sequence) == (100, 101)
        for sequence in range(101, 20_000):
            tail.extend([record(sequence)])
        assert [each.sequence for each in tail.records(19_998)] == [19_998, 19_999]

    asyncio.run(scenario())


def test_the_tail_lets_go_of_what_it_forgets() -> None:
    async def scenario() -> None:
        tail = Tail(1, events_max=10, bytes_max=1000)
        forgotten = record(1, 1, 2000)
        before = sys.getrefcount(forgotten)
        tail.extend([forgotten])
        assert sys.getrefcount(forgotten) > before
        tail.extend([record(2)])
        assert sys.getrefcount(forgotten) == before

    asyncio.run(scenario())
