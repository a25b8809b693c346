"""How a namespace keeps its items: together as they came, alone once something has happened to them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.machine.blocks import SIZE, Bits, Blocks
from resourcelease.machine.items import Batch, Items
from resourcelease.machine.state import weight
from resourcelease.model import limits
from resourcelease.model.items import ItemColumns, item_rows


def batch_of(columns: ItemColumns, first_id: int) -> Batch:
    return Batch(first_id, columns, columns.packed(), 1_000, 10)


def filled(*sizes: int) -> Items:
    """Items in batches of these sizes, ids from 1."""
    items, first_id = Items(), 1
    for size in sizes:
        ids = [f"r{first_id + place}" for place in range(size)]
        items.add(batch_of(ItemColumns(size, "table", ids, body=[bytes(1000)] * size), first_id))
        first_id += size
    return items


def packed_bytes(items: Items) -> int:
    return sum(len(batch.packed) for batch in items.batches())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.data())
def test_rows_are_the_same_alone_in_runs_and_scattered(sizes: list[int], data: st.DataObject) -> None:
    items = filled(*sizes)
    total = sum(sizes)
    ids = data.draw(st.lists(st.integers(1, total), min_size=1, unique=True))
    assert list(items.many(ids)) == [items[i] for i in ids]
    first = data.draw(st.integers(1, total))
    run = list(range(first, data.draw(st.integers(first, total)) + 1))
    assert [row[1] for row in items.many(run)] == [f"r{i}" for i in run]


def test_rows_are_those_of_the_moment_they_were_asked_for() -> None:
    items = filled(4)
    rows = items.many([1, 2, 3, 4])
    items.remove([2, 3])
    items.single_out(1)
    assert [row[1] for row in rows] == ["r1", "r2", "r3", "r4"]
    with pytest.raises(KeyError):
        items.many([2])


def test_a_straggler_does_not_hold_the_bytes_of_its_batch() -> None:
    sizes = [100] * 50
    items = filled(*sizes)
    for first_id in range(1, 5_000, 100):
        items.remove(range(first_id, first_id + 99))
    left = list(range(100, 5_001, 100))
    assert [row[1] for row in items.many(left)] == [f"r{i}" for i in left]
    assert packed_bytes(items) <= limits.THIN_BATCHES * 110_000


def test_what_is_left_of_a_batch_is_told_as_runs() -> None:
    items = filled(10)
    items.remove([1, 2, 5])
    items.single_out(8)
    (batch,) = items.batches()
    assert items.held(batch) == [3, 5, 6, 8, 9, 11]
    assert batch.left == 6


@given(
    st.lists(st.tuples(st.integers(0, 5 * SIZE), st.integers(1, 2 * SIZE), st.sampled_from("abc")), max_size=8),
    st.sets(st.integers(0, 7 * SIZE), max_size=20),
    st.integers(0, 7 * SIZE),
    st.none() | st.integers(0, 200 * SIZE),
)
def test_runs_tell_each_value_of_each_id(
    puts: list[tuple[int, int, str]], gone: set[int], first_id: int, end_id: int | None
) -> None:
    blocks: Blocks[str] = Blocks()
    plain: dict[int, str] = {}
    for first, size, value in puts:
        for sequence_id in range(first, first + size):
            blocks[sequence_id] = plain[sequence_id] = value
    for sequence_id in gone & plain.keys():
        blocks.pop_many([sequence_id])
        del plain[sequence_id]
    runs = list(blocks.runs(first_id, end_id))
    told = [(sequence_id, value) for first, end, value in runs for sequence_id in range(first, end)]
    within = [i for i in sorted(plain) if i >= first_id and (end_id is None or i < end_id)]
    assert told == [(i, plain[i]) for i in within]
    assert all(one[1] < two[0] or one[2] != two[2] for one, two in pairwise(runs))


def test_reading_is_repeated_when_it_was_long_ago() -> None:
    items = filled(*[200] * 40)
    for _ in range(2):
        assert [items[i][1] for i in range(1, 8_001, 200)] == [f"r{i}" for i in range(1, 8_001, 200)]


texts = st.one_of(st.none(), st.text(max_size=9))
attributes = st.one_of(st.none(), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))


@given(st.integers(1, 9), st.data())
def test_a_batch_never_weighs_more_than_it_says(size: int, data: st.DataObject) -> None:
    def column(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        return st.one_of(values, st.lists(values, min_size=size, max_size=size))

    drawn = [data.draw(column(values)) for values in (st.text(min_size=1, max_size=9),) * 2]
    drawn += [data.draw(column(values)) for values in (texts, texts, attributes, st.binary(max_size=9), texts)]
    columns = ItemColumns._make((size, *drawn, 4, 0))
    batch = batch_of(columns, 1)
    assert sum(weight(row, None) for row in item_rows(columns, 0, 0)) <= batch.weight_max


@given(st.sets(st.integers(1, 300)), st.sets(st.integers(1, 300)), st.integers(0, 300), st.integers(0, 200))
def test_bits_within_a_range(added: set[int], taken: set[int], first_id: int, count: int) -> None:
    bits = Bits()
    for sequence_id in added:
        bits.add(sequence_id)
    for sequence_id in taken:
        bits.discard(sequence_id)
    wanted = [sequence_id for sequence_id in range(first_id, first_id + count) if sequence_id in added - taken]
    assert bits.within(first_id, first_id + count) == wanted
