"""What is written comes back: in order, whole, after the fsync, and nothing else does."""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from resourcelease.storage import (
    EntryNotHeld,
    InvalidBatch,
    JournalEntry,
    LmdbStore,
    Loaded,
    LoopWriter,
    RowsChanged,
    Store,
    StoreState,
    StoreStopped,
    WriteBatch,
    points,
)
from resourcelease.storage.records import FORMAT_VERSION

from .model import Model, append, entries, held

Opener = Callable[..., LmdbStore]


def test_an_empty_store_holds_nothing(store: LmdbStore) -> None:
    assert store.load() == Loaded(term=0, voted_for="", rows_index=0, rows_term=0, first_index=1, last_index=0)
    assert list(store.entries(1, 0)) == []
    assert list(store.rows()) == []


def test_the_store_is_what_consensus_is_written_against(store: LmdbStore) -> None:
    agreed: Store = store
    assert agreed.identity == ("c1", "n1", FORMAT_VERSION)


def test_everything_is_there_after_reopening(opened: Opener) -> None:
    store = opened()
    batch = WriteBatch(
        appends=entries(1, 5),
        vote=(3, "n2"),
        row_puts=[(b"b", b"2"), (b"a", b"1"), (b"c", b"3")],
        row_deletes=[b"c", b"never there"],
        rows_index=4,
        rows_term=1,
        compact_through=2,
    )
    store.write(batch).result()
    expected = Model()
    expected.apply(batch)
    assert held(store) == expected
    store.close()
    again = opened()
    assert held(again) == expected
    assert list(again.rows()) == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.parametrize("size", [0, 1, 4000, 5_000_000])
def test_entries_of_any_size(opened: Opener, size: int) -> None:
    data = os.urandom(size)
    store = opened()
    store.write(WriteBatch(appends=[JournalEntry(1, 2**63, data)])).result()
    store.close()
    assert list(opened().entries(1, 1)) == [JournalEntry(1, 2**63, data)]


def test_the_tail_is_replaced(store: LmdbStore) -> None:
    store.write(append(1, 10)).result()
    store.write(WriteBatch(truncate_from=4, appends=entries(4, 6, term=2))).result()
    assert list(store.entries(1, 6)) == entries(1, 3) + entries(4, 6, term=2)
    assert store.load().last_index == 6
    store.write(WriteBatch(truncate_from=1)).result()
    assert store.load()[4:] == (1, 0)


def test_futures_end_in_order_and_groups_form(store: LmdbStore) -> None:
    ended: list[int] = []
    gate = threading.Event()

    def hold(point: str) -> None:
        if point == "commit.applied":
            gate.wait(10)

    points.set_hook(hold)
    futures = [store.write(append(1, 1))]
    before = store.stats().commits
    for index in range(2, 101):
        future = store.write(append(index, index))
        future.add_done_callback(lambda _, index=index: ended.append(index))  # type: ignore[misc]
        futures.append(future)
    assert not any(future.done() for future in futures)
    gate.set()
    futures[-1].result(10)
    assert all(future.done() for future in futures)
    store.close()
    assert ended == list(range(2, 101))
    # All that waited while the first was written went into one transaction.
    assert 1 <= store._writer.commits - before <= 2


def test_nobody_is_told_before_the_fsync(store: LmdbStore) -> None:
    told: list[int] = []
    at_fsync: list[int] = []
    points.set_hook(lambda point: at_fsync.append(len(told)) if point == "commit.synced" else None)
    for index in range(1, 31):
        store.submit(append(index, index), lambda _, index=index: told.append(index))  # type: ignore[misc]
    store.close()
    assert told == list(range(1, 31))
    # Those told before an fsync ended had an fsync of their own.
    assert at_fsync[0] == 0
    assert at_fsync == sorted(set(at_fsync))


def test_a_future_cannot_be_cancelled(store: LmdbStore) -> None:
    future = store.write(append(1, 1))
    assert not future.cancel()
    assert future.result() is None


def test_a_callback_that_fails_harms_nobody(store: LmdbStore, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_error: Exception | None) -> None:
        raise RuntimeError("not the store's fault")

    store.submit(append(1, 1), broken)
    store.after_group(lambda: broken(None))
    store.write(append(2, 2)).result()
    assert store.status.state is StoreState.OPEN
    assert "callback" in caplog.text


def test_the_loop_is_woken_once_for_each_group(store: LmdbStore) -> None:
    async def scenario() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        wakes = 0
        original = loop.call_soon_threadsafe

        def counting(*args: object, **kwargs: object) -> object:
            nonlocal wakes
            wakes += 1
            return original(*args, **kwargs)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
        writer = LoopWriter(store)
        before = store.stats().commits
        ended: list[int] = []
        futures = []
        for index in range(1, 201):
            future = writer.write(append(index, index))
            future.add_done_callback(lambda _, index=index: ended.append(index))  # type: ignore[misc]
            futures.append(future)
        futures[3].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert sorted(ended) == list(range(1, 201))
        return wakes, store.stats().commits - before

    wakes, commits = asyncio.run(scenario())
    assert wakes <= commits < 200
    # The one that nobody waited for is written all the same.
    assert store.load().last_index == 200


def test_a_stopped_store_answers_the_loop(store: LmdbStore) -> None:
    async def scenario() -> None:
        writer = LoopWriter(store)
        store.close()
        with pytest.raises(StoreStopped, match="closed"):
            await writer.write(append(1, 1))

    asyncio.run(scenario())


def test_close_finishes_what_was_queued(opened: Opener) -> None:
    store = opened()
    futures = [store.write(append(index, index)) for index in range(1, 50)]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(StoreStopped, match="closed"):
        store.write(append(50, 50)).result()
    store.close()
    assert opened().load().last_index == 49


WRONG = {
    "gap": append(12, 12),
    "overlap": append(10, 10),
    "gap inside": WriteBatch(appends=[*entries(11, 11), *entries(13, 13)]),
    "gap after truncation": WriteBatch(truncate_from=8, appends=entries(9, 9)),
    "truncation below the rows": WriteBatch(truncate_from=5, appends=entries(5, 9)),
    "rows before the entries": WriteBatch(rows_index=11, rows_term=1),
    "rows of entries that are cut": WriteBatch(truncate_from=8, rows_index=9, rows_term=1),
    "rows going back": WriteBatch(rows_index=4, rows_term=1),
    "compaction above the rows": WriteBatch(compact_through=6),
    "term falling": WriteBatch(vote=(4, "")),
    "empty key": WriteBatch(row_puts=[(b"", b"x")]),
    "long key": WriteBatch(row_deletes=[b"ok", b"x" * 512]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_contradicts_is_refused_whole(store: LmdbStore, case: str) -> None:
    store.write(WriteBatch(appends=entries(1, 10), rows_index=5, rows_term=1, vote=(5, ""))).result()
    before = held(store)
    with pytest.raises(InvalidBatch):
        store.write(WRONG[case])
    with pytest.raises(InvalidBatch):
        store.write(replace(WRONG[case], row_puts=[*WRONG[case].row_puts, (b"k", b"v")]))
    assert held(store) == before
    # And it changes nothing for the next one.
    store.write(append(11, 11)).result()
    assert store.load().last_index == 11


def test_refusals_see_batches_that_are_still_queued(store: LmdbStore) -> None:
    store.write(append(1, 3))
    with pytest.raises(InvalidBatch, match="does not follow entry 3"):
        store.write(append(3, 3))
    store.write(append(4, 4)).result()


def test_the_longest_key(opened: Opener) -> None:
    store = opened()
    rows = [(b"k" * 511, b"long"), (b"k", b"")]
    store.write(append(1, 1))
    store.write(WriteBatch(row_puts=rows, rows_index=1, rows_term=1)).result()
    assert list(store.rows()) == [(b"k", b""), (b"k" * 511, b"long")]


def test_rows_from_elsewhere_restart_the_journal(opened: Opener) -> None:
    store = opened()
    store.write(WriteBatch(appends=entries(1, 10), row_puts=[(b"old", b"1")], rows_index=3, rows_term=1)).result()
    restart = WriteBatch(
        truncate_from=1,
        row_puts=[(b"new", b"2")],
        row_deletes=[b"old"],
        rows_index=50,
        rows_term=4,
        compact_through=50,
    )
    store.write(restart)
    store.write(append(51, 53, term=4)).result()
    for _ in range(2):
        assert store.load()[2:] == (50, 4, 51, 53)
        assert list(store.entries(51, 53)) == entries(51, 53, term=4)
        assert dict(store.rows()) == {b"new": b"2"}
        store.close()
        store = opened()


@pytest.mark.parametrize("first", [45, 50, 51])
def test_rows_from_elsewhere_come_with_entries_of_theirs(opened: Opener, first: int) -> None:
    store = opened()
    store.write(WriteBatch(appends=entries(1, 10), row_puts=[(b"old", b"1")], rows_index=5, rows_term=1)).result()
    restart = WriteBatch(
        truncate_from=3,
        appends=entries(first, 52, term=4),
        row_puts=[(b"new", b"2")],
        row_deletes=[b"old"],
        rows_index=50,
        rows_term=4,
        compact_through=2,
    )
    store.write(restart)
    # In one group with what follows, and with a compaction that would like to go on.
    store.write(append(53, 53, term=4))
    store.write(WriteBatch(compact_through=48)).result()
    expected = max(first, 49)
    for _ in range(2):
        assert store.load()[2:] == (50, 4, expected, 53)
        assert list(store.entries(expected, 53)) == entries(expected, 53, term=4)
        assert dict(store.rows()) == {b"new": b"2"}
        store.close()
        store = opened()
    store.write(WriteBatch(compact_through=50)).result()
    assert list(store.entries(51, 53)) == entries(51, 53, term=4)


@pytest.mark.parametrize("first", [52, 11, 3])
def test_a_journal_does_not_begin_anew_with_a_gap(store: LmdbStore, first: int) -> None:
    store.write(WriteBatch(appends=entries(1, 10), rows_index=5, rows_term=1)).result()
    with pytest.raises(InvalidBatch):
        store.write(WriteBatch(truncate_from=2, appends=entries(first, 60), rows_index=50, rows_term=1))
    with pytest.raises(InvalidBatch):
        store.write(WriteBatch(truncate_from=1, appends=entries(52, 60), rows_index=50, rows_term=1))


def test_entries_outside_the_journal(store: LmdbStore) -> None:
    store.write(WriteBatch(appends=entries(1, 10), rows_index=4, rows_term=1, compact_through=4)).result()
    assert list(store.entries(5, 10)) == entries(5, 10)
    assert list(store.entries(7, 7)) == entries(7, 7)
    for first, last in ((4, 5), (1, 1), (10, 11), (99, 99)):
        with pytest.raises(EntryNotHeld, match="holds 5 to 10"):
            store.entries(first, last)


def test_compaction_overtakes_a_slow_reader(store: LmdbStore) -> None:
    store.write(append(1, 2000)).result()
    reader = store.entries(1, 2000)
    assert next(reader).index == 1
    store.write(WriteBatch(rows_index=1500, rows_term=1, compact_through=1500)).result()
    with pytest.raises(EntryNotHeld, match="starts at 1501"):
        list(reader)


def test_rows_are_those_of_the_call(opened: Opener) -> None:
    store = opened(map_size_bytes=16 << 20)
    rows = [(key.to_bytes(4), b"x") for key in range(5000)]
    store.write(append(1, 2))
    store.write(WriteBatch(row_puts=rows, rows_index=1, rows_term=1)).result()
    readers = [store.rows() for _ in range(3)]
    next(readers[1])
    for key in range(10, 5000, 10):
        store.write(WriteBatch(row_puts=[(key.to_bytes(4), b"changed")], row_deletes=[(key + 1).to_bytes(4)]))
    store.write(append(3, 3)).result()
    assert list(readers[0]) == rows
    assert list(readers[1]) == rows[1:]
    assert len(list(store.rows())) == 5000 - 499
    # One that was never read from holds nothing back either.
    assert len(store._env._views) == 1
    del readers
    assert not store._env._views


def test_a_map_that_moves_takes_rows_with_it_only_if_they_have_changed(opened: Opener) -> None:
    store = opened(map_size_bytes=1 << 20)
    rows = [(key.to_bytes(4), b"x") for key in range(5000)]
    store.write(append(1, 2))
    store.write(WriteBatch(row_puts=rows, rows_index=1, rows_term=1)).result()
    for changes in (False, True):
        reader, unread = store.rows(), store.rows()
        next(reader)
        size = store.stats().map_size_bytes
        if changes:
            store.write(WriteBatch(row_puts=[(b"z", b"z")])).result()
        while store.stats().map_size_bytes == size:
            last = store.load().last_index
            store.write(append(last + 1, last + 1, size=200_000)).result()
        if changes:
            for iterator in (reader, unread):
                with pytest.raises(RowsChanged):
                    list(iterator)
        else:
            assert list(reader) == rows[1:]
            assert list(unread) == rows


def test_stats_count(store: LmdbStore) -> None:
    store.write(append(1, 3, size=100)).result()
    stats = store.stats()
    assert (stats.batches, stats.commits, stats.journal_bytes) == (1, 1, 300)
    assert 0 < stats.used_bytes <= stats.map_size_bytes
    assert 0 < stats.last_commit_s < 10


def test_the_map_on_disk_is_no_larger_than_its_content(opened: Opener, tmp_path: Path) -> None:
    opened(map_size_bytes=1 << 40).write(append(1, 10)).result()
    assert (tmp_path / "node/lmdb/data.mdb").stat().st_size < 1 << 20
