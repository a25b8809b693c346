"""The checker inside the benchmark must see what a bad queue does."""

import pytest

from bench.comparison.ledger import Ledger, Wrong, judge, numbers
from bench.peers.base import Refused, body_of, number_of


def _life(ledger: Ledger, owner: str = "w") -> int:
    items = ledger.draw(1)
    ledger.note_enqueued(items)
    ledger.note_leased(items, owner)
    ledger.note_completed(items, owner)
    return items[0]


def test_a_good_history_passes() -> None:
    ledger = Ledger(1)
    for _ in range(3):
        _life(ledger)
    judge([ledger.summary()])


def test_numbers_of_two_clients_differ() -> None:
    assert not set(numbers(1, 0, 100)) & set(numbers(2, 0, 100))


def test_a_lost_item_is_seen() -> None:
    ledger = Ledger(1)
    ledger.note_enqueued(ledger.draw(1))
    with pytest.raises(Wrong, match="0 items are left, and should be 1"):
        judge([ledger.summary()])


def test_an_item_completed_by_two_processes_is_seen() -> None:
    one, two = Ledger(1), Ledger(2)
    item = _life(one)
    two.note_leased([item], "x")
    two.note_completed([item], "x")
    with pytest.raises(Wrong, match="completed 2 times"):
        judge([one.summary(), two.summary()])


def test_a_second_lease_is_seen() -> None:
    ledger = Ledger(1)
    items = ledger.draw(1)
    ledger.note_enqueued(items)
    ledger.note_leased(items, "a")
    ledger.note_leased(items, "b")
    ledger.note_completed(items, "b")
    with pytest.raises(Wrong, match="leased to b while a held it"):
        judge([ledger.summary()])


def test_a_completion_by_somebody_else_is_seen() -> None:
    ledger = Ledger(1)
    items = ledger.draw(1)
    ledger.note_enqueued(items)
    ledger.note_leased(items, "a")
    ledger.note_completed(items, "b")
    with pytest.raises(Wrong, match="who did not hold it"):
        judge([ledger.summary()])


def test_a_stranger_is_seen_and_a_backlog_is_none() -> None:
    ledger = Ledger(1)
    ledger.note_leased([7], "a")
    ledger.note_completed([7], "a")
    judge([ledger.summary()], backlog=[range(10)], left=9)
    with pytest.raises(Wrong, match="never confirmed"):
        judge([ledger.summary()], left=-1)


def test_after_failovers_only_losses_count() -> None:
    ledger = Ledger(1)
    ledger.note_enqueued(ledger.draw(1))
    judge([ledger.summary()], left=1, lax=True)
    with pytest.raises(Wrong, match="never came back"):
        judge([ledger.summary()], left=0, lax=True)


def test_a_damaged_body_is_not_taken_for_another() -> None:
    assert number_of(body_of(1 << 41)) == 1 << 41
    with pytest.raises(Refused):
        number_of(body_of(1)[:-1] + b"!")
