"""A worker runs its function, fails what it raises, and stops in order."""

import asyncio
import os
import signal
from typing import Any

import pytest
from fake_cluster import Cluster, play, quick, until

from resourcelease import Lease, Worker, worker
from resourcelease import client as api


def items(many: int) -> list[dict[str, str]]:
    return [{"resource_type": "table", "resource_id": str(number)} for number in range(many)]


def test_a_worker_completes_what_returns_and_fails_what_raises() -> None:
    async def handle(lease: Lease) -> None:
        if lease.resource_id == "3":
            raise ValueError("not this one")

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(10))
            made = Worker(handle, client=client, concurrency=3)
            running = asyncio.create_task(made.run(signals=False))
            await until(lambda: len(cluster.completed) + len(cluster.failed) == 10)
            made.stop()
            await running
        assert made.completed == 9
        assert made.failed == 1
        assert cluster.failed[0].error.message == "not this one"

    play(story)


def test_sigterm_finishes_what_runs_and_gives_back_the_rest() -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        @worker(endpoints=addresses, concurrency=2, prefetch=2)
        async def handle(lease: Lease) -> None:
            begun.append(lease.resource_id)
            await gate.wait()

        async with api.Client(addresses) as client:
            await client.enqueue_many(items(6))
        running = asyncio.create_task(handle.run())
        await until(lambda: len(begun) == 2 and len(cluster.active) == 4)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: len(cluster.handed_back) == 2)
        assert not running.done(), "what runs is finished first"
        gate.set()
        await running
        assert len(cluster.completed) == 2
        assert len(begun) == 2
        assert not cluster.active

    play(story)


def test_what_does_not_finish_in_time_is_given_back() -> None:
    begun = []

    async def handle(lease: Lease) -> None:
        begun.append(lease)
        await asyncio.Event().wait()

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(1))
            made = Worker(handle, client=client, concurrency=1, grace=0.05)
            running = asyncio.create_task(made.run(signals=False))
            # Not what the cluster has granted: that may be on its way still, and then the node takes it back by itself.
            await until(lambda: len(begun) == 1)
            made.stop()
            await running
        assert cluster.handed_back == [1]
        assert not cluster.failed

    play(story)


def test_a_plain_function_runs_in_a_thread() -> None:
    def handle(lease: Lease) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    async def story(cluster: Cluster, addresses: list[str]) -> None:
        async with quick(addresses) as client:
            await client.enqueue_many(items(3))
            made = Worker(handle, client=client)
            running = asyncio.create_task(made.run(signals=False))
            await until(lambda: len(cluster.completed) == 3)
            made.stop()
            await running
        assert made.failed == 0

    play(story)


def test_the_decorator_keeps_the_function_at_hand() -> None:
    @worker
    def handle(lease: Any) -> str:
        """What it does."""
        return str(lease)

    assert isinstance(handle, Worker)
    lease: Any = "x"
    assert handle(lease) == "x"
    assert handle.__doc__ == "What it does."
