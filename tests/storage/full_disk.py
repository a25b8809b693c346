"""Run by a test in a mount namespace of its own: fills a real file system, and lets space return in three ways."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from resourcelease.storage import LmdbStore, StoreState, WriteBatch

from .model import append, entries, open_store

SIZE = 3000
BALLAST = 256 << 10


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def fill(store: LmdbStore) -> tuple[list["Future[None]"], int]:
    """Writes entries until no more fit; those that are held back, and the last entry that was handed over."""
    wait_for(lambda: store.status.state is StoreState.OPEN)
    last = store.load().last_index
    while True:
        futures = [store.write(append(index, index, size=SIZE)) for index in range(last + 1, last + 21)]
        last += 20
        # What little fits still goes in, one by one.
        before, still = -1, 0
        while not futures[-1].done() and still < 50:
            now = store.load().last_index
            before, still = now, still + 1 if now == before else 0
            time.sleep(0.005)
        held = [future for future in futures if not future.done()]
        if held:
            assert "waits for space" in store.status.reason
            assert len(held) == last - store.load().last_index
            return held, last


def all_there(store: LmdbStore, last: int) -> None:
    first = store.load().first_index
    assert store.load().last_index == last
    assert list(store.entries(first, last)) == entries(first, last, size=SIZE)


def all_written(store: LmdbStore, futures: list["Future[None]"], last: int) -> None:
    for future in futures:
        future.result(20)
    wait_for(lambda: store.status.state is StoreState.OPEN)
    all_there(store, last)


def main(directory: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", directory], check=True)
    root = directory / "node"

    # Someone else's file goes away.
    other = directory / "other"
    other.write_bytes(bytes(2 << 20))
    store = open_store(root, ballast_bytes=BALLAST)
    held, last = fill(store)
    assert next(store.entries(1, 1)).index == 1
    other.unlink()
    all_written(store, held, last)

    # Compaction frees pages inside the file. The disk stays full after the first time; from then on some of those pages
    # are kept for the next compaction, as the ballast was for the first.
    for turn in range(4):
        last = store.load().last_index
        if turn % 2:
            # Handed over last, it goes first.
            store.write(append(last + 1, last + 400, size=SIZE))
            store.write(WriteBatch(rows_index=last + 400, rows_term=1)).result(20)
            held, last = fill(store)
            held.append(store.write(WriteBatch(compact_through=store.load().rows_index)))
        else:
            # It needs rows that are held back themselves, and those are reached with what is kept for it.
            held, last = fill(store)
            durable = store.load().last_index
            held.append(store.write(WriteBatch(rows_index=durable, rows_term=1)))
            held.append(store.write(WriteBatch(compact_through=durable)))
        all_written(store, held, last)
        assert store.load().first_index == store.load().rows_index + 1
    assert not (root / "ballast").exists()

    # The store is closed meanwhile: what was held back fails, what was acknowledged is there.
    held, _ = fill(store)
    durable = store.load().last_index
    store.close()
    assert all(future.exception() for future in held)

    # It opens and reads on the full disk, and is as full as before.
    store = open_store(root, ballast_bytes=BALLAST)
    all_there(store, durable)
    held, _ = fill(store)
    assert len(held) > 10
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
