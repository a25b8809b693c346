"""An error while writing stops the store for good, and everyone who waits or comes later is told why."""

import errno
import threading
from collections.abc import Callable

import pytest

from resourcelease.storage import LmdbStore, StoreState, StoreStatus, StoreStopped, WriteBatch, points

from .model import append

Opener = Callable[..., LmdbStore]


def fail_at(wanted: str, error: Exception, times: int = 1) -> None:
    """Raises at a point, the first ``times`` that it is reached."""
    left = times

    def hook(point: str) -> None:
        nonlocal left
        if point == wanted and left:
            left -= 1
            raise error

    points.set_hook(hook)


@pytest.mark.parametrize("point", ["commit.begun", "commit.applied", "commit.synced"])
def test_an_error_stops_the_store(opened: Opener, point: str) -> None:
    shown: list[StoreStatus] = []
    store = opened(on_status=shown.append)
    store.write(append(1, 1)).result()
    fail_at(point, OSError(errno.EIO, "the disk is broken"))
    gate = threading.Event()
    store.submit(append(2, 2), lambda _error: None)
    futures = [store.write(append(index, index)) for index in range(3, 10)]
    gate.set()
    for future in futures:
        with pytest.raises(StoreStopped, match="the disk is broken") as caught:
            future.result(5)
        assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreStopped, match=r"takes no writes: the commit of .* failed: .*the disk is broken"):
        store.write(append(10, 10)).result()
    # Reads of what is durable still work, for those who want to look.
    assert [entry.index for entry in store.entries(1, 1)] == [1]
    assert [status.state for status in shown] == [StoreState.STOPPED]
    store.close()
    assert opened().load().last_index >= 1


def test_the_error_names_what_was_written(opened: Opener) -> None:
    store = opened()
    fail_at("commit.applied", OSError(errno.EIO, "no luck"))
    with pytest.raises(StoreStopped, match=r"node takes no writes: the commit of a batch, entries 1 to 3 failed"):
        store.write(append(1, 3)).result()


def test_an_error_that_nobody_foresaw_stops_the_store(opened: Opener) -> None:
    store = opened()
    fail_at("commit.told", RuntimeError("a slip"))
    store.write(append(1, 1)).result()
    with pytest.raises(StoreStopped, match="a slip"):
        store.write(append(2, 2)).result(5)


def test_an_error_in_compaction_stops_the_store(opened: Opener) -> None:
    store = opened()
    store.write(append(1, 100)).result()
    fail_at("compaction.applied", OSError(errno.EIO, "the disk is broken"))
    store.write(WriteBatch(rows_index=90, rows_term=1, compact_through=90))
    store._committer._thread.join(5)
    with pytest.raises(StoreStopped, match="compaction failed"):
        store.write(append(101, 101)).result()
    store.close()
    points.set_hook(None)
    again = opened()
    assert again.load()[4:] == (91, 100)


def test_a_stopped_store_tells_without_waiting(opened: Opener) -> None:
    store = opened()
    fail_at("commit.begun", OSError(errno.EIO, "broken"))
    with pytest.raises(StoreStopped):
        store.write(append(1, 1)).result(5)
    told: list[BaseException | None] = []
    # A callback may hand something over itself; nothing is held while it runs.
    store.submit(append(2, 2), lambda _error: told.append(store.write(append(3, 3)).exception()))
    assert isinstance(told[0], StoreStopped)
