"""The simulated disk does what the real store does, and forgets what it may forget."""

import random
from pathlib import Path

import pytest

from chaos.simulation.disk import Damaged, Disk, DiskFaults
from chaos.simulation.world import World
from resourcelease.storage import LmdbStore, StoreOptions
from resourcelease.storage.api import JournalEntry, WriteBatch
from resourcelease.storage.errors import InvalidBatch, RowsChanged
from resourcelease.storage.positions import Positions

OPTIONS = StoreOptions(ballast_bytes=0, map_size_bytes=16 << 20)


def disk(seed: int = 0, **faults: float) -> tuple[World, Disk]:
    world = World(seed)
    return world, Disk(world, "n1", DiskFaults(**faults))  # type: ignore[arg-type]


def entries(first: int, last: int, term: int = 1) -> list[JournalEntry]:
    return [JournalEntry(index, term, f"{term}/{index}".encode()) for index in range(first, last + 1)]


def drawn(rng: random.Random, at: Positions) -> WriteBatch:
    """Some batch, often one that does not follow."""
    batch = WriteBatch()
    first = at.last + 1
    if rng.random() < 0.3:
        first = batch.truncate_from = max(1, at.last - rng.randint(-1, 4))
        if rng.random() < 0.3:
            first += rng.randint(-2, 6)
    if rng.random() < 0.7:
        batch.appends = entries(max(first, 1), max(first, 1) + rng.randint(0, 3), max(1, at.term))
    if rng.random() < 0.3:
        batch.vote = (at.term + rng.randint(0, 2), rng.choice(("", "n2")))
    if rng.random() < 0.5:
        keys = [bytes((rng.randint(97, 102),)) for _ in range(4)]
        batch.row_puts = [(key, bytes((rng.randint(0, 255),))) for key in keys[:3]]
        batch.row_deletes = keys[2:]
        batch.rows_index = max(1, at.last + rng.randint(-3, 3))
        batch.rows_term = 1
    if rng.random() < 0.3:
        batch.compact_through = max(0, max(at.rows_index, batch.rows_index) - rng.randint(-1, 2))
    return batch


def test_it_holds_what_the_real_store_holds(tmp_path: Path) -> None:
    rng = random.Random(7)
    world, simulated = disk()
    real = LmdbStore(tmp_path / "n1", cluster_id="test", node_id="n1", options=OPTIONS)
    at, taken, restarts = Positions(), 0, 0
    for _ in range(600):
        batch = drawn(rng, at)
        try:
            after = at.after(batch)
        except InvalidBatch:
            for store in (simulated, real):
                with pytest.raises(InvalidBatch):
                    store.write(batch)
            continue
        restarts += at.restarted_by(batch)
        at, taken = after, taken + 1
        promises = simulated.write(batch), real.write(batch)
        world.run_until(world.now + 1.0)
        for promise in promises:
            promise.result(timeout=10)
        assert simulated.load() == real.load()
        loaded = simulated.load()
        held = loaded.first_index, loaded.last_index
        assert list(simulated.entries(*held)) == list(real.entries(*held))
        assert list(simulated.rows()) == list(real.rows())
    real.close()
    assert taken > 200
    assert restarts > 5


def test_what_is_not_synced_is_lost_and_what_is_under_way_is_there_whole_or_not_at_all() -> None:
    ends = set()
    for seed in range(20):
        world, store = disk(seed)
        store.write(WriteBatch(appends=entries(1, 2)))
        world.run_until(1.0)
        store.write(WriteBatch(appends=entries(3, 5)))
        promise = store.write(WriteBatch(appends=entries(6, 6)))
        store.crash()
        world.run_until(2.0)
        assert not promise.done()
        ends.add(store.load().last_index)
    assert ends == {2, 5}


def test_a_row_that_is_put_and_deleted_in_one_batch_is_gone() -> None:
    world, store = disk()
    store.write(WriteBatch(appends=entries(1, 1), row_puts=[(b"k", b"v")], row_deletes=[b"k"], rows_index=1))
    world.run_until(1.0)
    assert list(store.rows()) == []


def test_a_journal_begins_anew_only_behind_what_rows_stand_for() -> None:
    world, store = disk()
    store.write(WriteBatch(appends=entries(1, 3)))
    with pytest.raises(InvalidBatch):
        store.write(WriteBatch(truncate_from=1, appends=entries(8, 9)))
    store.write(WriteBatch(truncate_from=1, appends=entries(8, 9), rows_index=9, rows_term=1))
    world.run_until(1.0)
    assert store.load()[2:] == (9, 1, 8, 9)


def test_a_flipped_bit_is_noticed_when_it_is_read() -> None:
    world, store = disk()
    store.write(WriteBatch(appends=entries(1, 1)))
    world.run_until(1.0)
    assert store.flip_a_bit()
    with pytest.raises(Damaged):
        list(store.entries(1, 1))


def test_a_reader_is_told_when_the_map_moved_under_changed_rows() -> None:
    world, store = disk(map_moves_rate=1.0)
    store.write(WriteBatch(appends=entries(1, 2), row_puts=[(b"a", b"1"), (b"b", b"2")], rows_index=1))
    world.run_until(1.0)
    assert len(list(store.rows())) == 2
    rows = store.rows()
    next(rows)
    store.write(WriteBatch(row_puts=[(b"a", b"3")], rows_index=2))
    world.run_until(2.0)
    with pytest.raises(RowsChanged):
        next(rows)


def test_rows_that_are_durable_can_be_read_at_once_only_when_they_have_settled() -> None:
    world, store = disk(settle_max_s=10.0)
    store.write(WriteBatch(appends=entries(1, 2), row_puts=[(b"a", b"1")], rows_index=1))
    world.run_until(20.0)
    store.write(WriteBatch(row_puts=[(b"a", b"2")], rows_index=2))
    world.run_until(20.1)
    assert store.load().rows_index == 2
    assert store.settled_rows_index == 1
    index, rows = store.settled_rows()
    assert (index, list(rows)) == (1, [(b"a", b"1")])
    assert (store.settle(), store.settle()) == (False, True)
    index, rows = store.settled_rows()
    assert (index, list(rows)) == (2, [(b"a", b"2")])


def test_rows_that_come_later_are_lost_with_the_process_or_not_and_what_follows_them_is_kept() -> None:
    outcomes = set()
    for seed in range(20):
        world, store = disk(seed, settle_max_s=10.0)
        store.write(WriteBatch(appends=entries(1, 5)))
        store.write_later(WriteBatch(row_puts=[(b"a", b"1")], rows_index=3, rows_term=1, compact_through=2))
        store.write(WriteBatch(appends=entries(6, 6)))
        world.run_until(0.1)
        store.crash()
        loaded = store.load()
        outcomes.add((loaded.first_index, loaded.rows_index, loaded.last_index))
        assert dict(store.rows()) == ({b"a": b"1"} if loaded.rows_index else {})
    assert outcomes == {(1, 0, 6), (3, 3, 6)}


def test_rows_that_come_later_are_there_for_who_reads_all_and_before_others_of_their_kind() -> None:
    world, store = disk(settle_max_s=10.0)
    store.write(WriteBatch(appends=entries(1, 5)))
    world.run_until(0.1)
    store.write_later(WriteBatch(row_puts=[(b"a", b"1")], rows_index=3, rows_term=1))
    assert store.settled_rows_index == 0
    store.write(WriteBatch(row_puts=[(b"a", b"2")], rows_index=4, rows_term=1))
    world.run_until(0.2)
    assert list(store.rows()) == [(b"a", b"2")]
    store.write_later(WriteBatch(row_puts=[(b"b", b"3")], rows_index=5, rows_term=1))
    assert list(store.rows()) == [(b"a", b"2"), (b"b", b"3")]
    assert store.load().rows_index == 5


def test_a_disk_that_lies_answers_before_anything_is_stored() -> None:
    _, store = disk()
    store.faults.no_fsync = True
    assert store.write(WriteBatch(appends=entries(1, 1))).done()
    assert store.load().last_index == 0


def test_a_full_disk_holds_what_comes_and_writes_it_in_order_when_there_is_space_again() -> None:
    world, store = disk()
    store.write(WriteBatch(appends=entries(1, 1)))
    world.run_until(1.0)
    store.faults.full = True
    promises = [store.write(WriteBatch(appends=entries(index, index))) for index in range(2, 9)]
    world.run_until(3.0)
    assert not any(promise.done() for promise in promises)
    assert store.load().last_index == 1
    assert [entry.index for entry in store.entries(1, 1)] == [1]
    store.faults.full = False
    ends: list[int] = []
    for promise in promises:
        promise.add_done_callback(lambda _: ends.append(store.load().last_index))
    world.run_until(4.0)
    assert all(promise.done() for promise in promises)
    # One batch goes first, then two, then what is left of them.
    assert ends == [2, 4, 4, 8, 8, 8, 8]


def test_what_a_full_disk_held_is_lost_with_the_process() -> None:
    world, store = disk()
    store.faults.full = True
    promise = store.write(WriteBatch(appends=entries(1, 1)))
    store.crash()
    store.faults.full = False
    world.run_until(2.0)
    assert not promise.done()
    assert store.load().last_index == 0
    store.write(WriteBatch(appends=entries(1, 1)))
    world.run_until(3.0)
    assert store.load().last_index == 1
