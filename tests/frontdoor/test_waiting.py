"""Calls that wait: for work, for relief, and for nobody once their caller has gone."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import pytest

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ack, eventually, fresh, items, refusal, until
from resourcelease import v1
from resourcelease.frontdoor.leasing import NOTHING
from resourcelease.model.ops import Call


async def stands_at(stubs: Stubs, namespace: str, wanted: tuple[int, int]) -> bool:
    return await depth(stubs, namespace) == wanted


def asking(
    stubs: Stubs, namespace: str, peer: str, *, count: int = 1, wait_ms: int = 10_000, timeout: float = 15
) -> Any:
    request = v1.LeaseRequest(
        namespace=namespace, operation_id=fresh("op"), peer_id=peer, max_items=count, wait_ms=wait_ms
    )
    return stubs.lease.Lease(request, timeout=timeout)


async def put(stubs: Stubs, namespace: str, *names: str, **fields: Any) -> v1.EnqueueResponse:
    request = v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), items=items(*names), **fields)
    return await stubs.lease.Enqueue(request, timeout=15)


async def waiting(cluster: Cluster, count: int) -> None:
    """Until so many stand in line, on all nodes together."""
    await until(lambda: sum(node.door.waiting for node in cluster.nodes.values()) >= count)


async def depth(stubs: Stubs, namespace: str) -> tuple[int, int]:
    found = await stubs.admin.Queues(v1.QueuesRequest(namespaces=[namespace], linearizable=True), timeout=10)
    return found.queues[0].summary.depth.pending, found.queues[0].summary.depth.active


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_lease_waits_for_what_another_node_brings(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        other = next(each for each in trio.stubs.values() if each is not stubs)
        call = asking(stubs, namespace, "w")
        await waiting(trio, 1)
        began = time.monotonic()
        await put(other, namespace, "a")
        answer = await call
        assert [each.payload.resource_id for each in answer.leases] == ["a"]
        assert time.monotonic() - began < 2

    run(scenario())


def test_the_oldest_waiter_is_served_first(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        one, two = fresh(), fresh()
        calls: list[tuple[str, Any]] = []
        for number in range(4):
            for namespace in (one, two):
                calls.append((namespace, asking(stubs, namespace, f"w{number}")))
                await waiting(trio, len(calls))
        await put(await trio.via("leader"), one, "a", "b")
        await put(await trio.via("leader"), two, "c")
        for namespace, call in (calls[0], calls[2], calls[1]):
            assert len((await call).leases) == 1, namespace
        await put(stubs, two, "d", "e", "f")
        await put(stubs, one, "g", "h")
        answers = await asyncio.gather(*(call for _, call in calls))
        assert all(len(answer.leases) == 1 for answer in answers)
        firsts = [answer.leases[0].handle.sequence_id for (namespace, _), answer in zip(calls, answers, strict=True)]
        assert firsts == [1, 1, 2, 2, 3, 3, 4, 4]

    run(scenario())


def test_an_empty_answer_comes_in_time(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        began = time.monotonic()
        assert not (await asking(stubs, namespace, "w", wait_ms=0)).leases
        assert not (await asking(stubs, namespace, "w", wait_ms=100)).leases
        # The wait ends before the deadline, so that the answer arrives.
        assert not (await asking(stubs, namespace, "w", wait_ms=60_000, timeout=0.6)).leases
        assert time.monotonic() - began < 5
        await waiting(trio, 0)

    run(scenario())


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_caller_that_has_gone_gets_nothing_and_loses_nothing(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        gone = [asking(stubs, namespace, f"gone{i}") for i in range(5)]
        await waiting(trio, 5)
        for call in gone:
            call.cancel()
        stays = asking(stubs, namespace, "stays", count=10)
        await put(stubs, namespace, "a", "b", "c")
        found = list((await stays).leases)
        while len(found) < 3:
            found += (await asking(stubs, namespace, "stays", count=10)).leases
        assert sorted(each.handle.sequence_id for each in found) == [1, 2, 3]
        assert {each.handle.attempt for each in found} == {1}

    run(scenario())


def test_a_grant_on_its_way_to_a_dead_caller_is_given_back(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        leader, namespace = await trio.leader(), fresh()
        name = next(each for each in trio.nodes if each != leader)
        stubs, other = trio.stubs[name], trio.stubs[leader]
        await put(stubs, namespace, "a", "b")
        release = asyncio.Event()
        consensus = trio.nodes[name].consensus
        begin = consensus.begin
        told: list[Callable[[], None]] = []

        def held_up(ops: Sequence[bytes], timeout_s: float, tell: Callable[[Any], None], **how: Any) -> None:
            begin(
                ops, timeout_s, lambda answer: tell(answer) if release.is_set() else told.append(partial(tell, answer))
            )

        async def stands(pending: int, active: int) -> bool:
            return await depth(other, namespace) == (pending, active)

        with monkeypatch.context() as patched:
            patched.setattr(consensus, "begin", held_up)
            call = asking(stubs, namespace, "dying", count=2)
            await eventually(lambda: stands(0, 2))
            call.cancel()
            await asyncio.sleep(0.05)
            release.set()
            for tell in told:
                tell()
            await eventually(lambda: stands(2, 0))
        assert [each.handle.attempt for each in (await asking(other, namespace, "w", count=2)).leases] == [1, 1]

    run(scenario())


def test_an_earlier_try_that_is_served_late_leaves_the_leases_to_the_later_one(trio: Cluster, run: Runner) -> None:
    """As when a node slept through the first try, and wakes up with it once the second has been answered."""

    async def scenario() -> None:
        leader, namespace, operation_id = await trio.leader(), fresh(), fresh("op")
        late = next(each for each in trio.nodes if each != leader)
        request = v1.LeaseRequest(namespace=namespace, operation_id=operation_id, peer_id="w", max_items=1)
        await put(trio.stubs[leader], namespace, "a")
        again = v1.LeaseRequest()
        again.CopyFrom(request)
        again.tried = 1
        (lease,) = (await trio.stubs[leader].lease.Lease(again, timeout=10)).leases
        (told,) = (await trio.stubs[late].lease.Lease(request, timeout=10)).leases
        assert told.handle == lease.handle
        # Its caller has gone.
        machine = trio.nodes[late].consensus.machine
        granted = NOTHING._replace(sequence_ids=[1], attempts=[1], fences=[lease.handle.lease_id])
        call = Call(namespace, "w", operation_id=operation_id, take=1)
        trio.nodes[late].door._granter.give_back(call, granted)
        applied = machine.applied_index
        await until(lambda: machine.applied_index > applied)
        assert await depth(trio.stubs[leader], namespace) == (0, 1)
        # The later one's caller may give up as well, and then it goes back.
        call = Call(namespace, "w", operation_id=operation_id, take=1 << 10)
        trio.nodes[leader].door._granter.give_back(call, granted)
        await eventually(lambda: stands_at(trio.stubs[leader], namespace, (1, 0)))

    run(scenario())


@pytest.mark.parametrize("tried", [-1, 1_000_001])
def test_tries_are_counted_within_reason(trio: Cluster, run: Runner, tried: int) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        request = v1.LeaseRequest(namespace=fresh(), operation_id=fresh("op"), peer_id="w", tried=tried)
        told = await refusal(stubs.lease.Lease(request, timeout=5))
        assert told[:3] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "tried")

    run(scenario())


def test_a_pause_is_waited_out(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await put(stubs, namespace, "a")
        await stubs.admin.Pause(v1.PauseRequest(namespace=namespace, operation_id=fresh("op")), timeout=10)
        told = await refusal(asking(stubs, namespace, "w", wait_ms=50))
        assert told == (grpc.StatusCode.FAILED_PRECONDITION, "PAUSED", "", False)
        call = asking(stubs, namespace, "w")
        await waiting(trio, 1)
        await stubs.admin.Resume(v1.ResumeRequest(namespace=namespace, operation_id=fresh("op")), timeout=10)
        assert len((await call).leases) == 1

    run(scenario())


def test_enqueue_waits_for_relief(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, other, namespace = await trio.via("follower"), await trio.via("leader"), fresh()
        options = v1.QueueOptions(high_watermark=2, low_watermark=1)
        configure = v1.ConfigureRequest(namespace=namespace, operation_id=fresh("op"), options=options)
        await stubs.admin.Configure(configure, timeout=10)
        watch: Any = other.admin.WatchBackpressure(
            v1.WatchBackpressureRequest(namespaces=[namespace], linearizable=True)
        )
        state = await watch.read()
        assert (state.active, state.initial, state.high_watermark) == (False, True, 2)
        await put(stubs, namespace, "a", "b")
        change = await watch.read()
        assert (change.active, change.initial, change.depth.pending) == (True, False, 2)
        assert change.sequence_number > 0

        at_once = await put(stubs, namespace, "c", wait_ms=0)
        assert at_once.results[0].error.reason == "BACKPRESSURE"
        assert at_once.results[0].error.retry_after_ms > 0
        began = time.monotonic()
        in_time = await put(stubs, namespace, "c", wait_ms=200)
        assert in_time.results[0].error.reason == "BACKPRESSURE"
        assert 0.15 < time.monotonic() - began < 3

        call = asyncio.ensure_future(put(stubs, namespace, "d"))
        await until(lambda: any(node.door.pushed_back for node in trio.nodes.values()))
        leases = (await asking(other, namespace, "w", count=2)).leases
        assert [result.enqueued.sequence_id for result in (await call).results] == [3]
        done = v1.CompleteRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w", entries=ack(*leases))
        await other.lease.Complete(done, timeout=10)
        assert not (await watch.read()).active
        watch.cancel()

    run(scenario())


def test_an_answer_to_a_lease_can_be_had_again(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        namespace = fresh()
        await put(await trio.via("leader"), namespace, "a", "b")
        request = v1.LeaseRequest(namespace=namespace, operation_id="same", peer_id="w", wait_ms=1000)
        answers = [await stubs.lease.Lease(request, timeout=10) for stubs in trio.stubs.values()]
        assert {answer.leases[0].handle.lease_id for answer in answers} == {answers[0].leases[0].handle.lease_id}

    run(scenario())


def test_what_a_retry_was_told_is_not_given_back_for_the_caller_that_vanished(trio: Cluster, run: Runner) -> None:
    """The first node notices late that nobody waits any more, when another node has answered the same call."""

    async def scenario() -> None:
        (first, gone), (_, stubs) = list(trio.stubs.items())[:2]
        namespace = fresh()
        await put(gone, namespace, "a", "b")
        request = v1.LeaseRequest(namespace=namespace, peer_id="w", operation_id=fresh("op"), wait_ms=10_000)
        await gone.lease.Lease(request, timeout=15)
        (told,) = (await stubs.lease.Lease(request, timeout=15)).leases
        granter = trio.nodes[first].door._granter
        handle = told.handle
        granted = NOTHING._replace(
            sequence_ids=[handle.sequence_id], attempts=[handle.attempt], fences=[handle.lease_id]
        )
        granter.give_back(Call(namespace, "w", operation_id=request.operation_id), granted)
        # What one node proposes is applied in the order in which it was proposed.
        await put(gone, namespace, "c")
        done = v1.CompleteRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w", entries=ack(told))
        assert [each.HasField("completed") for each in (await stubs.lease.Complete(done, timeout=10)).results] == [True]

    run(scenario())


def test_what_was_told_once_is_given_back_for_a_caller_that_vanished(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        request = v1.LeaseRequest(namespace=namespace, peer_id="w", operation_id=fresh("op"), wait_ms=10_000)
        await put(stubs, namespace, "a")
        (told,) = (await stubs.lease.Lease(request, timeout=15)).leases
        node = next(node for node in trio.nodes.values() if trio.stubs[node.id] is stubs)
        handle = told.handle
        granted = NOTHING._replace(
            sequence_ids=[handle.sequence_id], attempts=[handle.attempt], fences=[handle.lease_id]
        )
        node.door._granter.give_back(Call(namespace, "w", operation_id=request.operation_id), granted)
        assert (await asking(stubs, namespace, "v")).leases[0].handle.sequence_id == handle.sequence_id

    run(scenario())


def test_a_call_made_again_after_its_leases_are_over_gets_others(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await put(stubs, namespace, "a")
        request = v1.LeaseRequest(namespace=namespace, peer_id="w", operation_id=fresh("op"), wait_ms=10_000)
        (first,) = (await stubs.lease.Lease(request, timeout=15)).leases
        back = v1.FailRequest(namespace=namespace, peer_id="w", operation_id=fresh("op"))
        back.entries.add(handle=first.handle, give_back=True)
        await stubs.lease.Fail(back, timeout=10)
        (again,) = (await stubs.lease.Lease(request, timeout=15)).leases
        assert again.handle.sequence_id == first.handle.sequence_id
        assert again.handle.lease_id > first.handle.lease_id

    run(scenario())
