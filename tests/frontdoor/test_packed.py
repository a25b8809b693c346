"""Lists that travel as columns mean what they mean as a message an entry."""

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ack, ended, fresh, items, refusal
from resourcelease import v1
from resourcelease.client.grants import leases_of
from resourcelease.client.items import NewItem, new_item
from resourcelease.client.packing import Handles, Items
from resourcelease.frontdoor.intake import handle_columns, handles_of_packed, items_of
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.scan import too_many_entries
from resourcelease.model.items import ItemColumns

TEXTS = st.sampled_from(["", "a", "b", "\u00fc"])
MANY = st.lists(
    st.builds(
        NewItem,
        resource_type=TEXTS,
        resource_id=TEXTS,
        body=st.sampled_from([b"", b"x", bytes(300)]),
        priority=st.none() | st.integers(-1, 10),
        not_before_ms=st.integers(-1, 3),
        request_id=TEXTS,
        partition_key=TEXTS,
        payload_encoding=TEXTS,
        attributes=st.sampled_from([None, None, None, {"k": "v"}]),
    ),
    min_size=1,
    max_size=6,
)


def alike(one: ItemColumns, size: int) -> list[list[Any]]:
    """Columns with a value an item, however they are said."""
    return [column if type(column) is list else [column] * size for column in one[1:]]


@given(MANY)
def test_packed_items_are_the_items(many: list[NewItem]) -> None:
    spelled = items_of(v1.EnqueueRequest.FromString(Items(many).spelled()))
    packed = items_of(v1.EnqueueRequest.FromString(Items(many).packed()))
    assert packed[1:] == spelled[1:] == (len(many), bool(many[0].not_before_ms))
    columns = [alike(ItemColumns.unpacked(each.packed), len(many)) for each in (spelled, packed)]
    assert columns[0] == columns[1]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2), st.integers(1, 9)), min_size=1, max_size=5))
def test_packed_handles_are_the_handles(handles: list[tuple[int, int, int]]) -> None:
    spelled = v1.CompleteRequest.FromString(Handles(handles).spelled())
    packed = v1.CompleteRequest.FromString(Handles(handles).packed())
    columns = handle_columns([entry.handle for entry in spelled.entries], "{}")
    assert handles_of_packed(packed.packed, "{}") == columns == tuple(map(list, zip(*handles, strict=True)))


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (v1.PackedItems(resource_ids=["a"]), "packed.count"),
        (v1.PackedItems(count=10_001), "packed.count"),
        (v1.PackedItems(count=3, resource_ids=["a", "b"]), "packed.resource_ids"),
        (v1.PackedItems(count=1, resource_ids=["a"], bodies=[b"", b""]), "packed.bodies"),
    ],
)
def test_items_that_do_not_fit_each_other_are_refused(packed: v1.PackedItems, said: str) -> None:
    with pytest.raises(Refused) as met:
        items_of(v1.EnqueueRequest(packed=packed))
    assert met.value.refusal.field == said


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (v1.PackedHandles(), "packed.sequence_ids"),
        (v1.PackedHandles(sequence_ids=[1, 2], attempts=[1], lease_ids=[1]), "packed.lease_ids"),
        (v1.PackedHandles(sequence_ids=[1, 2], lease_ids=[1, 2]), "packed.attempts"),
        (v1.PackedHandles(sequence_ids=[1, 2], attempts=[1], lease_ids=[1, 0]), "entries[1].handle.lease_id"),
    ],
)
def test_handles_that_do_not_fit_each_other_are_refused(packed: v1.PackedHandles, said: str) -> None:
    with pytest.raises(Refused) as met:
        handles_of_packed(packed, "entries[{}].handle")
    assert met.value.refusal.field == said


def test_columns_of_a_large_message_are_counted_before_it_is_read() -> None:
    full = v1.EnqueueRequest(packed=v1.PackedItems(count=1, resource_ids=["a" * 64] * 10_000)).SerializeToString()
    more = v1.EnqueueRequest(packed=v1.PackedItems(count=1, resource_ids=["a" * 64] * 10_001)).SerializeToString()
    assert not too_many_entries(full, [4], {6: [3]})
    assert too_many_entries(more, [4], {6: [3]})
    assert not too_many_entries(more, [4], {6: [2]})


async def put(stubs: Stubs, namespace: str, *given: NewItem) -> v1.EnqueueResponse:
    request = v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), peer_id="p")
    request.MergeFromString(Items(given).packed())
    return await stubs.lease.Enqueue(request, timeout=10)


async def take(stubs: Stubs, namespace: str) -> v1.LeaseResponse:
    request = v1.LeaseRequest(
        namespace=namespace, operation_id=fresh("op"), peer_id="w", max_items=10, wait_ms=5000, reads_packed=True
    )
    return await stubs.lease.Lease(request, timeout=10)


async def done(stubs: Stubs, namespace: str, *handles: tuple[int, int, int]) -> v1.CompleteResponse:
    request = v1.CompleteRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w")
    request.MergeFromString(Handles(handles).packed())
    return await stubs.lease.Complete(request, timeout=10)


def test_a_life_in_columns(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        told = await put(stubs, namespace, new_item("t", "a", b"1"), new_item("t", "b", priority=4))
        assert [each.enqueued.sequence_id for each in told.results] == [1, 2]
        told = await put(stubs, namespace, new_item("t", "c"), new_item("u", "d"))
        assert (told.first_sequence_id, len(told.results), told.depth.pending) == (3, 0, 4)

        answer = await take(stubs, namespace)
        assert not answer.leases
        acks: Any = None
        leases = leases_of(answer, acks, "w", asyncio.get_running_loop().time())
        assert [(each.sequence_id, each.attempt) for each in leases] == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert [each.resource_type for each in leases] == ["t", "t", "t", "u"]
        assert [each.resource_id for each in leases] == ["a", "b", "c", "d"]
        assert [each.body for each in leases] == [b"1", b"", b"", b""]
        assert leases[0].payload == v1.ItemPayload(
            resource_type="t", resource_id="a", body=b"1", priority=4, body_size=1
        )
        assert all(each.enqueued_at_ms > 0 and each.remaining > 20 for each in leases)
        assert leases[0].last_error is None

        handles = [(each.sequence_id, each.attempt, each.fence) for each in leases]
        ended = await done(stubs, namespace, *handles[:2])
        assert (ended.completed, len(ended.results)) == (2, 0)
        ended = await done(stubs, namespace, handles[2], (4, 1, handles[0][2]))
        assert ended.completed == 0
        assert [each.HasField("completed") for each in ended.results] == [True, False]
        assert (ended.results[1].error.reason, ended.results[1].error.field) == ("LEASE_LOST", "entries[1].handle")

    run(scenario())


def test_leases_are_pushed_in_columns_to_workers_that_read_them(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        await put(stubs, namespace, *(new_item("t", name, b"1") for name in "abcdef"))
        call: Any = stubs.stream("Work", wire)
        opening = v1.WorkOpen(reads_packed=True)
        await call.write(v1.WorkRequest(namespace=namespace, peer_id="w", credit=4, open=opening))
        async with asyncio.timeout(10):
            while (pushed := await call.read()).WhichOneof("frame") != "leases":
                pass
        assert not pushed.leases.leases
        acks: Any = None
        leases = leases_of(pushed.leases, acks, "w", asyncio.get_running_loop().time())
        assert [(each.resource_id, each.body) for each in leases] == [(name, b"1") for name in "abcd"]
        await call.done_writing()
        assert (await ended(call)).code() is grpc.StatusCode.OK

    run(scenario())


def test_what_columns_cannot_say_comes_as_messages(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        others = [new_item("t", name) for name in "bcde"]
        told = await put(stubs, namespace, new_item("t", "a", attributes={"k": "v"}), *others)
        assert len(told.results) == 5
        answer = await take(stubs, namespace)
        assert not answer.HasField("packed")
        first, second, *_ = answer.leases
        assert dict(first.payload.attributes) == {"k": "v"}
        fail = v1.FailRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w")
        fail.entries.add(handle=second.handle, error=v1.Failure(code="X"), delay_ms=0)
        await stubs.lease.Fail(fail, timeout=10)
        (again,) = (await take(stubs, namespace)).leases
        assert again.last_error.code == "X"
        # A request id that is known: the ids do not count on.
        told = await put(stubs, namespace, new_item("t", "c", request_id="r"), new_item("t", "d", request_id="r"))
        assert [each.enqueued.duplicate for each in told.results] == [False, True]
        assert told.first_sequence_id == 0

    run(scenario())


def test_a_list_has_one_form(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        of: dict[str, Any] = {"namespace": namespace, "operation_id": fresh("op"), "peer_id": "w"}
        columns = v1.PackedItems(count=1, resource_types=["t"], resource_ids=["a"])
        both = v1.EnqueueRequest(**of, items=items("a"), packed=columns)
        code, reason, field, _ = await refusal(stubs.lease.Enqueue(both, timeout=10))
        assert (code, reason, field) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "packed")
        handles = v1.PackedHandles(sequence_ids=[1], attempts=[1], lease_ids=[1])
        entries = ack(v1.Lease(handle=v1.Handle(sequence_id=1, attempt=1, lease_id=1)))
        twice = v1.CompleteRequest(**of, entries=entries, packed=handles)
        code, reason, field, _ = await refusal(stubs.lease.Complete(twice, timeout=10))
        assert (code, reason, field) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "packed")

    run(scenario())
