"""The model by itself: it must be right before anything is measured against it."""

from typing import Any

from model import Applied, NaiveMachine

from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import (
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Redrive,
    Restore,
)
from resourcelease.model.results import Acked, Drained, Enqueued, Granted, Redriven, Restored

HERE = Call("jobs", "worker")


class Story:
    """A machine and its clock."""

    def __init__(self, cluster_id: str = "c1", **options: Any) -> None:
        self.machine = NaiveMachine(cluster_id)
        self.clock_ms = 1000
        if options:
            self.tell(Configure(HERE, options))

    def tell(self, *ops: Op) -> Applied:
        """The ops as one entry."""
        return self.machine.apply(self.machine.applied_index + 1, 1, self.clock_ms, 0, ops)

    def ask(self, op: Op) -> Any:
        """One op, and its result."""
        return self.tell(op).results[0]

    def types(self, *ops: Op) -> list[str]:
        """The names of the events that the ops bring about."""
        return [event.type.name for event in self.tell(*ops).events]


def enqueue(count: int = 1, **columns: Any) -> Enqueue:
    return Enqueue(HERE, ItemColumns(count, "table", "orders", **columns).packed())


def named(granted: Granted) -> tuple[Any, Any, Any]:
    return granted.sequence_ids, granted.attempts, granted.fences


def test_a_normal_life() -> None:
    story = Story()
    assert story.types(enqueue(2)) == ["CONFIGURED", "ENQUEUE", "ENQUEUE"]
    granted = story.ask(Lease(HERE, 5))
    assert named(granted) == ([1, 2], [1, 1], [1, 2])
    assert (granted.deadline_ms, granted.left_ms) == (31_000, 30_000)
    story.clock_ms += 10_000
    assert story.ask(Heartbeat(HERE, *named(granted))) == Acked(2, {}, 41_000, 30_000)
    assert story.ask(Complete(HERE, *named(granted))) == Acked(2, {})
    assert story.tell(Complete(HERE, *named(granted))) == Applied([Acked(2, {})], [])


def test_a_lease_ends_at_its_deadline_and_not_before() -> None:
    for clock_ms, lost in ((30_999, False), (31_000, True)):
        story = Story()
        granted = story.tell(enqueue(), Lease(HERE, 1)).results[1]
        assert isinstance(granted, Granted)
        story.clock_ms = clock_ms
        acked = story.ask(Complete(HERE, *named(granted)))
        assert acked.refused == ({0: Refusal(Reason.LEASE_LOST, "")} if lost else {})


def test_failures_are_tried_again_until_the_budget_is_spent_and_redrive_gives_a_new_one() -> None:
    story = Story(max_attempts=2)
    story.tell(enqueue())
    first = story.ask(Lease(HERE, 1))
    assert story.types(Fail(HERE, *named(first))) == ["FAILED", "REQUEUED"]
    second = story.ask(Lease(HERE, 1))
    assert story.types(Fail(HERE, *named(second))) == ["FAILED", "DEAD_LETTERED"]
    assert story.ask(Complete(HERE, *named(second))).refused[0].reason is Reason.ALREADY_SETTLED
    assert story.ask(Redrive(HERE, limit=1)) == Redriven([1], {})
    third = story.ask(Lease(HERE, 1))
    assert third.attempts == [3]
    assert story.types(Fail(HERE, *named(third))) == ["FAILED", "REQUEUED"]


def test_what_is_given_back_stands_where_it_stood() -> None:
    story = Story()
    story.tell(enqueue(3))
    granted = story.ask(Lease(HERE, 1))
    assert story.types(GiveBack(HERE, *named(granted))) == ["REQUEUED"]
    assert named(story.ask(Lease(HERE, 1))) == ([1], [1], [2])


def test_backpressure_goes_on_and_off_with_one_event_each() -> None:
    story = Story(high_watermark=3, low_watermark=1)
    assert story.types(enqueue(3)) == ["ENQUEUE"] * 3 + ["BACKPRESSURE"]
    assert story.ask(enqueue()) == Enqueued([0], [], {0: Refusal(Reason.BACKPRESSURE, "")}, 3)
    assert "BACKPRESSURE" not in story.types(Lease(HERE, 1))
    assert story.types(Lease(HERE, 1))[-1] == "BACKPRESSURE"


def test_a_request_id_is_known_twice_in_one_op_and_after_its_end() -> None:
    story = Story(dedup_window_ms=100)
    assert story.ask(enqueue(2, request_id=["r", "r"])) == Enqueued([1, 1], [1], {}, 1)
    story.tell(Complete(HERE, *named(story.ask(Lease(HERE, 1)))))
    story.clock_ms += 99
    assert story.ask(enqueue(request_id=["r"])).duplicates == [0]
    story.clock_ms += 1
    assert story.ask(enqueue(request_id=["r"])) == Enqueued([2], [], {}, 1)


def test_a_retry_gets_the_first_answer_and_a_later_take_may_try_again() -> None:
    story = Story(capacity=1)
    story.tell(enqueue())
    full = enqueue()._replace(call=HERE._replace(operation_id="op"))
    assert story.types(full) == ["REJECTED"]
    story.tell(Complete(HERE, *named(story.ask(Lease(HERE, 1)))))
    assert story.ask(full).refused[0].reason is Reason.QUEUE_FULL
    assert story.ask(full._replace(call=full.call._replace(take=1))).sequence_ids == [2]


def test_a_drained_page_is_restored_once() -> None:
    story, other = Story("c1"), Story("c2")
    story.tell(enqueue(3))
    story.tell(Lease(HERE, 1))
    drained = story.ask(Drain(HERE, "b", 0, include_active=True))
    assert isinstance(drained, Drained)
    assert (drained.size, drained.more) == (3, False)
    assert story.tell(Drain(HERE, "b", 0)) == Applied([drained], [])
    assert story.types(Drain(HERE, "b", 1)) == ["DRAIN_SNAPSHOT"]
    assert story.ask(Drain(HERE, "b", 0)).reason is Reason.CONFLICT
    other.machine.pages = story.machine.pages
    for page, answer in ((drained.page, Restored(3, 0)), (drained.page, Restored(0, 3))):
        assert other.ask(Restore(HERE, page)) == answer
    assert other.ask(Lease(HERE, 1)).fences == [2]
    assert other.machine.events[-1].type is EventType.LEASE_GRANTED
