"""The judges, on histories made by the real machine and then falsified."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from chaos.checkers import (
    Acknowledged,
    HeldByMajority,
    Items,
    LeaseTime,
    OneHistory,
    SameStates,
    StaleLeader,
    Violation,
)
from resourcelease.machine import Machine
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Complete, Enqueue, Fail, Heartbeat, Lease, Op, pack_entry, pack_op, pack_ops
from resourcelease.model.results import Acked, Enqueued, Granted

CLUSTER = "c"


def call(operation: str, peer: str = "w") -> Call:
    return Call("a", peer, "", operation)


def enqueue(operation: str, size: int = 1, **columns: Any) -> Enqueue:
    return Enqueue(call(operation, ""), ItemColumns(size, "t", ["x"] * size, **columns).packed())


class Told:
    """A machine, and judges that are told of everything it does."""

    def __init__(self) -> None:
        self.machine = Machine(CLUSTER)
        self.history = OneHistory()
        self.items = Items()
        self.acknowledged = Acknowledged(self.items)
        self.clock_ms = 0
        # What falsifies the records of one type on their way to the judges.
        self.lie: dict[EventType, Callable[[Record], None]] = {}

    def apply(self, *ops: Op) -> list[Any]:
        before = self.machine.sequence_number
        entry = pack_entry(self.clock_ms, 0, pack_ops(map(pack_op, ops)))
        applied = self.machine.apply(self.machine.applied_index + 1, 1, entry)
        for record in applied.records:
            if record.type in self.lie:
                self.lie[record.type](record)
                record.encoded = record.encode()
        written = [(record.sequence, record.encoded) for record in applied.records]
        for record in self.history.applied("n1", before, self.machine.sequence_number, written):
            self.items.event(record)
            self.acknowledged.event(record)
        return list(applied.results)

    def answered(self, *ops: Op) -> list[Any]:
        results = self.apply(*ops)
        for op, result in zip(ops, results, strict=True):
            self.acknowledged.answered(op, result)
        return results

    def leased(self, operation: str = "l") -> tuple[list[int], list[int], list[int]]:
        (granted,) = self.answered(Lease(call(operation), 1))
        return list(granted.sequence_ids), list(granted.attempts), list(granted.fences)


def data(**changes: Any) -> Callable[[Record], None]:
    def lie(record: Record) -> None:
        fields: Any = record.data
        record.data = fields._replace(**changes)

    return lie


@pytest.fixture
def told() -> Told:
    told = Told()
    told.answered(enqueue("e", 2))
    return told


def test_an_honest_life_is_accepted(told: Told) -> None:
    handle = told.leased()
    told.answered(Heartbeat(call("h"), *handle))
    told.answered(Fail(call("f"), *handle, True, None, None))
    handle = told.leased("l2")
    told.answered(Complete(call("c"), *handle), Complete(call("c2"), *handle))
    told.clock_ms += 40_000
    told.leased("l3")
    told.clock_ms += 40_000
    told.apply()
    told.history.folds_to(CLUSTER, "n1", told.machine)
    assert told.items.places("a") == {"completed": 1, "waiting": 1}


@pytest.mark.parametrize(
    ("type_", "changes", "promise"),
    [
        (EventType.LEASE_GRANTED, {"first_fence": 1}, "fences rise"),
        (EventType.LEASE_GRANTED, {"sequence_ids": [1]}, "one live lease"),
        (EventType.LEASE_GRANTED, {"attempts": 2}, "an item's life"),
        (EventType.COMPLETED, {"fences": [9]}, "an old fence is refused"),
        (EventType.COMPLETED, {"sequence_ids": [2]}, "an item's life"),
        (EventType.COMPLETED, {"sequence_ids": [7]}, "an item's life"),
    ],
)
def test_a_false_record_is_noticed(told: Told, type_: EventType, changes: dict[str, Any], promise: str) -> None:
    handle = told.leased()
    told.lie[type_] = data(**changes)
    op = Lease(call("again"), 1) if type_ is EventType.LEASE_GRANTED else Complete(call("c"), *handle)
    with pytest.raises(Violation, match=promise):
        told.apply(op)


def test_a_lease_that_ends_early_is_noticed(told: Told) -> None:
    told.lie[EventType.LEASE_GRANTED] = data(deadline_ms=100_000)
    told.leased()
    told.clock_ms += 40_000
    with pytest.raises(Violation, match="no lease is cut short"):
        told.apply()


def test_an_ack_after_the_deadline_is_noticed(told: Told) -> None:
    told.lie[EventType.LEASE_GRANTED] = data(deadline_ms=500)
    handle = told.leased()
    told.clock_ms += 500
    with pytest.raises(Violation, match="a late ack is refused"):
        told.apply(Complete(call("c"), *handle))


def test_a_second_verdict_is_noticed(told: Told) -> None:
    handle = told.leased()
    told.apply(Complete(call("c"), *handle))
    record = told.history.records[-1]
    with pytest.raises(Violation, match="one verdict"):
        told.items.event(record)


def test_a_request_id_makes_one_item(told: Told) -> None:
    told.answered(enqueue("r1", request_id=["r"]), enqueue("r2", request_id=["r"]))
    record = next(record for record in told.history.records if record.call.operation_id == "r1")
    again: Any = record.data
    record.data = again._replace(first_id=4)
    with pytest.raises(Violation, match="one item a request"):
        told.items.event(record)


def test_an_operation_takes_effect_once(told: Told) -> None:
    record = Record.decode(told.history.records[-1].encoded)
    with pytest.raises(Violation, match="exactly once"):
        told.acknowledged.event(record)


@pytest.mark.parametrize(
    ("op", "result", "promise"),
    [
        (enqueue("never"), Enqueued([3], [], {}, 3), "acknowledged operations stay"),
        (enqueue("e", 2), Enqueued([1, 3], [], {}, 2), "one answer"),
        (enqueue("e", 2), Granted([], [], [], [], {}, 0, 0), "answers belong to their calls"),
        (Lease(call("l"), 1), Granted([1], [1], [8], [()], {}, 0, 0), "acknowledged operations stay"),
        (Complete(call("c"), [1], [1], [1]), Acked(1, {}), "acknowledged operations stay"),
        (Fail(call("f"), [1], [1], [1]), Acked(1, {}), "acknowledged operations stay"),
        (Heartbeat(call("h")), Acked(0, {}), "acknowledged operations stay"),
    ],
)
def test_a_false_answer_is_noticed(told: Told, op: Op, result: Any, promise: str) -> None:
    told.leased()
    with pytest.raises(Violation, match=promise):
        told.acknowledged.answered(op, result)


def test_a_refused_completion_is_not_done_before_or_after(told: Told) -> None:
    handle = told.leased()
    no = Acked(1, {0: Refusal(Reason.LEASE_LOST, "planted")})
    told.acknowledged.answered(Complete(call("c"), *handle), no)
    with pytest.raises(Violation, match="one verdict"):
        told.apply(Complete(call("c2"), *handle))
    with pytest.raises(Violation, match="one verdict"):
        told.acknowledged.answered(Complete(call("c3"), *handle), no)


def test_a_gap_and_a_second_version_of_an_event_are_noticed(told: Told) -> None:
    first, second = told.history.records[0], told.history.records[1]
    with pytest.raises(Violation, match="no gaps"):
        told.history.applied("n2", 0, 3, [(second.sequence, second.encoded)])
    with pytest.raises(Violation, match="no gaps"):
        told.history.applied("n2", 0, 3, [(first.sequence, first.encoded)])
    second.wall_ms += 1
    with pytest.raises(Violation, match="one history"):
        told.history.applied("n2", 0, 3, [(first.sequence, first.encoded), (second.sequence, second.encode())])


def test_a_state_that_no_event_explains_is_noticed(told: Told) -> None:
    told.machine._state.namespaces["a"].redriven += 1
    with pytest.raises(Violation, match="the events are the state"):
        told.history.folds_to(CLUSTER, "n1", told.machine)


def test_states_of_one_index_are_compared() -> None:
    states = SameStates()
    states.state("n1", 5, "state", b"a")
    states.state("n2", 5, "chain", b"b")
    states.state("n2", 6, "state", b"b")
    with pytest.raises(Violation, match="equal states"):
        states.state("n2", 5, "state", b"b")


def test_the_lease_clock_may_be_slow_and_never_fast() -> None:
    time = LeaseTime(rate=1.1)
    time.made([(1, 1), (2, 1)], 10.0)
    time.made([(3, 1)], 11.0)
    time.made([(4, 1)], 12.0)
    time.applied(1, 1, 500)
    time.applied(2, 1, 500)
    time.applied(3, 1, 1_600)
    with pytest.raises(Violation, match="no lease is cut short"):
        time.applied(4, 1, 2_800)


def test_a_majority_is_one_of_the_configuration_that_committed() -> None:
    held = HeldByMajority()
    held.committed("n1", 9, 1, ["n1"], ["n1", "n2"])
    held.check(lambda index, term: ["n1"])
    held.committed("n1", 10, 1, ["n1", "n2"], ["n1", "n2"])
    with pytest.raises(Violation, match="a majority holds"):
        held.check(lambda index, term: ["n1"])
    with pytest.raises(Violation, match="nobody"):
        held.recheck(lambda index, term: ["n3"])


def plainly_stale(members: list[str], heard: dict[str, float], since: float, now: float) -> bool:
    fresh = 1 + sum(now - max(heard.get(peer, 0.0), since) < 4.0 for peer in members if peer != "n1")
    return fresh * 2 <= len(members)


def test_a_leader_is_stale_when_it_has_not_heard_a_majority_for_so_long() -> None:
    """The checker remembers until when a leader is safe; here is what it should find, looked at anew each time."""
    ends = set()
    for seed in range(200):
        rng = random.Random(seed)
        judge, now, since = StaleLeader(4.0), 0.0, -1.0
        members, heard = [f"n{number}" for number in range(1, rng.choice((1, 2, 3, 4, 5)) + 1)], dict[str, float]()
        for _ in range(200):
            now += rng.expovariate(2.0)
            act = rng.random()
            if act < 0.3:
                peer = rng.choice(["n2", "n3", "n4", "n5"])
                heard[peer] = now
                judge.heard("n1", peer, now)
            elif act < 0.35:
                members = [f"n{number}" for number in range(rng.choice((1, 1, 2)), rng.randint(2, 6))]
            elif act < 0.4:
                judge.follows("n1")
                since = -1.0
            else:
                since = now if since < 0.0 else since
                stale = plainly_stale(members, heard, since, now)
                if stale:
                    with pytest.raises(Violation, match="no stale leader"):
                        judge.leads("n1", members, now)
                    break
                judge.leads("n1", members, now)
        ends.add(stale)
    assert ends == {True, False}
