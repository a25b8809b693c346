"""One call through all that can happen to it: whatever is tried, it is one operation."""

import asyncio
import socket
from collections import Counter
from typing import Any

import grpc
import pytest
from fake_cluster import Cluster, play, quick, refuse, until

from resourcelease import client as api
from resourcelease import v1
from resourcelease.client import Client


def ids(cluster: Cluster, kind: str) -> list[str]:
    return [operation_id for name, operation_id in cluster.operation_ids if name == kind]


async def lose_answer(context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")


async def no_leader(context: Any) -> None:
    await refuse(context, "NO_LEADER", "there is no leader", retry_ms=1)


def test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        for node in cluster.nodes:
            node.after.append(lose_answer)
        async with quick(addresses) as client:
            enqueued = await client.enqueue("table", "orders")
        assert enqueued.sequence_id == 1
        assert len(cluster.pending) == 1, "it happened once"
        tried = ids(cluster, "Enqueue")
        assert len(tried) >= 2
        assert len(set(tried)) == 1

    play(story, nodes=2)


def test_no_leader_is_waited_out_under_the_same_id() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.nodes[0].before.extend([no_leader] * 3)
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
        assert len(ids(cluster, "Enqueue")) == 4
        assert len(set(ids(cluster, "Enqueue"))) == 1

    play(story)


def test_without_a_leader_in_time_it_says_so() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.nodes[0].before.extend([no_leader] * 1000)
        async with quick(addresses, timeout=0.5) as client:
            with pytest.raises(api.NoLeader, match="there is no leader") as met:
                await client.complete_many([v1.Handle(sequence_id=1, attempt=1, lease_id=1)])
        assert met.value.retry_after is None or met.value.retry_after >= 0
        assert "majority" in met.value.what_to_do

    play(story)


def test_one_try_in_doubt_keeps_the_outcome_unknown() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.nodes[0].before.append(lambda context: asyncio.sleep(0))
        cluster.nodes[0].after.append(lose_answer)
        cluster.nodes[0].before.extend([no_leader] * 1000)
        async with quick(addresses, timeout=0.3) as client:
            with pytest.raises(api.OutcomeUnknown, match="earlier try"):
                await client.complete_many([v1.Handle(sequence_id=1, attempt=1, lease_id=1)])

    play(story)


def test_a_node_that_is_gone_is_left_for_another_that_was_found() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses[:1]) as client:
            await client.enqueue("table", "orders")
            await until(lambda: len(client.endpoints) == 3)
            await cluster.nodes[0].stop()
            for number in range(10):
                await client.enqueue("table", str(number))
        assert len(cluster.pending) == 11

    play(story, nodes=3)


def test_a_frozen_node_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.watch.PROBE_AFTER", 0.05)
    monkeypatch.setattr("resourcelease.client.watch.PROBE_SECONDS", 0.1)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            used = next(node for node in cluster.nodes if node.address == client._nodes.current().address)
            used.frozen = True
            started = asyncio.get_running_loop().time()
            await client.enqueue("table", "users")
            assert asyncio.get_running_loop().time() - started < 3
        assert len(cluster.pending) == 2

    play(story, nodes=2)


def test_a_slow_node_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.watch.PROBE_AFTER", 0.02)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        for node in cluster.nodes:
            node.before.append(lambda context: asyncio.sleep(0.2))
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
        assert cluster.calls["Enqueue"] == 1

    play(story, nodes=2)


def test_nobody_there_says_which_endpoints_were_tried() -> None:
    async def story() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
            async with quick([endpoint], timeout=0.3) as client:
                with pytest.raises(api.Unreachable, match=f"{endpoint} cannot be reached") as met:
                    await client.status()
        assert "check the endpoints" in met.value.what_to_do

    asyncio.run(story())


@pytest.mark.parametrize(
    ("reason", "kind", "field"),
    [("INVALID_ARGUMENT", api.InvalidArgument, "items[0].priority"), ("FORBIDDEN", api.Forbidden, "")],
)
def test_a_refusal_is_final_and_typed(reason: str, kind: Any, field: str) -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.nodes[0].before.append(lambda context: refuse(context, reason, "not so", field))
        async with quick(addresses) as client:
            with pytest.raises(kind, match="not so") as met:
                await client.enqueue("table", "orders")
        assert met.value.reason == reason
        assert met.value.field == field
        assert cluster.calls["Enqueue"] == 1

    play(story)


def test_a_full_queue_is_tried_again_under_new_ids() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.capacity = 1
        async with quick(addresses) as client:
            await client.enqueue("table", "first")
            with pytest.raises(api.QueueFull) as met:
                await client.enqueue("table", "second", wait=0)
            assert met.value.retry_after == pytest.approx(0.005)
            waiting = asyncio.create_task(client.enqueue("table", "third"))
            await until(lambda: cluster.calls["Enqueue"] >= 4)
            cluster.capacity = 10
            assert (await waiting).sequence_id == 2
        assert max(Counter(ids(cluster, "Enqueue")).values()) == 1, "a refusal stays the answer of its id"

    play(story)


def test_many_items_say_which_were_refused() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.capacity = 2
        items = [{"resource_type": "table", "resource_id": str(number)} for number in range(3)]
        async with quick(addresses) as client:
            with pytest.raises(api.SomeRefused, match="1 of 3") as met:
                await client.enqueue_many(items, wait=0)
        assert [type(result) for result in met.value.results] == [api.Enqueued, api.Enqueued, api.QueueFull]

    play(story)


def test_calls_at_the_same_time_travel_together() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await asyncio.gather(*(client.enqueue("table", str(number)) for number in range(500)))
            leases = [lease for some in await asyncio.gather(*(client.lease() for _ in range(200))) for lease in some]
            assert len(leases) == 200
            await asyncio.gather(*(client.heartbeat(lease) for lease in leases))
            await asyncio.gather(*(client.complete(lease) for lease in leases[:100]))
            await asyncio.gather(*(client.fail(lease, "no") for lease in leases[100:]))
        assert cluster.entries["Enqueue"] == 500
        assert len(cluster.completed) == 100
        assert len(cluster.failed) == 100
        assert all(cluster.calls[kind] <= 5 for kind in ("Enqueue", "Lease", "Heartbeat", "Complete", "Fail"))

    play(story)


def test_a_lone_call_leaves_in_its_turn_of_the_loop() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            for number in range(20):
                await client.enqueue("table", str(number))
        assert cluster.calls["Enqueue"] == 20

    play(story)


def test_an_entry_refused_within_a_batch_is_the_error_of_its_caller_alone() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many([{"resource_type": "t", "resource_id": "r"}] * 3)
            leases = await client.lease(3)
            cluster.take_away(leases[1].fence)
            results = await asyncio.gather(*(lease.complete() for lease in leases), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), api.LeaseLost, type(None)]
        assert leases[1].lost.is_set()

    play(story)


def test_a_lease_waits_for_the_first_item_and_is_not_kept_waiting_for_more() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            asking = [asyncio.create_task(client.lease(wait=5)) for _ in range(3)]
            await until(lambda: bool(cluster.waiting))
            for number in range(3):
                await client.enqueue("table", str(number))
            got = await asyncio.gather(*asking)
            assert sorted(lease.resource_id for some in got for lease in some) == ["0", "1", "2"]
            assert await client.lease(wait=0.01) == []

    play(story)


def test_leases_for_a_caller_that_has_gone_go_back() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        gate = asyncio.Event()

        async def hold(context: Any) -> None:
            await gate.wait()

        async with quick(addresses) as client:
            await client.enqueue_many([{"resource_type": "t", "resource_id": "r"}] * 2)
            cluster.nodes[0].after.append(hold)
            staying, going = asyncio.create_task(client.lease()), asyncio.create_task(client.lease())
            await until(lambda: len(cluster.active) == 2)
            going.cancel()
            gate.set()
            assert len(await staying) == 1
            await until(lambda: bool(cluster.handed_back))

    play(story)


def test_events_go_on_where_they_broke_off() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.events = [v1.Event(sequence_number=number) for number in range(1, 10)]
        for node in cluster.nodes:
            node.after.append(lose_answer)
        async with quick(addresses) as client:
            seen = [event.sequence_number async for event in client.events(1, to_sequence=9)]
        assert seen == list(range(1, 10))

    play(story, nodes=2)


def test_a_closed_client_says_so() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        client: Client = quick(addresses)
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.enqueue("t", "r")
        with pytest.raises(RuntimeError, match="closed"):
            await client.status()

    play(story)


def test_large_bodies_travel_in_calls_that_a_node_takes() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        for node in cluster.nodes:
            node.largest = 4 * 1024 * 1024 + 4096
        async with quick(addresses, timeout=20.0) as client:
            small = [client.enqueue("table", str(number)) for number in range(50)]
            large = [client.enqueue("table", "large", bytes(3 * 1024 * 1024)) for _ in range(4)]
            await asyncio.gather(*small, *large)
        assert len(cluster.pending) == 54

    play(story)


def some(first: int, count: int) -> list[v1.ItemPayload]:
    return [v1.ItemPayload(resource_type="t", resource_id=str(number)) for number in range(first, first + count)]


def test_short_lists_travel_together_with_single_items() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            one, few, more = await asyncio.gather(
                client.enqueue("table", "orders"), client.enqueue_many(some(0, 3)), client.enqueue_many(some(3, 2))
            )
            assert [one.sequence_id, *(each.sequence_id for each in few + more)] == [1, 2, 3, 4, 5, 6]
            assert len(ids(cluster, "Enqueue")) == 1
            await client.enqueue_many(some(0, 60))
            leases = await client.lease(66)
            assert len(leases) == 66
            handles = [lease.handle for lease in leases[40:]]
            await asyncio.gather(
                client.complete_many(leases[:40]), client.complete_many(handles), return_exceptions=True
            )
            assert len(cluster.completed) == 66
            assert len(ids(cluster, "Complete")) == 1

    play(story)


def test_what_is_refused_of_lists_that_travel_together_is_told_to_each() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.capacity = 4
        async with quick(addresses) as client:
            first, second, third = await asyncio.gather(
                client.enqueue_many(some(0, 3), wait=0),
                client.enqueue_many(some(3, 2), wait=0),
                client.enqueue("table", "orders", wait=0),
                return_exceptions=True,
            )
            assert isinstance(first, list)
            assert isinstance(second, api.SomeRefused)
            assert [isinstance(each, api.QueueFull) for each in second.results] == [False, True]
            assert isinstance(third, api.QueueFull)
            leases = await client.lease(4)
            cluster.take_away(leases[1].fence)
            met = await asyncio.gather(
                client.complete_many(leases[:2]), client.complete_many(leases[2:]), return_exceptions=True
            )
            assert isinstance(met[0], api.SomeRefused)
            assert met[1] is None
            assert [lease.completed for lease in leases] == [True, False, True, True]
            assert isinstance(leases[1].error, api.LeaseLost)

    play(story)
