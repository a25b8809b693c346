"""The map grows; a disk without space holds writes back, and lets them go on by themselves."""

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from resourcelease.storage import LmdbStore, StoreState, StoreStatus, StoreStopped, WriteBatch, points

from . import small_map
from .model import append, entries
from .test_failstop import fail_at

Opener = Callable[..., LmdbStore]


def test_the_map_grows_in_steps(opened: Opener) -> None:
    store = opened(map_size_bytes=64 << 10)
    seen: list[str] = []
    points.set_hook(seen.append)
    store.write(append(1, 200, size=10_000)).result()
    assert seen.count("grow.done") >= 4
    assert store.stats().map_size_bytes >= 2_000_000
    store.close()
    again = opened(map_size_bytes=64 << 10)
    assert list(again.entries(1, 200)) == entries(1, 200, size=10_000)


def test_the_map_grows_under_readers(opened: Opener) -> None:
    store = opened(map_size_bytes=64 << 10)
    store.write(append(1, 1000, size=40)).result()
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                assert len(list(store.entries(1, 1000))) == 1000
                list(store.rows())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index in range(1001, 1100):
        store.write(append(index, index, size=20_000)).result()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.stats().map_size_bytes >= 2_000_000


def test_a_map_that_cannot_grow_is_a_full_disk(opened: Opener) -> None:
    shown: list[StoreStatus] = []
    store = opened(map_size_bytes=256 << 10, map_size_bytes_max=256 << 10, on_status=shown.append)
    store.write(WriteBatch(appends=entries(1, 1000), rows_index=1000, rows_term=1)).result()
    futures = [store.write(append(index, index, size=3000)) for index in range(1001, 1101)]
    _wait_for(lambda: store.status.state is StoreState.FULL)
    assert "cannot grow" in store.status.reason
    # What little fits is written, one by one.
    _wait_for(lambda: futures[0].done())
    _wait_for(lambda: "entries 1001" not in store.status.reason)
    done = sum(future.done() for future in futures)
    assert 0 < done < 100
    # Reads work, and show what is durable.
    assert list(store.entries(990, 1000)) == entries(990, 1000)
    assert store.load().last_index == 1000 + done
    # A compaction, though it was handed over last, is let through, since it makes room for some of the others.
    store.write(WriteBatch(compact_through=1000))
    _wait_for(lambda: sum(future.done() for future in futures) > done)
    store.close()
    held_back = [future for future in futures if future.exception() is not None]
    assert held_back == futures[-len(held_back) :]
    for future in held_back:
        with pytest.raises(StoreStopped, match=r"closed while .* waited for space"):
            future.result()
    assert [status.state for status in shown][:1] == [StoreState.FULL]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "no space"), lmdb.DiskError("mdb_txn_commit", errno.ENOSPC), OSError(errno.EDQUOT, "quota")],
    ids=["system", "lmdb", "quota"],
)
def test_writes_go_on_when_space_returns(opened: Opener, error: Exception) -> None:
    shown: list[StoreStatus] = []
    store = opened(on_status=shown.append)
    ended: list[int] = []
    fail_at("commit.applied", error, times=3)
    futures = []
    for index in range(1, 21):
        future = store.write(append(index, index))
        future.add_done_callback(lambda _, index=index: ended.append(index))  # type: ignore[misc]
        futures.append(future)
    for future in futures:
        future.result(10)
    store.close()
    assert ended == list(range(1, 21))
    assert [status.state for status in shown] == [StoreState.FULL, StoreState.OPEN, StoreState.CLOSED]
    assert "waits for space" in shown[0].reason


def _short_write() -> lmdb.Error:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    error.code = errno.EIO  # type: ignore[misc]
    return error


def test_a_write_that_was_cut_short_on_a_full_disk_is_held(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    monkeypatch.setattr("resourcelease.storage.writer.has_room", lambda _path, _size: False)
    fail_at("commit.applied", _short_write(), times=2)
    store.write(append(1, 3)).result(10)
    assert store.load().last_index == 3


def test_the_same_error_with_room_on_the_disk_stops_the_store(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    fail_at("commit.applied", _short_write())
    with pytest.raises(StoreStopped, match="Input/output error"):
        store.write(append(1, 3)).result(10)
    assert not list(tmp_path.rglob("probe"))


def test_a_compaction_that_overtakes_its_rows_leaves_what_a_start_needs(opened: Opener) -> None:
    store = opened()
    store.write(WriteBatch(appends=entries(1, 100), rows_index=60, rows_term=1)).result(10)
    _wait_for(store.settle)
    # Rows of entry 92 wait for space, and a compaction behind them.
    store._writer.make_room(90)
    assert store.load().first_index == 59
    assert [entry.index for entry in store.entries(59, 60)] == [59, 60]


def test_an_install_waits_for_space_too(opened: Opener) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    sender.write(WriteBatch(appends=entries(1, 9), row_puts=[(b"a", b"1")], rows_index=7, rows_term=1)).result()
    receiver = target.snapshots.receive((sent := sender.snapshot("d").result()).manifest)
    receiver.write(sent.data.read_bytes())
    staged = target.stage(receiver.finish()).result()
    fail_at("install.voted", OSError(errno.ENOSPC, "no space"), times=2)
    assert target.install(staged).result(10).rows_index == 7


def test_a_map_that_the_system_does_not_grant(tmp_path: Path) -> None:
    """The address space is limited in a process of its own; the store falls back to the map it had."""
    top = Path(__file__).parents[small_map.__name__.count(".")]
    command = [sys.executable, "-m", small_map.__name__, str(tmp_path)]
    run = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr


def test_a_snapshot_needs_room(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.write(WriteBatch(appends=entries(1, 1), rows_index=1, rows_term=1)).result()
    monkeypatch.setattr("resourcelease.storage.taking.free_bytes", lambda _path: 1000)
    with pytest.raises(Exception, match="1000 are free; make room first"):
        store.snapshot("digest").result()
    store.write(append(2, 2)).result()


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """On a small file system of its own, mounted where only the child process sees it."""
    child = [sys.executable, "-m", f"{__package__}.full_disk", str(tmp_path)]
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
        possible = subprocess.run([*unshare, *mount], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here to mount a small file system with")
    if possible.returncode:
        pytest.skip(f"no small file system can be mounted here: {possible.stderr.strip()}")
    top = Path(__file__).parents[__package__.count(".") + 1]
    run = subprocess.run([*unshare, *child], cwd=top, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr


def _wait_for(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(1000):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it did not come to that")
