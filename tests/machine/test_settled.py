"""What is known of items that are gone, whether few of a block or all of it, and whatever became of them."""

import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.machine.settled import Gone, Settled
from resourcelease.model import limits

HOWS = st.one_of(
    st.integers(1, 1 << 40),
    st.sampled_from([0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
    st.builds(Gone, st.integers(0, 9), st.sampled_from(["drained", "discarded"])),
)


@st.composite
def additions(draw: st.DrawFn) -> tuple[list[int], list[int | Gone]]:
    """Ids of which many follow each other, and how those items ended."""
    first = draw(st.integers(0, 3 * limits.SETTLED_BLOCK))
    ids = list(range(first, first + draw(st.sampled_from([1, 2, 10, 63, 64, 65, 200]))))
    if draw(st.booleans()):
        ids = draw(st.permutations(ids[:12]))
    if draw(st.booleans()):
        return ids, [draw(HOWS)] * len(ids)
    return ids, [how if draw(st.integers(0, 9)) else Gone(0, "drained") for how in range(7, 7 + len(ids))]


STEPS = st.lists(st.one_of(additions(), st.integers(0, 3 * limits.SETTLED_BLOCK)), max_size=25)


@given(STEPS)
def test_it_knows_what_a_dict_would(steps: list[Any]) -> None:
    settled, known = Settled(), dict[int, int | Gone]()
    for step in steps:
        if isinstance(step, int):
            settled.discard(step)
            known.pop(step, None)
        else:
            settled.add(step[0], step[1], 5)
            known.update(zip(*step, strict=True))
        touched = (
            {step // limits.SETTLED_BLOCK} if isinstance(step, int) else {n // limits.SETTLED_BLOCK for n in step[0]}
        )
        assert set(settled.take_touched()) <= touched
    rows = dict(settled.rows())
    assert [pair for _, pairs in rows.values() for pair in pairs] == sorted(known.items())
    again = Settled()
    for number, row in rows.items():
        again.load(number, msgpack.unpackb(msgpack.packb(row)))
    for sequence_id in range(4 * limits.SETTLED_BLOCK):
        for found in (settled, again):
            how = found.get(sequence_id, 5)
            assert how == known.get(sequence_id)
            assert type(how) is type(known.get(sequence_id))
    assert dict(again.rows()) == rows


@pytest.mark.parametrize("many", [3, 500])
def test_a_block_is_forgotten_a_window_after_its_last_item(many: int) -> None:
    settled = Settled()
    settled.add(list(range(many)), [7] * many, 10)
    settled.add([1], [8], 20)
    end = 20 + limits.ANSWER_WINDOW_MS
    assert settled.get(0, end - 1) == 7
    assert settled.get(0, end) is None
    settled.add([2], [9], end)
    assert settled.get(2, end) == 9
    assert settled.get(0, end) is None
    assert settled.row(0) == [end + limits.ANSWER_WINDOW_MS, [(2, 9)]]


def test_the_block_that_was_longest_unwritten_goes_first() -> None:
    settled = Settled()
    for number in range(limits.SETTLED_BLOCKS):
        settled.add([number * limits.SETTLED_BLOCK], [1], 10 + number)
    settled.add([1], [1], 5_000)
    settled.take_touched()
    settled.add([limits.SETTLED_BLOCKS * limits.SETTLED_BLOCK], [1], 5_000)
    assert settled.get(0, 5_000) == 1
    assert settled.get(limits.SETTLED_BLOCK, 5_000) is None
    assert settled.row(1) is None
    assert settled.take_touched() == [limits.SETTLED_BLOCKS, 1]


def test_items_of_a_full_block_take_no_object_each() -> None:
    before = sys.getallocatedblocks()
    settled = Settled()
    for first in range(0, 8 * limits.SETTLED_BLOCK, 16):
        settled.add(list(range(first, first + 16)), list(range(1 << 40, (1 << 40) + 16)), 5)
    assert sys.getallocatedblocks() - before < 200
