"""The client begins with the node that leads."""

import asyncio
from typing import Any

from fake_cluster import Cluster, play, quick, refuse, until


def asked(cluster: Cluster) -> list[int]:
    """How many conversations each node was asked for."""
    return [len(node.conversations) for node in cluster.nodes]


def test_calls_and_streams_begin_with_the_leader() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.leader = addresses[2]
        for _ in range(5):
            async with quick(addresses) as client:
                await asyncio.gather(*[client.enqueue("table", "orders") for _ in range(3)])
                stream = client.leases(credit=1)
                await anext(stream)
                await stream.aclose()
        assert asked(cluster) == [0, 0, 5]
        assert [len(node.work_calls) for node in cluster.nodes] == [0, 0, 5]

    play(story, nodes=3)


def test_one_address_is_enough_to_find_it() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.leader = addresses[1]
        async with quick(addresses[:1]) as client:
            await client.enqueue("table", "orders")
        assert asked(cluster) == [0, 1]

    play(story, nodes=2)


def test_it_can_be_left_to_chance() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.leader = addresses[1]
        async with quick(addresses[:1], prefer_leader=False) as client:
            await client.enqueue("table", "orders")
            await until(lambda: len(client.endpoints) == 2)
            await client.enqueue("table", "orders")
        assert asked(cluster) == [1, 0]

    play(story, nodes=2)


def test_a_leader_that_is_gone_is_left_and_the_next_one_found() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.leader = addresses[1]
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            assert asked(cluster) == [0, 1, 0]
            await cluster.nodes[1].stop()
            cluster.leader = addresses[2]
            await client.enqueue("table", "orders")
            await until(lambda: client._nodes.current().address == addresses[2])
            await client.enqueue("table", "orders")
        assert len(cluster.pending) == 3

    play(story, nodes=3)


def test_a_leader_that_has_lost_the_others_is_left_though_they_still_name_it() -> None:
    async def unknown(context: Any) -> None:
        await refuse(context, "OUTCOME_UNKNOWN", "nothing was applied for a while")

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        cluster.leader = addresses[1]
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
            cluster.nodes[1].before.append(unknown)
            for _ in range(5):
                await client.enqueue("table", "orders")
                await until(lambda: client._nodes._discovery is not None and client._nodes._discovery.done())
            assert client._nodes.current().address != addresses[1]
        assert len(cluster.pending) == 6
        assert cluster.calls["Enqueue"] == 7

    play(story, nodes=3)


def test_without_a_leader_it_goes_on_with_any() -> None:
    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue("table", "orders")
        assert sum(asked(cluster)) == 1

    play(story, nodes=3)
