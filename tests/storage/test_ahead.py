"""The log ahead of LMDB: order, turns of its two files, what is read back, and damage."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from resourcelease.storage import (
    CorruptStore,
    InvalidBatch,
    LmdbStore,
    StorageError,
    StoreState,
    StoreStopped,
    WriteBatch,
    points,
)

from .model import Model, append, held, open_store
from .test_failstop import fail_at

Opener = Callable[..., LmdbStore]
AHEAD = 16 << 10


def lazy(opened: Opener, name: str = "node", **options: object) -> LmdbStore:
    """A store in which nothing settles unless something demands it."""
    return opened(name, **{"ahead_bytes": AHEAD, "settle_s": 3600.0, "at_once_s": 10.0, **options})


def killed(store: LmdbStore, to: Path) -> Path:
    """The directory as a kill -9 would leave it now."""
    shutil.copytree(store.directory, to)
    return to


def ahead_files(directory: Path) -> list[Path]:
    return sorted((directory / "ahead").iterdir())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def test_what_is_at_once_durable_is_read_back(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    model = Model()
    for number in range(1, 21):
        batch = append(number, number)
        batch.vote = (number, "n1")
        assert store.write_at_once(batch)
        model.apply(batch)
    assert store.load()[4:] == (1, 20)
    assert store.stats().commits == 0, "nothing has settled yet"
    again = open_store(killed(store, tmp_path / "copy"))
    assert held(again) == model
    again.close()
    assert held(store) == model, "reading makes it settle"
    assert store.stats().commits == 1


def test_rows_that_come_later_hold_nothing_up_and_are_not_in_the_log_ahead(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    model = Model()
    batch = append(1, 3)
    assert store.write_at_once(batch)
    model.apply(batch)
    # Far more than the log ahead has room for.
    rows = WriteBatch(row_puts=[(b"%d" % n, bytes(5000)) for n in range(100)], rows_index=2, rows_term=1)
    rows.compact_through = 1
    store.write_later(rows)
    batch = append(4, 5)
    store.write(batch).result(10)
    assert store.stats().commits == 0, "nothing has settled yet"
    assert store.load()[2:] == (0, 0, 1, 5)
    assert store.settled_rows_index == 0
    without = model.copy()
    without.apply(batch)
    again = open_store(killed(store, tmp_path / "copy"))
    assert held(again) == without, "killed now, it is what it was before these rows"
    again.close()
    model.apply(rows)
    model.apply(batch)
    assert dict(store.rows()) == model.rows
    assert held(store) == model
    assert store.settled_rows_index == 2


def test_other_rows_do_not_overtake_those_that_come_later(opened: Opener) -> None:
    store = lazy(opened)
    store.write(append(1, 3)).result(10)
    store.write_later(WriteBatch(row_puts=[(b"a", b"1"), (b"b", b"1")], rows_index=2, rows_term=1))
    store.write(WriteBatch(row_puts=[(b"a", b"2")], rows_index=3, rows_term=1)).result(10)
    assert dict(store.rows()) == {b"a": b"2", b"b": b"1"}
    assert store.load().rows_index == 3


def test_rows_that_cannot_be_stored_stop_the_store(opened: Opener) -> None:
    store = lazy(opened)
    store.write(append(1, 3)).result(10)
    fail_at("commit.applied", OSError(errno.EIO, "the disk is broken"))
    store.write_later(WriteBatch(row_puts=[(b"a", b"1")], rows_index=2, rows_term=1))
    with pytest.raises(StorageError, match="the disk is broken"):
        dict(store.rows())
    assert store.status.state is StoreState.STOPPED
    with pytest.raises(StoreStopped):
        store.write(append(4, 4)).result(10)


@pytest.mark.parametrize("ahead_bytes", [0, AHEAD])
def test_nothing_has_settled_while_rows_are_on_their_way(opened: Opener, ahead_bytes: int) -> None:
    """Who replaces all rows has to know of each that is there by then."""
    store = lazy(opened, ahead_bytes=ahead_bytes)
    store.write(append(1, 3)).result(10)
    assert dict(store.rows()) == {}
    assert store.settle()
    begun, gate = threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point == "commit.begun":
            begun.set()
            gate.wait(10)

    points.set_hook(hook)
    store.write_later(WriteBatch(row_puts=[(b"a", b"1")], rows_index=2, rows_term=1))
    assert not store.settle(), "not in the queue"
    for _ in range(1000):
        # What has not come out of the queue cannot be hurried; who wants it asks again.
        assert not store.settle()
        if begun.wait(0.01):
            break
    assert not store.settle(), "nor while they are written"
    points.set_hook(None)
    gate.set()
    assert dict(store.rows()) == {b"a": b"1"}
    assert store.settle()


@pytest.mark.parametrize("ahead_bytes", [0, AHEAD])
def test_rows_that_cannot_be_stored_leave_what_is_durable_readable(opened: Opener, ahead_bytes: int) -> None:
    store = lazy(opened, ahead_bytes=ahead_bytes)
    store.write(append(1, 3)).result(10)
    assert dict(store.rows()) == {}, "all has settled"
    fail_at("commit.applied", OSError(errno.EIO, "the disk is broken"))
    store.write_later(WriteBatch(row_puts=[(b"a", b"1")], rows_index=2, rows_term=1))
    assert dict(store.rows()) == {}
    assert store.status.state is StoreState.STOPPED
    assert len(list(store.entries(1, 3))) == 3
    assert not store.settle(), "who needs them to be there is not told that they are"


def test_no_batch_at_once_while_others_wait(opened: Opener) -> None:
    store = lazy(opened)
    begun, gate = threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point == "ahead.begun":
            begun.set()
            gate.wait(10)

    points.set_hook(hook)
    first = store.write(append(1, 1))
    assert begun.wait(10)
    assert not store.write_at_once(append(2, 2))
    second = store.write(append(2, 2))
    gate.set()
    first.result(10)
    second.result(10)
    points.set_hook(None)
    assert store.load().last_index == 2


def test_a_slow_disk_is_left_to_the_thread(opened: Opener) -> None:
    store = lazy(opened, at_once_s=0.0)
    assert store.write_at_once(append(1, 1)), "nothing is known of the disk yet"
    assert not store.write_at_once(append(2, 2))
    store.write(append(2, 2)).result(10)
    assert store.load().last_index == 2


def test_a_wrong_batch_is_refused_and_changes_nothing(opened: Opener) -> None:
    store = lazy(opened)
    with pytest.raises(InvalidBatch):
        store.write_at_once(append(2, 2))
    assert store.write_at_once(append(1, 1))


def test_the_files_take_turns(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened, settle_s=0.001)
    model = Model()
    sizes: set[int] = set()
    for number in range(1, 200):
        batch = append(number, number, size=1000)
        if not store.write_at_once(batch):
            store.write(batch).result(10)
        model.apply(batch)
        sizes.update(path.stat().st_size for path in ahead_files(store.directory))
    assert sizes == {AHEAD}
    again = open_store(killed(store, tmp_path / "copy"))
    assert held(again) == model
    again.close()


def test_what_gathers_settles_by_number_as_well_as_by_time(opened: Opener) -> None:
    store = lazy(opened, settle_batches=5)
    before = store.stats().commits
    settled = threading.Event()
    store.after_group(settled.set)
    for number in range(1, 6):
        assert store.write_at_once(append(number, number))
    assert settled.wait(10)
    assert store.stats().commits == before + 1
    assert [entry.index for entry in store.settled_entries(1, 5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("many", [0, 1])
def test_each_batch_may_settle_by_itself(opened: Opener, many: int) -> None:
    store = lazy(opened, settle_batches=many)
    settled = threading.Event()
    store.after_group(settled.set)
    assert store.write_at_once(append(1, 1))
    assert settled.wait(10)


def test_what_does_not_fit_goes_to_lmdb_and_keeps_its_place(opened: Opener) -> None:
    store = lazy(opened)
    ended: list[int] = []
    futures = []
    for number, size in enumerate((100, AHEAD, 100, 2 * AHEAD, 100), 1):
        future = store.write(append(number, number, size=size))
        future.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
        futures.append(future)
    for future in futures:
        future.result(10)
    assert ended == [1, 2, 3, 4, 5]
    assert [entry.index for entry in store.entries(1, 5)] == [1, 2, 3, 4, 5]


def test_a_record_that_was_not_flushed_whole_never_was(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    for number in range(1, 6):
        assert store.write_at_once(append(number, number))
    copy = killed(store, tmp_path / "copy")
    active = max(ahead_files(copy), key=lambda path: path.read_bytes().count(b"\xa7rlr"))
    content = active.read_bytes()
    last = content.rindex(b"\xa7rlr")
    active.write_bytes(content[: last + 30] + bytes(len(content) - last - 30))
    again = open_store(copy)
    assert again.load().last_index == 4
    again.close()


@pytest.mark.parametrize("record", [0, 1, 3])
def test_damage_before_the_last_record_is_damage(opened: Opener, tmp_path: Path, record: int) -> None:
    store = lazy(opened)
    for number in range(1, 6):
        assert store.write_at_once(append(number, number))
    copy = killed(store, tmp_path / "copy")
    active = max(ahead_files(copy), key=lambda path: path.read_bytes().count(b"\xa7rlr"))
    content = active.read_bytes()
    at = -1
    for _ in range(record + 1):
        at = content.index(b"\xa7rlr", at + 1)
    for offset in (1, 6, 40):
        flip(active, at + offset)
        with pytest.raises(CorruptStore, match=f"batch {record + 1} is damaged"):
            open_store(copy)
        flip(active, at + offset)
    again = open_store(copy)
    assert again.load().last_index == 5
    again.close()


def test_one_damaged_byte_in_a_files_head_hides_nothing(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    assert store.write_at_once(append(1, 1))
    for at in range(0, 56, 5):
        copy = killed(store, tmp_path / f"copy{at}")
        for path in ahead_files(copy):
            flip(path, at)
        again = open_store(copy)
        assert again.load().last_index == 1
        again.close()


def test_a_file_that_is_gone_is_noticed(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    gate = threading.Event()
    # LMDB is late, so what is in the older file has not settled when the younger one is begun.
    points.set_hook(lambda point: _wait(gate) if point == "commit.begun" else None)
    number = 0
    while sum(b"\xa7rlr" in path.read_bytes() for path in ahead_files(store.directory)) < 2:
        number += 1
        assert store.write_at_once(append(number, number, size=1000))
    copy = killed(store, tmp_path / "copy")
    gate.set()
    points.set_hook(None)
    older = next(path for path in ahead_files(copy) if b"1/1 ..." in path.read_bytes())
    older.unlink()
    with pytest.raises(CorruptStore, match="batch 1 is missing or damaged"):
        open_store(copy)


def test_an_item_that_looks_like_a_record_is_none(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    assert store.write_at_once(append(1, 1))
    active = max(ahead_files(store.directory), key=lambda path: path.read_bytes().count(b"\xa7rlr"))
    content = active.read_bytes()
    record = content[content.index(b"\xa7rlr") :].rstrip(b"\0")
    forged = append(2, 2)
    forged.appends = [forged.appends[0]._replace(data=record.replace(b"1/1", b"9/9"))]
    assert store.write_at_once(forged)
    copy = killed(store, tmp_path / "copy")
    path = copy / "ahead" / active.name
    content = path.read_bytes()
    # The record that holds the forged one was torn; only the forgery is whole.
    flip(path, content.rindex(b"\xa7rlr", 0, content.rindex(b"\xa7rlr")) + 8)
    again = open_store(copy)
    assert again.load().last_index == 1
    again.close()


def test_random_flips_never_pass_for_data(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    states = [Model()]
    for number in range(1, 9):
        batch = append(number, number, size=300)
        assert store.write_at_once(batch)
        states.append(states[-1].copy())
        states[-1].apply(batch)
    draw = random.Random(3)
    found = set()
    for number in range(60):
        copy = killed(store, tmp_path / f"copy{number}")
        for path in ahead_files(copy):
            size = len(path.read_bytes().rstrip(b"\0"))
            if size:
                flip(path, draw.randrange(size))
        try:
            again = open_store(copy)
        except CorruptStore:
            found.add("damage")
        else:
            # At most the last record, which might not have been flushed for all that can be told.
            assert held(again) in states[-2:]
            found.add("data")
            again.close()
    assert found == {"damage", "data"}


@pytest.mark.parametrize("point", ["ahead.begun", "ahead.written", "ahead.synced"])
def test_an_error_stops_the_store(opened: Opener, point: str) -> None:
    store = lazy(opened)
    assert store.write_at_once(append(1, 1))
    fail_at(point, OSError(errno.EIO, "the disk is broken"))
    with pytest.raises(StoreStopped, match=r"the log ahead of LMDB cannot be written: .*the disk is broken"):
        store.write(append(2, 2)).result(10)
    assert not store.write_at_once(append(3, 3))
    with pytest.raises(StoreStopped):
        store.write(append(3, 3)).result(10)


def test_damage_that_settling_meets_is_told_as_damage(opened: Opener, tmp_path: Path) -> None:
    store = lazy(opened)
    assert store.write_at_once(append(1, 1))
    copy = killed(store, tmp_path / "copy")
    fail_at("commit.begun", lmdb.CorruptedError("page was wrong type"))
    with pytest.raises(CorruptStore, match=r"data.mdb: LMDB cannot write it \(.*page was wrong type"):
        open_store(copy)


def test_a_disk_without_room_for_it_leaves_it_to_lmdb(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = lazy(opened)
    assert store.write_at_once(append(1, 1))
    real = os.pwrite
    left = 3

    def full(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        if left:
            left -= 1
            real(fd, bytes(data)[:10], at)
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, data, at)

    monkeypatch.setattr("resourcelease.storage.ahead.os.pwrite", full)
    for number in range(2, 12):
        store.write(append(number, number)).result(10)
    assert left == 0
    monkeypatch.undo()
    assert [entry.index for entry in store.entries(1, 11)] == list(range(1, 12))


def test_a_store_of_the_release_before_is_taken_over(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    store.write(append(1, 3)).result()
    store.close()
    assert not (tmp_path / "node/ahead").exists()
    store = lazy(opened)
    assert store.write_at_once(append(4, 4))
    store.close()
    store = opened()
    assert store.load().last_index == 4
    store.write(WriteBatch(vote=(9, "n1"))).result()
    store.close()
    assert lazy(opened).load()[:2] == (9, "n1")


def _wait(gate: threading.Event) -> None:
    gate.wait(10)
