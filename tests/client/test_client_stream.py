"""A worker's stream: leases arrive, stay alive, survive their node, and say when they are lost."""

import asyncio
from functools import partial
from typing import Any

import grpc
import pytest
from fake_cluster import Cluster, play, quick, refuse, until

from resourcelease import client as api
from resourcelease import v1


def items(many: int) -> list[dict[str, str]]:
    return [{"resource_type": "table", "resource_id": str(number)} for number in range(many)]


def node_of(cluster: Cluster, client: api.Client) -> Any:
    return next(node for node in cluster.nodes if node.address == client._nodes.current().address)


def test_leases_are_pushed_completed_and_never_more_than_the_credit() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        seen = []
        async with quick(addresses) as client:
            await client.enqueue_many(items(50))
            async for lease in client.leases("worker-1", credit=4):
                assert len(cluster.active) <= 4
                async with lease:
                    seen.append(lease.resource_id)
                assert lease.completed
                if len(seen) == 50:
                    break
        assert seen == [str(number) for number in range(50)]
        assert len(cluster.completed) == 50

    play(story)


def test_an_exception_fails_the_item_and_travels_on() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(2))
            leases = client.leases(credit=2)
            with pytest.raises(ValueError, match="broken"):
                async with await anext(leases):
                    raise ValueError("broken")
            async with await anext(leases):
                raise api.FailItem("gone", code="GONE", requeue=False, delay=1.5)
        first, second = cluster.failed
        assert (first.error.code, first.error.message, first.requeue) == ("ValueError", "broken", True)
        assert (second.error.code, second.requeue, second.delay_ms) == ("GONE", False, 1500)

    play(story)


def test_when_its_node_dies_the_stream_goes_on_elsewhere_with_what_it_holds() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(8))
            leases = client.leases(credit=4)
            held = [await anext(leases) for _ in range(4)]
            await node_of(cluster, client).stop()
            for lease in held:
                await lease.complete()
            for _ in range(4):
                async with await anext(leases):
                    pass
        assert len(cluster.completed) == 8
        assert sum(node.streams for node in cluster.nodes) == 2

    play(story, nodes=2)


def test_held_leases_are_named_to_the_next_node_which_tells_what_is_lost() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(2))
            leases = client.leases(credit=2)
            kept, gone = await anext(leases), await anext(leases)
            cluster.take_away(gone.fence)
            cluster.pending.clear()
            await node_of(cluster, client).stop()
            await gone.lost.wait()
            assert isinstance(gone.error, api.LeaseLost)
            assert not kept.lost.is_set()
            stream = next(node.work_calls[-1] for node in cluster.nodes if node._server is not None)
            assert {handle.lease_id for handle in stream.first.open.held} == {kept.fence, gone.fence}
            assert stream.first.open.give_back_others, "nobody else uses the stream's own name"
            assert stream.first.credit == 0

    play(story, nodes=2)


def test_the_task_under_a_lost_lease_is_cancelled_with_lease_lost() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            begun = asyncio.Event()

            async def work() -> None:
                async with await anext(client.leases()):
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            (fence,) = cluster.active
            node_of(cluster, client).work_calls[-1].lose(v1.Handle(sequence_id=1, attempt=1, lease_id=fence))
            with pytest.raises(api.LeaseLost):
                await task
            assert not task.cancelled()
            assert task.cancelling() == 0

    play(story)


def test_a_task_cancelled_by_somebody_else_gives_its_lease_back() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            begun = asyncio.Event()

            async def work() -> None:
                async with await anext(client.leases()):
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert cluster.handed_back[0] == 1
        assert not cluster.failed

    play(story)


def test_leases_are_kept_alive_by_heartbeats() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.heartbeat_ms, cluster.lease_ms = 20, 400
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            before = lease.deadline
            await until(lambda: lease.deadline > before + 0.05)
            assert not lease.lost.is_set()

    play(story)


def test_a_lease_that_cannot_be_extended_is_lost_at_its_deadline() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.lease_ms = 150
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            cluster.nodes[0].frozen = True
            with pytest.raises(api.LeaseLost, match="ran out"):
                async with lease:
                    await asyncio.Event().wait()

    play(story)


def test_a_lease_that_ran_out_while_there_was_no_leader_is_not_held_for_ever() -> None:
    async def no_leader(context: Any) -> v1.ItemError:
        return v1.ItemError(reason="NO_LEADER", message="there is no leader", retry_after_ms=1)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.lease_ms = 150
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            stream = client.leases()
            lease = await anext(stream)
            node = node_of(cluster, client)
            while not lease.lost.is_set():
                if len(node.before) < 4:
                    node.before.append(no_leader)
                await asyncio.sleep(0.005)
            node.before.clear()
            await until(lambda: cluster.handed_back == [1])

    play(story)


def test_a_frame_meets_no_leader_and_is_sent_again_under_its_id() -> None:
    async def no_leader(context: Any) -> v1.ItemError:
        return v1.ItemError(reason="NO_LEADER", message="there is no leader", retry_after_ms=1)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            for node in cluster.nodes:
                node.before.extend([no_leader] * 4)
            await lease.complete()
        tried = [operation_id for kind, operation_id in cluster.operation_ids if kind == "complete"]
        assert len(tried) >= 5
        assert len(set(tried)) == 1
        assert cluster.completed == [1]

    play(story, nodes=2)


def test_a_node_that_does_not_know_an_outcome_is_left_at_once() -> None:
    async def unknown(context: Any) -> v1.ItemError:
        return v1.ItemError(reason="OUTCOME_UNKNOWN", message="nothing was applied for a while")

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            used = node_of(cluster, client)
            used.before.append(unknown)
            await lease.complete()
            assert node_of(cluster, client) is not used
            assert [len(node.work_calls) for node in cluster.nodes] == [1, 1]
        assert cluster.completed == [1]

    play(story, nodes=2)


def test_a_stream_that_every_node_sends_away_is_granted_by_the_first_that_can() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        def has_opened(times: int) -> bool:
            return sum(len(node.work_calls) for node in cluster.nodes) == times

        async with quick(addresses) as client:
            waiting = asyncio.ensure_future(anext(client.leases(credit=1)))
            await until(partial(has_opened, 1))
            for moves in range(6):
                last = node_of(cluster, client).work_calls[-1]
                last.out.put_nowait(v1.WorkResponse(go_away=v1.WorkGoAway(message="lost the others")))
                await until(partial(has_opened, moves + 2))
            await client.enqueue("table", "orders")
            await (await waiting).complete()
            # In turn, and none left out.
            assert sorted(len(node.work_calls) for node in cluster.nodes) == [2, 2, 3]
        assert cluster.completed == [1]

    play(story, nodes=3)


def test_an_ack_whose_answer_was_lost_with_its_node_is_sent_again() -> None:
    async def break_off(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            for node in cluster.nodes:
                node.after.append(break_off)
            await lease.complete()
        assert cluster.completed == [1]

    play(story, nodes=2)


def test_a_lease_whose_verdict_is_under_way_is_named_as_held() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            lease = await anext(client.leases())
            used = node_of(cluster, client)
            used.before.append(lambda context: asyncio.sleep(60))
            verdict = asyncio.create_task(lease.complete())
            await until(lambda: cluster.calls["Work.complete"] == 1)
            await used.stop()
            await verdict
            stream = next(node.work_calls[-1] for node in cluster.nodes if node is not used)
            assert [handle.lease_id for handle in stream.first.open.held] == [lease.fence]

    play(story, nodes=2)


def test_go_away_moves_the_stream_before_the_node_stops() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(3))
            leases = client.leases(credit=2)
            held = [await anext(leases), await anext(leases)]
            first = node_of(cluster, client)
            first.work_calls[-1].out.put_nowait(v1.WorkResponse(go_away=v1.WorkGoAway(message="stopping")))
            await until(lambda: sum(node.streams for node in cluster.nodes) == 2)
            assert node_of(cluster, client) is not first
            for lease in held:
                await lease.complete()
            async with await anext(leases):
                pass
        assert len(cluster.completed) == 3

    play(story, nodes=2)


def test_a_refusal_for_good_ends_the_stream_with_its_error(monkeypatch: Any) -> None:
    async def forbid(self: Any, requests: Any, context: Any) -> Any:
        await refuse(context, "FORBIDDEN", "not with this name")
        yield

    monkeypatch.setattr("fake_cluster.FakeNode.Work", forbid)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            with pytest.raises(api.Forbidden, match="not with this name"):
                await anext(client.leases())

    play(story)


def test_closing_the_client_gives_back_everything() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(5))
            leases = client.leases(credit=5)
            await anext(leases)
        assert sorted(cluster.handed_back) == [1, 2, 3, 4, 5]
        assert not cluster.active

    play(story)


def test_several_tasks_share_a_stream_and_their_acks_a_frame() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(320))
            leases = client.leases(credit=64)

            async def work() -> None:
                async for lease in leases:
                    async with lease:
                        await asyncio.sleep(0)

            tasks = [asyncio.create_task(work()) for _ in range(32)]
            await until(lambda: len(cluster.completed) == 320)
            await leases.stop()
            await asyncio.gather(*tasks)
        assert cluster.calls["Work.complete"] < 160

    play(story)


def test_leases_that_are_completed_as_a_list_give_their_credit_back() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(6))
            stream = client.leases("worker-1", credit=2)
            for _ in range(3):
                async with asyncio.timeout(5):
                    pair = [await anext(stream), await anext(stream)]
                await client.complete_many(pair, peer_id="worker-1")
                assert not set(pair) & set(stream.held)
                assert all(lease.completed for lease in pair)
        assert len(cluster.completed) == 6

    play(story)


def test_streams_without_a_name_have_one_that_no_other_process_has_under_the_same_client_name() -> None:
    """Who comes under a name of its own has given back what it does not know of: the name must not be another's."""

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses, peer_id="w") as one, quick(addresses, peer_id="w") as other:
            names = [client.leases().peer_id for client in (one, one, other)]
        assert len(set(names)) == 3
        assert all(name.startswith("w/") for name in names)

    play(story)
