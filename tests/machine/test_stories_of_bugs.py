"""Bugs that were found once, each as the shortest history that showed it."""

from collections.abc import Sequence
from typing import Any

from resourcelease.machine import Applied, Machine
from resourcelease.machine.explain import Rule
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import (
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Restore,
    pack_entry,
    pack_op,
    pack_ops,
)
from resourcelease.model.results import Drained, Restored

CALL = Call("jobs", "worker")


class Driver:
    """A machine, fed one entry at a time."""

    def __init__(self, cluster_id: str = "c1") -> None:
        self.machine = Machine(cluster_id)

    def entry(self, clock_ms: int, *ops: Op) -> Applied:
        data = pack_entry(clock_ms, clock_ms, pack_ops(map(pack_op, ops)))
        return self.machine.apply(self.machine.applied_index + 1, 1, data)

    def one(self, clock_ms: int, op: Op) -> Any:
        return self.entry(clock_ms, op).results[0]


def items(*names: str) -> bytes:
    return ItemColumns(len(names), "table", list(names)).packed()


def ids(pending: Sequence[int]) -> list[int]:
    return list(pending)


def test_a_page_of_another_cluster_is_not_taken_for_what_was_completed_here() -> None:
    source, target = Driver("a"), Driver("b")
    source.one(0, Enqueue(CALL, items("theirs")))
    page = source.one(0, Drain(CALL, "move", 0)).page
    target.one(0, Enqueue(CALL, items("ours")))
    target.one(0, Lease(CALL, 1))
    target.one(0, Complete(CALL, [1], 1, [1]))
    assert target.one(0, Restore(CALL, page)) == Restored(1, 0)


def test_bundles_of_one_name_from_two_namespaces_are_two_bundles() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.one(0, Enqueue(Call(name, "worker"), items(f"of {name}")))
    pages = [driver.one(0, Drain(Call(name, "worker"), "nightly", 0)).page for name in ("a", "b")]
    other = Driver("other")
    results = [other.one(0, Restore(Call(f"all-{number}"), page)) for number, page in enumerate(pages)]
    assert results == [Restored(1, 0), Restored(1, 0)]


def test_a_drained_page_is_kept_until_the_next_is_asked_for() -> None:
    driver = Driver()
    driver.one(0, Enqueue(CALL, items("x", "y")))
    first = driver.one(0, Drain(Call("jobs", "mover", operation_id="d0"), "move", 0, limit=1))
    late = 10 * limits.ANSWER_WINDOW_MS
    assert driver.one(late, Drain(Call("jobs", "mover", operation_id="other"), "move", 0)) == first
    assert driver.one(late, Drain(CALL, "move", 1)).size == 1
    assert driver.one(late, Drain(CALL, "move", 0)).reason is Reason.CONFLICT


def test_a_bundle_is_closed_without_taking_more() -> None:
    driver = Driver()
    driver.one(0, Enqueue(CALL, items("x", "y")))
    driver.one(0, Drain(CALL, "move", 0, limit=1))
    closing = driver.entry(0, Drain(CALL, "move", 1, limit=0))
    assert isinstance(closing.results[0], Drained)
    assert (closing.results[0].size, closing.results[0].more) == (0, True)
    assert driver.one(0, Drain(CALL, "move", 0)).reason is Reason.CONFLICT
    assert ids(list(driver.machine.pending_ids("jobs"))) == [2]


def test_open_bundles_are_bounded() -> None:
    driver = Driver()
    driver.one(0, Enqueue(CALL, items(*map(str, range(30)))))
    for number in range(limits.MAX_OPEN_BUNDLES):
        assert driver.one(0, Drain(CALL, f"b{number}", 0, limit=1)).size == 1
    refused = driver.one(0, Drain(CALL, "one more", 0, limit=1))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.QUEUE_FULL


def test_a_page_that_brings_nothing_new_needs_no_room() -> None:
    driver = Driver()
    driver.one(0, Enqueue(Call("a", "w"), items("x")))
    page = driver.one(0, Drain(Call("a", "w"), "move", 0)).page
    driver.one(0, Enqueue(CALL, items("x", "y")))
    driver.one(0, Configure(CALL, {"capacity": 1}))
    assert driver.one(0, Restore(CALL, page)) == Restored(0, 1)


def test_an_answer_shares_nothing_with_the_state() -> None:
    granted = _granted()
    for column in (granted.sequence_ids, granted.attempts, granted.fences):
        assert not isinstance(column, list)


def _granted() -> Any:
    driver = Driver()
    driver.one(0, Enqueue(CALL, items("x", "y")))
    return driver.one(0, Lease(CALL, 2))


def test_a_repeated_lease_call_tells_how_long_the_leases_run_now() -> None:
    driver = Driver()
    call = Call("jobs", "worker", operation_id="lease-1")
    driver.one(0, Enqueue(CALL, items("x")))
    driver.one(0, Lease(call, 1))
    driver.one(20_000, Heartbeat(CALL, [1], 1, [1]))
    again = driver.one(31_000, Lease(call, 1))
    assert (again.sequence_ids, again.deadline_ms, again.left_ms) == ((1,), 50_000, 19_000)


def test_a_peer_that_asks_here_is_known_here_though_it_heartbeats_elsewhere() -> None:
    driver = Driver()
    driver.one(0, Enqueue(Call("a"), items("x")))
    driver.one(0, Lease(Call("a", "w"), 1))
    driver.one(0, GiveBack(Call("a", "w"), 1, 1, 1))
    driver.one(40_000, Heartbeat(Call("b", "w")))
    assert driver.machine.explain("a", 1).rule is Rule.NO_PEER
    driver.one(40_001, Lease(Call("a", "w"), 1))
    driver.one(40_001, GiveBack(Call("a", "w"), 1, 1, 2))
    for clock_ms in range(41_000, 80_000, 1_000):
        driver.entry(clock_ms, Heartbeat(Call("b", "w")))
    driver.one(80_000, Enqueue(Call("a"), items("y")))
    driver.one(80_000, Lease(Call("a", "w"), 2))
    driver.one(80_000, GiveBack(Call("a", "w"), [1, 2], 1, [3, 4]))
    assert driver.machine.explain("a", 1).rule is Rule.NEXT


def test_an_empty_lease_call_is_heard_in_its_namespace() -> None:
    driver = Driver()
    driver.one(0, Lease(Call("a", "w"), 1))
    driver.one(40_000, Heartbeat(Call("b", "w")))
    driver.one(40_001, Lease(Call("a", "w"), 1))
    driver.one(40_002, Enqueue(Call("a"), items("x")))
    assert driver.machine.explain("a", 1).rule is Rule.NEXT


def test_a_lease_that_was_told_through_another_node_is_not_given_back_by_the_first() -> None:
    """The first node's caller had gone, and the retry had been told the same lease, which ended a moment later."""
    driver, call = Driver(), Call("jobs", "worker", operation_id="l-1")
    driver.one(0, Enqueue(CALL, items("a")))
    first = driver.one(0, Lease(call, 1))
    assert (list(first.fences), first.next_take) == ([1], 0)
    retry = driver.one(1, Lease(call, 1))
    assert (list(retry.fences), retry.next_take) == ([1], 1)
    told = driver.one(2, Lease(call._replace(take=1), 1))
    assert (list(told.fences), told.next_take, told.deadline_ms) == ([1], 0, first.deadline_ms + 2)
    back = GiveBack(CALL, [1], [1], [1], "l-1")
    assert driver.one(3, back).refused == {}
    assert driver.machine.leases_of("jobs", "worker") == [(1, 1, 1)]
    driver.one(4, back._replace(call=CALL._replace(take=1)))
    assert driver.machine.leases_of("jobs", "worker") == []
    assert list(driver.one(5, Lease(call._replace(take=2), 1)).fences) == []


def test_a_lease_that_was_given_back_is_not_taken_over() -> None:
    driver, call = Driver(), Call("jobs", "worker", operation_id="l-1")
    driver.one(0, Enqueue(CALL, items("a")))
    driver.one(0, Lease(call, 1))
    driver.one(1, GiveBack(CALL, [1], [1], [1], "l-1"))
    assert list(driver.one(2, Lease(call._replace(take=1), 1)).fences) == []
    assert list(driver.one(3, Lease(call._replace(operation_id="l-1~1"), 1)).fences) == [2]


def test_nobody_takes_over_the_leases_of_another_principal() -> None:
    driver = Driver()
    call = Call("jobs", "worker", "owner", "l-1")
    driver.one(0, Enqueue(CALL, items("a")))
    driver.one(0, Lease(call, 1))
    assert list(driver.one(1, Lease(call._replace(principal="thief", take=1), 1)).fences) == []
    assert driver.one(2, Lease(call, 1)).next_take == 1
