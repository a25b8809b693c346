"""The demo's books find what they are there to find."""

from types import SimpleNamespace
from typing import Any

from resourcelease.cli.demowork import Ledger


def lease(fence: int, *, until: float = 10.0, settled: bool = False, error: Any = None) -> Any:
    return SimpleNamespace(sequence_id=1, fence=fence, deadline=until, settled=settled, error=error)


def test_a_second_grant_beside_a_live_lease_is_found() -> None:
    ledger = Ledger()
    ledger.granted(lease(1), now=0.0)
    ledger.granted(lease(2), now=1.0)
    assert ledger.double_grants == 1


def test_a_grant_after_the_lease_ended_is_none() -> None:
    for ended in (lease(1, until=0.5), lease(1, settled=True), lease(1, error=ValueError())):
        ledger = Ledger()
        ledger.granted(ended, now=0.0)
        ledger.granted(lease(2), now=1.0)
        assert ledger.double_grants == 0


def test_a_fence_that_does_not_rise_is_found() -> None:
    ledger = Ledger()
    ledger.granted(lease(2, settled=True), now=0.0)
    ledger.granted(lease(2), now=1.0)
    assert ledger.double_grants == 1


def test_a_grant_of_what_is_done_and_a_second_verdict_are_found() -> None:
    ledger = Ledger()
    ledger.note_completed(1, 0.0)
    ledger.granted(lease(5), now=1.0)
    ledger.note_completed(1, 2.0)
    assert ledger.double_grants == 2


def test_what_was_acknowledged_and_is_not_done_is_missing() -> None:
    ledger = Ledger()
    ledger.note_enqueued(1, 0.0)
    ledger.note_enqueued(2, 0.1)
    ledger.note_completed(2, 0.2)
    assert ledger.missing == [1]


def test_the_store_refuses_an_older_fence() -> None:
    ledger = Ledger()
    assert ledger.write(1, 5)
    assert not ledger.write(1, 4)
    assert ledger.stale_writes == 1


def test_the_longest_silence_begins_with_the_kill() -> None:
    ledger = Ledger()
    ledger.acknowledged_at = [0.5, 1.2, 4.0, 4.1]
    assert ledger.longest_silence(1.0, 10.0) == 4.0 - 1.2
