"""The stream of a worker."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ended, fresh, info_of, items, until
from resourcelease import v1
from resourcelease.frontdoor import work

ROLES = pytest.mark.parametrize("role", ["leader", "follower"])


class Worker:
    """A worker that reads what it is told to wait for."""

    def __init__(self, stubs: Stubs, wire: str, namespace: str, peer: str, credit: int = 0, **opening: Any) -> None:
        self.call: Any = stubs.stream("Work", wire)
        self.namespace = namespace
        self.peer = peer
        self.first = v1.WorkRequest(
            namespace=namespace, peer_id=peer, credit=credit, open=v1.WorkOpen(**opening), operation_id="open"
        )
        self.frames: list[v1.WorkResponse] = []

    async def open(self) -> v1.WorkOpened:
        await self.call.write(self.first)
        return (await self.next("opened")).opened

    async def send(self, **fields: Any) -> None:
        await self.call.write(v1.WorkRequest(**fields))

    async def next(self, kind: str) -> v1.WorkResponse:
        async with asyncio.timeout(10):
            while True:
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF, f"the stream ended before {kind}: {self.frames}"
                self.frames.append(frame)
                if frame.WhichOneof("frame") == kind:
                    return frame  # type: ignore[no-any-return]

    async def leases(self, count: int) -> list[v1.Lease]:
        found: list[v1.Lease] = []
        while len(found) < count:
            pushed = (await self.next("leases")).leases
            assert not pushed.HasField("packed") or self.first.open.reads_packed
            found += pushed.leases
        return found

    async def close(self) -> None:
        await self.call.done_writing()
        assert (await ended(self.call)).code() is grpc.StatusCode.OK


async def put(stubs: Stubs, namespace: str, count: int) -> None:
    request = v1.EnqueueRequest(
        namespace=namespace, operation_id=fresh("op"), items=items(*(f"i{n}" for n in range(count)))
    )
    await stubs.lease.Enqueue(request, timeout=10)


async def settled(stubs: Stubs, namespace: str, good: Callable[[v1.Depth], bool]) -> v1.Depth:
    async with asyncio.timeout(10):
        while True:
            request = v1.QueuesRequest(namespaces=[namespace], linearizable=True)
            depth = (await stubs.admin.Queues(request, timeout=10)).queues[0].summary.depth
            if good(depth):
                return depth
            await asyncio.sleep(0.02)


@ROLES
def test_leases_are_pushed_as_far_as_credit_goes(trio: Cluster, run: Runner, wire: str, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        worker = Worker(stubs, wire, namespace, "w", credit=3)
        opened = await worker.open()
        assert opened.node_id in trio.nodes
        assert (opened.lease_duration_ms, opened.heartbeat_interval_ms) == (30_000, 10_000)
        await put(await trio.via("leader"), namespace, 5)
        leases = await worker.leases(3)
        await worker.send(credit=-5)
        await worker.send(
            operation_id="c1", complete=v1.WorkComplete(entries=[v1.CompleteEntry(handle=leases[0].handle)])
        )
        done = (await worker.next("done")).done
        assert (done.operation_id, done.complete.results[0].WhichOneof("result")) == ("c1", "completed")
        assert not done.complete.HasField("position")
        assert await settled(stubs, namespace, lambda depth: depth.pending == 2)
        await worker.send(credit=10)
        leases += await worker.leases(2)
        assert [each.handle.sequence_id for each in leases] == [1, 2, 3, 4, 5]

        fail = v1.WorkFail()
        fail.entries.add(handle=leases[1].handle, error=v1.Failure(code="E"), delay_ms=60_000)
        await worker.send(operation_id="f1", fail=fail)
        assert (await worker.next("done")).done.fail.results[0].HasField("failed")
        await worker.send(operation_id="h1", heartbeat=v1.WorkHeartbeat(all_of_peer=True))
        assert (await worker.next("done")).done.heartbeat.remaining_ms > 0
        await worker.send(operation_id="b1", heartbeat=v1.WorkHeartbeat())
        error = (await worker.next("done")).done.error
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", "heartbeat.handles")
        await worker.send(credit=-100)
        await worker.send(operation_id="g1", hand_back=v1.HandBack(all_of_stream=True))
        assert (await worker.next("done")).done.WhichOneof("result") == "hand_back"
        await worker.close()
        depth = await settled(stubs, namespace, lambda depth: depth.active == 0)
        assert (depth.pending, depth.delayed) == (3, 1)

    run(scenario())


@ROLES
def test_who_waits_is_granted_what_comes_in_the_same_entry_of_the_log(
    trio: Cluster, run: Runner, wire: str, role: str
) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        worker = Worker(stubs, wire, namespace, "w1", credit=100)
        await worker.open()
        entries: dict[int, set[int]] = {}
        # Whether the worker stands in line again by the time the next item comes cannot be seen from outside.
        for number in range(1, 31):
            await put(stubs, namespace, 1)
            assert [each.handle.sequence_id for each in await worker.leases(1)] == [number]
        events = stubs.event.Subscribe(v1.SubscribeRequest(from_sequence=1, namespaces=[namespace]))
        seen = 0
        async for answer in events:
            for event in answer.events:
                entries.setdefault(event.raft_index, set()).add(event.type)
                seen += event.type == v1.EventType.EVENT_TYPE_LEASE_GRANTED
            if seen == 30:
                break
        events.cancel()
        both = {v1.EventType.EVENT_TYPE_ENQUEUE, v1.EventType.EVENT_TYPE_LEASE_GRANTED}
        assert both in entries.values()
        await worker.close()

    run(scenario())


def test_a_worker_may_say_any_number_of_frames(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        worker = Worker(await trio.via("follower"), wire, fresh(), "w")
        await worker.open()
        for beat in (v1.WorkHeartbeat(), v1.WorkHeartbeat(all_of_peer=True)):
            for number in range(100):
                await worker.send(operation_id=str(number), heartbeat=beat)
            names = {(await worker.next("done")).done.operation_id for _ in range(100)}
            assert names == {str(number) for number in range(100)}
        await worker.close()

    run(scenario())


def test_who_held_as_many_as_may_be_is_granted_more_when_it_has_completed_them(
    trio: Cluster, run: Runner, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        monkeypatch.setattr(work, "MAX_ITEMS_PER_OP", 2)
        await put(stubs, namespace, 6)
        worker = Worker(stubs, wire, namespace, "w", credit=2)
        await worker.open()
        for number in range(2):
            held = await worker.leases(2)
            entries = [v1.CompleteEntry(handle=each.handle) for each in held]
            await worker.send(credit=2, operation_id=f"c{number}", complete=v1.WorkComplete(entries=entries))
        # The same by a call of its own, of which the stream hears nothing.
        held = await worker.leases(2)
        await worker.send(credit=2)
        await put(stubs, namespace, 1)
        entries = [v1.CompleteEntry(handle=each.handle) for each in held]
        await stubs.lease.Complete(v1.CompleteRequest(namespace=namespace, peer_id="w", entries=entries), timeout=10)
        assert len(await worker.leases(1)) == 1
        await worker.close()

    run(scenario())


def test_what_arrived_is_the_workers_when_the_stream_breaks(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await put(stubs, namespace, 3)
        worker = Worker(stubs, wire, namespace, "w", credit=2)
        await worker.open()
        held = await worker.leases(2)
        worker.call.cancel()
        other = await trio.via("leader")
        again = Worker(
            other, wire, namespace, "w", held=[held[0].handle, v1.Handle(sequence_id=3, attempt=1, lease_id=1)]
        )
        again.first.open.give_back_others = True
        await again.open()
        lost = (await again.next("lost")).lost.leases
        assert [each.handle.sequence_id for each in lost] == [3]
        assert lost[0].error.reason in ("LEASE_LOST", "NOT_FOUND")
        # The second lease was not claimed, and went back.
        await settled(stubs, namespace, lambda depth: (depth.pending, depth.active) == (2, 1))
        await again.close()

    run(scenario())


def test_what_a_stream_holds_goes_back_when_it_is_closed_in_order(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await put(stubs, namespace, 3)
        worker = Worker(stubs, wire, namespace, "w", credit=3)
        await worker.open()
        held = await worker.leases(3)
        await worker.send(
            operation_id="done", complete=v1.WorkComplete(entries=[v1.CompleteEntry(handle=held[0].handle)])
        )
        await worker.close()
        await settled(stubs, namespace, lambda depth: (depth.pending, depth.active) == (2, 0))
        lease = v1.LeaseRequest(namespace=namespace, peer_id="x", operation_id=fresh("op"), max_items=2)
        again = (await stubs.lease.Lease(lease, timeout=10)).leases
        assert [(each.handle.sequence_id, each.handle.attempt) for each in again] == [(2, 1), (3, 1)]

    run(scenario())


def test_a_broken_stream_leaves_its_leases_to_run_out(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        options = v1.QueueOptions(lease_duration_ms=600, heartbeat_interval_ms=150)
        configure = v1.ConfigureRequest(namespace=namespace, operation_id=fresh("op"), options=options)
        await stubs.admin.Configure(configure, timeout=10)
        await put(stubs, namespace, 2)
        worker = Worker(stubs, wire, namespace, "w", credit=2)
        await worker.open()
        leases = await worker.leases(2)
        # Longer than a lease: the node heartbeats while the stream lives.
        await asyncio.sleep(1.0)
        depth = await settled(stubs, namespace, lambda depth: True)
        assert (depth.pending, depth.active) == (0, 2)
        worker.call.cancel()
        await settled(stubs, namespace, lambda depth: (depth.pending, depth.active) == (2, 0))
        again = Worker(stubs, wire, namespace, "w2", credit=2)
        await again.open()
        assert {each.handle.attempt for each in await again.leases(2)} == {2}
        assert leases[0].handle.attempt == 1
        again.call.cancel()

    run(scenario())


def test_a_worker_hears_of_leases_that_it_lost(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        await put(stubs, namespace, 2)
        worker = Worker(await trio.via("follower"), wire, namespace, "w", credit=2)
        await worker.open()
        leases = await worker.leases(2)
        drain = v1.DrainRequest(namespace=namespace, peer_id="ops", bundle_id="b", include_active=True, limit=1)
        await stubs.lease.Drain(drain, timeout=10)
        lost = (await worker.next("lost")).lost.leases
        assert [(each.handle, each.error.reason) for each in lost] == [(leases[0].handle, "LEASE_LOST")]
        worker.call.cancel()

    run(scenario())


def test_an_idle_worker_stays_healthy(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace, peer = await trio.via("follower"), fresh(), fresh("peer")
        options = v1.QueueOptions(peer_grace_ms=300)
        configure = v1.ConfigureRequest(namespace=namespace, operation_id=fresh("op"), options=options)
        await stubs.admin.Configure(configure, timeout=10)
        worker = Worker(stubs, wire, namespace, peer, credit=1)
        await worker.open()
        for _ in range(3):
            await asyncio.sleep(0.3)
            request = v1.PeersRequest(namespace=namespace, peer_ids=[peer], linearizable=True)
            [told] = (await stubs.admin.Peers(request, timeout=10)).peers
            assert told.healthy
        await worker.close()

    run(scenario())


def test_workers_share_what_there_is(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        workers = [Worker(stubs, wire, namespace, f"w{i}", credit=100) for i in range(3)]
        for worker in workers:
            await worker.open()
        await until(lambda: sum(node.door.waiting for node in trio.nodes.values()) >= 3)
        await put(stubs, namespace, 9)
        for worker in workers:
            assert len(await worker.leases(3)) == 3
            worker.call.cancel()

    run(scenario())


@pytest.mark.parametrize(
    ("frames", "field"),
    [
        ([v1.WorkRequest(peer_id="w", credit=1)], "open"),
        ([v1.WorkRequest(open=v1.WorkOpen())], "peer_id"),
        ([v1.WorkRequest(peer_id="w", open=v1.WorkOpen(held=[v1.Handle()]))], "open.held[0].sequence_id"),
        ([v1.WorkRequest(peer_id="w", open=v1.WorkOpen()), v1.WorkRequest(open=v1.WorkOpen())], "open"),
        ([v1.WorkRequest(peer_id="w", open=v1.WorkOpen()), v1.WorkRequest(peer_id="x", credit=1)], "peer_id"),
        ([v1.WorkRequest(peer_id="w", open=v1.WorkOpen()), v1.WorkRequest(namespace="x")], "namespace"),
        (
            [v1.WorkRequest(peer_id="w", open=v1.WorkOpen()), v1.WorkRequest(complete=v1.WorkComplete())],
            "operation_id",
        ),
    ],
)
def test_a_stream_that_breaks_the_rules_is_ended(
    trio: Cluster, run: Runner, wire: str, frames: list[v1.WorkRequest], field: str
) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        call: Any = stubs.stream("Work", wire)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in frames:
                await call.write(frame)
        code, reason, told, _ = info_of(await ended(call))
        assert (code, reason, told) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", field)

    run(scenario())
