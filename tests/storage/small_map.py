"""Run by a test as a process of its own: the system grants no larger map, and later does."""

import resource
import sys
import time
from pathlib import Path

from resourcelease.storage import StoreState

from .model import append, entries, open_store


def main(directory: Path) -> None:
    store = open_store(directory, map_size_bytes=64 << 20)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Enough for what a write needs, not enough for a map of twice the size.
    resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
    deadline = time.monotonic() + 20
    last = 0
    while store.status.state is StoreState.OPEN:
        assert time.monotonic() < deadline, store.status
        last += 1
        future = store.write(append(last, last, size=1 << 20))
        while not future.done() and store.status.state is StoreState.OPEN:
            time.sleep(0.001)
    assert "cannot grow" in store.status.reason
    assert store.load().last_index == last - 1 >= 50
    assert [entry.index for entry in store.entries(last - 3, last - 1)] == [last - 3, last - 2, last - 1]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    future.result(20)
    assert list(store.entries(last, last)) == entries(last, last, size=1 << 20)
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
