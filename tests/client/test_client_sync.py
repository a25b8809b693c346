"""The twin without await: the same calls, from a thread that waits."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import Cluster

from resourcelease import client as api
from resourcelease import sync, v1

ROOT = Path(__file__).parents[2]


@contextmanager
def cluster() -> Iterator[tuple[Cluster, list[str]]]:
    """A make-believe cluster on a loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> tuple[Cluster, list[str]]:
        made = Cluster()
        return made, await made.start()

    made, addresses = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield made, addresses
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_life_of_an_item_without_await() -> None:
    with cluster() as (made, addresses):
        with sync.Client(addresses) as client:
            assert client.enqueue("table", "orders", b"x").sequence_id == 1
            client.enqueue_many([{"resource_type": "table", "resource_id": str(number)} for number in range(3)])
            (lease,) = client.lease()
            with lease:
                assert (lease.resource_id, lease.body, lease.fence) == ("orders", b"x", 1)
                assert not lease.is_lost
                assert 20 < lease.remaining <= 30
            assert lease.completed
            leases = client.leases(credit=2)
            for lease in leases:
                with lease:
                    pass
                if lease.resource_id == "1":
                    leases.stop()
            (last,) = client.lease(wait=1)
            client.fail(last, "no", requeue=False)
        assert len(made.completed) == 3
        assert made.failed[0].requeue is False


def test_an_exception_fails_the_item_and_a_loss_is_raised() -> None:
    with cluster() as (made, addresses), sync.Client(addresses) as client:
        client.enqueue_many([{"resource_type": "t", "resource_id": "r"}] * 2)
        first, second = client.lease(2)
        with pytest.raises(ValueError, match="broken"), first:
            raise ValueError("broken")
        assert made.failed[0].error.message == "broken"
        made.take_away(second.fence)
        with pytest.raises(api.LeaseLost):
            second.complete()
        assert second.is_lost


def test_iterating_stops_with_its_source() -> None:
    with cluster() as (made, addresses), sync.Client(addresses) as client:
        made.events = [v1.Event(sequence_number=number) for number in range(1, 5)]
        assert [event.sequence_number for event in client.events(1, to_sequence=4)] == [1, 2, 3, 4]


def test_a_closed_client_says_so_and_closing_twice_is_fine() -> None:
    with cluster() as (_, addresses):
        client = sync.Client(addresses)
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.status()


def test_every_call_of_the_client_has_its_twin_with_the_same_arguments() -> None:
    def public(kind: Any) -> dict[str, Any]:
        return {name: value for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}

    for ours, theirs in ((sync.Client, api.Client), (sync.Lease, api.Lease)):
        missing = public(theirs).keys() - public(ours).keys() - {"begin", "end", "lose", "mark_settled"}
        assert not missing
        for name in public(theirs).keys() & public(ours).keys():
            assert list(inspect.signature(public(ours)[name]).parameters) == list(
                inspect.signature(public(theirs)[name]).parameters
            ), name


def test_the_generated_file_is_fresh() -> None:
    scope: dict[str, Any] = {"__name__": "generate_sync", "__file__": str(ROOT / "tools" / "generate_sync.py")}
    exec(compile((ROOT / "tools" / "generate_sync.py").read_text(), "generate_sync", "exec"), scope)
    assert (ROOT / "cluster" / "resourcelease" / "sync.py").read_text() == scope["generated"](), (
        "run python tools/generate_sync.py"
    )
