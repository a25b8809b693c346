"""The conversation that a client's calls go through: what travels together, and what becomes of it when it breaks."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from fake_cluster import Cluster, FakeNode, play, quick, refuse, until
from fake_conversation import FakeConversation

from resourcelease import client as api
from resourcelease import v1
from resourcelease.client import Client

ONE = [{"resource_type": "table", "resource_id": "orders"}]


def ids(cluster: Cluster, kind: str) -> list[str]:
    return [operation_id for name, operation_id in cluster.operation_ids if name == kind]


def used(cluster: Cluster, client: Client) -> FakeNode:
    return next(node for node in cluster.nodes if node.address == client._nodes.current().address)


def talks(cluster: Cluster) -> list[FakeConversation]:
    return [talk for node in cluster.nodes for talk in node.conversations]


class Hold:
    """Holds calls up until it is let go; counts them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0

    async def __call__(self, context: Any) -> None:
        self.held += 1
        await self.go.wait()


def test_calls_of_one_turn_travel_in_one_message() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(ONE)
            leases = await client.lease(1)
            lots = [client.enqueue_many(ONE * 3, namespace=f"n{number}") for number in range(5)]
            handles = [v1.Handle(sequence_id=9, attempt=1, lease_id=9)]
            ends = [client.complete_many(leases), client.complete_many(handles), client.heartbeat()]
            await asyncio.gather(*lots, *ends, return_exceptions=True)
        (talk,) = talks(cluster)
        # All that is completed goes in one.
        assert [len(frame.calls) for frame in talk.frames] == [1, 1, 7]

    play(story)


def test_the_first_call_goes_out_with_the_stream() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses, timeout=7.0) as client:
            await client.enqueue("table", "orders", wait=0)
        (talk,) = talks(cluster)
        assert [call.number for call in talk.frames[0].calls] == [1]
        assert 0 < talk.timeouts[0] <= 7000

    play(story)


@pytest.mark.parametrize("how", ["UNIMPLEMENTED", "RESOURCE_EXHAUSTED"])
def test_a_node_that_takes_no_conversation_gets_calls_by_themselves(how: str) -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        for node in cluster.nodes:
            node.declines = grpc.StatusCode[how]
        (node,) = cluster.nodes
        async with quick(addresses) as client:
            # A stream that ends while it is being opened does not always say why.
            while not client._caller._conversations._silent_until:
                await asyncio.gather(client.enqueue("table", "orders"), client.lease(1))
            declined = node.declined
            for _ in range(5):
                await asyncio.gather(client.enqueue("table", "orders"), client.lease(1))
        assert node.declined == declined
        assert len(set(ids(cluster, "Enqueue"))) == len(ids(cluster, "Enqueue")) == declined + 5

    play(story)


def test_it_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.conversation.SILENT_SECONDS", 0.0)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.nodes[0].declines = grpc.StatusCode.UNIMPLEMENTED
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            cluster.nodes[0].declines = None
            await client.enqueue("table", "users")
        assert len(talks(cluster)) == 1

    play(story)


def test_what_is_large_goes_by_itself() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders", bytes(300 * 1024))
            assert not talks(cluster)
            await asyncio.gather(*(client.enqueue_many([*ONE, large(number)], timeout=20) for number in range(10)))
        (talk,) = talks(cluster)
        assert len(cluster.pending) == 21
        assert max(frame.ByteSize() for frame in talk.frames) <= 1200 * 1024
        assert len(talk.frames) >= 2

    def large(number: int) -> v1.ItemPayload:
        return v1.ItemPayload(resource_type="t", resource_id=str(number), body=bytes(200 * 1024))

    play(story)


def test_a_stream_that_breaks_has_its_calls_made_elsewhere_and_once() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            node, hold = used(cluster, client), Hold()
            node.after.extend([hold] * 8)
            calls = [asyncio.create_task(client.enqueue_many(ONE, timeout=20)) for _ in range(8)]
            await until(lambda: hold.held == 8)
            await node.stop()
            await asyncio.gather(*calls)
            assert client._nodes.current().address != node.address
        tried = ids(cluster, "Enqueue")
        assert len(tried) == 17
        assert len(set(tried)) == 9
        assert len(cluster.pending) == 9

    play(story, nodes=2)


def test_alone_it_says_that_the_outcome_is_unknown() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses, timeout=0.5) as client:
            hold = Hold()
            cluster.nodes[0].after.append(hold)
            call = asyncio.create_task(client.complete_many([v1.Handle(sequence_id=1, attempt=1, lease_id=1)]))
            await until(lambda: hold.held == 1)
            await cluster.nodes[0].stop()
            with pytest.raises(api.OutcomeUnknown) as met:
                await call
        assert not isinstance(met.value, api.Unreachable)

    play(story)


def test_what_was_never_sent_is_known_not_to_have_happened() -> None:
    async def story() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
            async with quick([endpoint], timeout=0.3) as client:
                with pytest.raises(api.Unreachable, match=f"{endpoint} cannot be reached"):
                    await client.enqueue("table", "orders")

    asyncio.run(story())


def test_a_node_that_stops_is_left_and_its_answers_are_heard() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            await until(lambda: len(client.endpoints) == 2)
            node, hold = used(cluster, client), Hold()
            node.before.append(hold)
            under_way = asyncio.create_task(client.enqueue_many(ONE, timeout=20))
            await until(lambda: hold.held == 1)
            (talk,) = node.conversations
            talk.go_away()
            await until(lambda: used(cluster, client) is not node)
            await client.enqueue_many(ONE)
            assert not under_way.done()
            hold.go.set()
            await under_way
            await talk.ended.wait()
        assert len(talks(cluster)) == 2
        assert len(ids(cluster, "Enqueue")) == 3

    play(story, nodes=2)


def test_a_caller_that_gives_up_is_known_to_the_node() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            asking = asyncio.create_task(client.lease(1, wait=5))
            await until(lambda: cluster.waiting == 1)
            asking.cancel()
            await until(lambda: cluster.waiting == 0)
            assert talks(cluster)[0].cancelled == [1]
            await client.enqueue("table", "orders")
            assert len(await client.lease(1)) == 1

    play(story)


def test_a_call_that_is_not_answered_in_time_is_given_up() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        hold = Hold()
        cluster.nodes[0].before.append(hold)
        async with quick(addresses, timeout=0.3) as client:
            with pytest.raises(api.OutcomeUnknown, match="did not answer in time"):
                await client.complete_many([v1.Handle(sequence_id=1, attempt=1, lease_id=1)])
            await until(lambda: talks(cluster)[0].cancelled == [1])

    play(story)


@pytest.mark.parametrize("spoilt", [{"response": b"\xff\xff"}, {"status": b"\xff\xff"}, {}])
def test_an_answer_that_cannot_be_read_is_asked_for_again(spoilt: dict[str, bytes]) -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            hold = Hold()
            used(cluster, client).after.append(hold)
            call = asyncio.create_task(client.enqueue("table", "users"))
            await until(lambda: hold.held == 1)
            (talk,) = talks(cluster)
            wrong = v1.ConverseAnswer(number=99, response=b"nobody asked")
            talk.out.put_nowait(v1.ConverseResponse(answers=[wrong, v1.ConverseAnswer(number=2, **spoilt)]))
            assert (await call).sequence_id == 2
        assert len(cluster.pending) == 2

    play(story, nodes=2)


@asynccontextmanager
async def cable(address: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A connection to a node that can be cut without either end being told."""
    cut = asyncio.Event()
    tasks: set[asyncio.Task[Any]] = set()
    ends: list[asyncio.StreamWriter] = []

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not cut.is_set():
                sink.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        ends.extend([writer, there_writer])
        tasks.add(asyncio.create_task(carry(reader, there_writer)))
        tasks.add(asyncio.create_task(carry(there_reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for end in ends:
            end.close()
        await asyncio.gather(*tasks, *(end.wait_closed() for end in ends), return_exceptions=True)


def test_a_connection_that_is_cut_without_a_word_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.watch.PROBE_AFTER", 0.05)
    monkeypatch.setattr("resourcelease.client.watch.PROBE_SECONDS", 0.2)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with cable(addresses[0]) as (through, cut), quick([through]) as client:
            await client.enqueue("table", "orders")
            await until(lambda: len(client.endpoints) == 3)
            cut.set()
            await client.enqueue("table", "users")
            assert client._nodes.current().address != through
        assert len(cluster.pending) == 2

    play(story, nodes=2)


def test_a_conversation_in_which_nothing_is_said_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.conversation.IDLE_SECONDS", 0.05)
    monkeypatch.setattr("resourcelease.client.watch.PROBE_AFTER", 0.02)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            await talks(cluster)[0].ended.wait()
            await client.enqueue("table", "users")
            assert len(talks(cluster)) == 2
        assert cluster.calls["Enqueue"] == 2

    play(story)


def test_a_node_that_does_not_end_it_is_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.client.conversation.END_SECONDS", 0.02)

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            (talk,) = talks(cluster)
            talk.ends = False
            talk.go_away()
            await talk.ended.wait()
            await until(lambda: not client._caller._conversations._open)
            await client.enqueue("table", "users")
        assert len(talks(cluster)) == 2

    play(story)


def test_closing_leaves_nothing_behind() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        before = asyncio.all_tasks()
        client = quick(addresses)
        await client.enqueue("table", "orders")
        hold = Hold()
        cluster.nodes[0].before.append(hold)
        call = asyncio.create_task(client.enqueue_many(ONE))
        await until(lambda: hold.held == 1)
        await client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            await call
        await talks(cluster)[0].ended.wait()
        ours = {"resourcelease/client", "grpc/aio"}
        left = [task for task in asyncio.all_tasks() - before if any(part in repr(task) for part in ours)]
        assert [task for task in left if "server" not in repr(task)] == []

    play(story)


def test_a_refusal_of_the_stream_is_the_error_of_its_calls() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async def forbid(context: Any) -> None:
            await refuse(context, "FORBIDDEN", "not you")

        cluster.nodes[0].meets = forbid
        async with quick(addresses) as client:
            with pytest.raises(api.Forbidden, match="not you"):
                await client.enqueue("table", "orders")

    play(story)


def test_tasks_that_lease_do_not_wait_for_each_other() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            first = asyncio.create_task(client.lease(1, wait=5))
            await until(lambda: cluster.waiting == 1)
            second = asyncio.create_task(client.lease(1, wait=5))
            await until(lambda: cluster.waiting == 2)
            await client.enqueue_many(ONE * 2)
            assert [len(found) for found in await asyncio.gather(first, second)] == [1, 1]

    play(story)


def test_columns_are_sent_to_nodes_that_have_said_they_read_them() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(ONE * 4)
            node = used(cluster, client)
            node.reads_packed = True
            await client.enqueue_many(ONE * 4)
            results = await client.enqueue_many(ONE * 4)
            assert [each.sequence_id for each in results] == [9, 10, 11, 12]
            leases = await client.lease(12)
            await client.complete_many(leases)
            assert len(cluster.completed) == 12
            (talk,) = talks(cluster)
            await client.enqueue_many(ONE * 3)
            assert talk.packed == [False, False, True, False, True, False]
            # Another run of the node may be of an earlier release: what it reads it has to say anew.
            node.reads_packed = False
            talk.go_away()
            await until(lambda: talk.ended.is_set())
            await client.enqueue_many(ONE * 4)
            assert talks(cluster)[-1] is not talk
            assert talks(cluster)[-1].packed == [False]

    play(story)
