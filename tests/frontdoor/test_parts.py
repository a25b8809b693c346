"""Parts of the front door by themselves."""

import asyncio

import pytest

from frontdoor.cluster_fixture import items, until
from resourcelease import v1
from resourcelease.frontdoor.departures import Leaving
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.intake import item_columns
from resourcelease.frontdoor.outbox import Outbox
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.scan import too_many_entries
from resourcelease.frontdoor.streams import Streams
from resourcelease.model.errors import Refusal
from resourcelease.model.eventdata import DrainData, EventType
from resourcelease.model.events import Record
from resourcelease.model.ops import Call


class Line:
    """The node's end of a stream whose worker reads as it likes."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.sent: list[v1.WorkResponse] = []

    async def write(self, message: v1.WorkResponse) -> None:
        await self.reading.wait()
        self.sent.append(message)


def outbox_of() -> Outbox:
    return Outbox(Leaving(), lambda push: None, lambda: None)


def test_a_worker_that_does_not_read_is_not_read() -> None:
    async def scenario() -> None:
        outbox, line = outbox_of(), Line()
        writer = asyncio.ensure_future(outbox.write(line))
        reader = asyncio.ensure_future(feed(outbox))
        await until(lambda: outbox.blocked_since is not None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not reader.done()
        line.reading.set()
        await reader
        await outbox.drained()
        assert len(line.sent) == 1000
        await outbox.settled()
        outbox.put(v1.WorkResponse())
        await writer

    async def feed(outbox: Outbox) -> None:
        for _ in range(1000):
            await outbox.room()
            outbox.put(v1.WorkResponse())

    asyncio.run(scenario())


def test_lost_leases_are_told_together() -> None:
    async def scenario() -> None:
        outbox, line = outbox_of(), Line()
        line.reading.set()
        for number in range(5):
            outbox.put_lost(v1.LostLease(handle=v1.Handle(sequence_id=number)))
        writer = asyncio.ensure_future(outbox.write(line))
        await outbox.drained()
        assert [len(message.lost.leases) for message in line.sent] == [5]
        writer.cancel()

    asyncio.run(scenario())


def test_columns_say_no_more_than_they_must() -> None:
    plain = item_columns(items("a", "b"), 2)
    assert plain._asdict() == {
        "size": 2,
        "resource_type": "table",
        "resource_id": ["a", "b"],
        "partition_key": None,
        "payload_encoding": None,
        "attributes": None,
        "body": None,
        "request_id": None,
        "priority": 4,
        "not_before_ms": 0,
    }
    mixed = items("a", body=b"x", priority=0, attributes={"k": "v"}) + items("b", request_id="r", not_before_ms=5)
    told = item_columns(mixed, 2)
    assert (told.body, told.request_id, told.attributes) == ([b"x", None], [None, "r"], [{"k": "v"}, None])
    assert (told.priority, told.not_before_ms) == ([0, 4], [0, 5])


def test_the_gate_counts() -> None:
    gate = Gate(calls=3, calls_per_peer=2, streams_per_peer=1)
    gate.enter("a")
    gate.enter_stream("a")
    for enter in (gate.enter, gate.enter_stream):
        with pytest.raises(Refused, match="as many as may be"):
            enter("a")
    gate.enter("b")
    with pytest.raises(Refused, match="on this node"):
        gate.enter("c")
    gate.leave_stream("a")
    gate.enter("c")
    assert gate.inside == 3


def test_a_large_message_is_counted_before_it_is_read() -> None:
    full = v1.EnqueueRequest(items=items("a", body=bytes(64)) * 10_000).SerializeToString()
    assert not too_many_entries(full, [4])
    assert too_many_entries(full + b"\x22\x00", [4])
    assert not too_many_entries(full + b"\x22\x00", [5])
    assert not too_many_entries(b"\xff" * 300_000, [4])


class Holder:
    """A stream that holds one lease."""

    namespace, peer = "jobs", "worker"

    def __init__(self, sequence_id: int, fence: int) -> None:
        self._held = {sequence_id: fence}
        self.lost: list[int] = []

    def fence_of(self, sequence_id: int) -> int:
        return self._held.get(sequence_id, 0)

    def lose(self, fence: int, refusal: Refusal) -> None:
        self.lost.append(fence)

    def let_go(self, fence: int) -> None:
        raise AssertionError(fence)

    def go_away(self, message: str) -> bool:
        raise AssertionError(message)

    def end(self, refused: Refused) -> None:
        raise AssertionError(refused)


@pytest.mark.parametrize(("leased_now", "lost"), [(0, [41]), (55, [41]), (41, [])])
def test_a_drain_ends_the_lease_of_its_time_and_no_later_one(leased_now: int, lost: list[int]) -> None:
    """An item may be restored, and granted under the same id, before anybody here looks at its drain."""

    async def scenario() -> None:
        streams = Streams(
            4, lambda namespace, sequence_id: leased_now if (namespace, sequence_id) == ("jobs", 7) else 0
        )
        holder = Holder(7, 41)
        streams.enter(holder)
        streams.note(holder, [41])
        data = DrainData([7], 1, "bundle", 0, b"", more=False)
        streams.applied([Record(EventType.DRAIN_SNAPSHOT, data, count=1, call=Call("jobs"))])
        assert holder.lost == lost

    asyncio.run(scenario())
