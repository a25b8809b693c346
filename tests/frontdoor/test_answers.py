"""Answers that are put together from encoded parts say what messages would."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.items import Failure, LastLease
from resourcelease.model.results import Enqueued, Granted

NUMBERS = st.integers(1, 2**62)
TEXT = st.text(max_size=40)
ROWS = st.tuples(
    TEXT,
    TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    st.none() | st.binary(max_size=300),
    st.none() | TEXT,
    st.integers(-3, 9),
    st.integers(-5, 2**45),
    st.just(0),
)
LEASES = st.lists(st.tuples(NUMBERS, st.integers(1, 2**31 - 1), NUMBERS, ROWS, st.booleans()), max_size=20)


def leases_one_by_one(granted: Granted) -> list[v1.Lease]:
    found = []
    for place, row in enumerate(granted.rows):
        told: Any = row
        lease = v1.Lease(
            handle=v1.Handle(
                sequence_id=granted.sequence_ids[place], attempt=granted.attempts[place], lease_id=granted.fences[place]
            ),
            payload=answers.payload(told),
            deadline_ms=granted.deadline_ms,
            remaining_ms=granted.left_ms,
            enqueued_at_ms=max(told[8], 0),
        )
        if place in granted.before:
            last, error = granted.before[place]
            lease.last_handle.CopyFrom(
                v1.Handle(sequence_id=granted.sequence_ids[place], attempt=last.attempt, lease_id=last.fence)
            )
            lease.last_peer_id = last.peer
            lease.last_outcome = answers.OUTCOMES[last.outcome]
            assert error is not None
            lease.last_error.CopyFrom(answers.failure(error))
        found.append(lease)
    return found


@given(LEASES, NUMBERS, st.integers(0, 2**40))
def test_leases(rows: list[Any], deadline_ms: int, left_ms: int) -> None:
    columns: Any = zip(*rows, strict=True) if rows else ([], [], [], [], [])
    ids, attempts, fences, items, again = columns
    before = {
        place: (LastLease(3, 7, "p", "failed"), Failure("E", "broke", {"a": "b"}))
        for place, was_leased in enumerate(again)
        if was_leased
    }
    granted = Granted(ids, attempts, fences, items, before, deadline_ms, left_ms)
    wanted = leases_one_by_one(granted)
    assert list(v1.LeaseResponse.FromString(answers.leases(granted, b"\x12")).leases) == wanted
    assert list(v1.WorkLeases.FromString(answers.leases(granted, b"\x0a")).leases) == wanted


@given(st.lists(NUMBERS, max_size=50), st.booleans(), st.booleans())
def test_enqueued(ids: list[int], duplicate: bool, refused: bool) -> None:
    refusals = {0: Refusal(Reason.QUEUE_FULL, "full", "items[0]")} if refused and ids else {}
    result = Enqueued(ids, [len(ids) - 1] if duplicate and ids else [], refusals, 0)
    told = answers.enqueued(result).results
    assert len(told) == len(ids)
    for place, each in enumerate(told):
        if place in refusals:
            assert each.error.reason == "QUEUE_FULL"
        else:
            assert each.enqueued == v1.Enqueued(sequence_id=ids[place], duplicate=place in result.duplicates)
