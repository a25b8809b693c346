"""Answers as they are kept: found by key, forgotten in time or before, and packed as rows have them."""

import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.machine.answers import Answer, AnswerKey, Answers
from resourcelease.model import limits

KEYS = st.tuples(st.just("jobs"), st.sampled_from(["p1", "p2"]), st.sampled_from(["a", "b", "c", "d"]))
STEPS = st.lists(
    st.one_of(st.tuples(st.just("keep"), KEYS, st.integers(0, 2)), st.tuples(st.just("forget"), KEYS, st.just(0))),
    max_size=40,
)


def packed(kept: dict[AnswerKey, tuple[int, Any]], expires_ms: int) -> bytes:
    chunk = [(key, content) for key, (expires, content) in kept.items() if expires == expires_ms]
    return bytes(msgpack.packb(chunk)) if chunk else b""


@given(STEPS, st.sampled_from([2, 3, limits.ANSWERS_PER_PEER]))
def test_rows_have_what_is_kept_in_the_order_it_came(steps: list[tuple[str, AnswerKey, int]], most: int) -> None:
    answers = Answers()
    kept: dict[AnswerKey, tuple[int, Any]] = {}
    expires_ms = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ANSWERS_PER_PEER", most)
        for number, (kind, key, later_ms) in enumerate(steps):
            kept.pop(key, None)
            if kind == "keep":
                expires_ms += later_ms
                content = [number, 2, [b"body", {"field": None}, -1]]
                answers.load(expires_ms, [[list(key), content]])
                kept[key] = expires_ms, content
                of_peer = [known for known in kept if known[1] == key[1]]
                for known in of_peer[:-most]:
                    del kept[known]
                    assert answers.get(known, 0) is None
            else:
                answers.forget(key)
            assert dict(answers.rows()) == {at: row for at in range(1, expires_ms + 1) if (row := packed(kept, at))}
            for known, (at, content) in kept.items():
                assert answers.get(known, at - 1) == Answer(*content)
                assert answers.get(known, at) is None
            if key not in kept:
                assert answers.get(key, 0) is None


@pytest.mark.parametrize("size", [15, 16, 65_535, 65_536])
def test_a_row_begins_as_a_packed_list_does(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWERS_PER_PEER", 1 << 20)
    answers = Answers()
    row = [[["jobs", "p1", str(number)], [1, 2, None]] for number in range(size)]
    answers.load(5, row)
    assert answers.row(5) == msgpack.packb(row)


def test_a_peers_oldest_answers_leave_their_rows() -> None:
    answers = Answers()
    row = [[["jobs", "p1", str(number)], [1, 2, None]] for number in range(limits.ANSWERS_PER_PEER)]
    answers.load(5, row)
    answers.load(6, [[["jobs", "p1", "newest"], [1, 2, None]]])
    assert answers.row(5) == msgpack.packb(row[1:])
    assert 5 in answers.take_touched()


def test_an_answer_takes_little() -> None:
    rows = [[[["jobs", "p1", f"op {number}"], [1, 2, [number, [number], 7]]]] for number in range(2_000)]
    before = sys.getallocatedblocks()
    answers = Answers()
    for number, row in enumerate(rows):
        answers.load(1_000 + number // 10, row)
    answers.take_touched()
    # The key and the answer, and what holds the two.
    assert sys.getallocatedblocks() - before <= 3.3 * len(rows)


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_an_answer_that_is_dropped_takes_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWERS_PER_PEER", 100)
    answers = Answers()
    answers.load(1, [[["jobs", "quiet", "stays"], [1, 2, None]]])

    def blocks_after(first: int) -> int:
        for number in range(first, first + 5_000):
            answers.load(1_000 + number // at_once, [[["jobs", "busy", f"op {number}"], [1, 2, [number, 7]]]])
        answers.take_touched()
        return sys.getallocatedblocks()

    before = blocks_after(0)
    # The readings of the clock at which nothing is forgotten any more.
    assert blocks_after(5_000) - before <= 1.1 * 5_000 / at_once + 100
    assert answers.get(("jobs", "quiet", "stays"), 0) is not None
    assert [number for number in range(10_000) if answers.get(("jobs", "busy", f"op {number}"), 0)] == [
        *range(9_900, 10_000)
    ]


def test_of_a_peer_whose_answers_are_forgotten_nothing_stays() -> None:
    answers = Answers()
    answers.load(5, [[["jobs", "busy", "stays"], [1, 2, None]]])
    before = sys.getallocatedblocks()
    for number in range(5_000):
        answers.load(6, [[["jobs", "busy", str(number)], [1, 2, [number, 7]]]])
        answers.forget(("jobs", "busy", str(number)))
    assert sys.getallocatedblocks() - before <= 1_000
    answers.forget(("jobs", "busy", "stays"))
    assert dict(answers.rows()) == {}
