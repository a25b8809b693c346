"""What a node's disk room can do: ``python -m bench.storage [--json] [--dir DIR] [--rows N] [--seconds S]``.

Each figure with an fsync has its twin without one, taken in the same run and in turns, so that the ratio means
something on a machine that others use too. Figures without fsync promise nothing and are only the measure.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from resourcelease.storage import JournalEntry, LmdbStore, LoopWriter, StoreOptions, WriteBatch

_ROUNDS = 3
_COMPACT_EVERY = 2000


class Journal:
    """Appends to a store as consensus would, compacting behind itself so that the journal stays short."""

    def __init__(self, store: LmdbStore, size_bytes: int) -> None:
        self.store = store
        self.index = store.load().last_index
        self.data = os.urandom(size_bytes)

    def next(self) -> WriteBatch:
        """The next batch."""
        self.index += 1
        batch = WriteBatch(appends=[JournalEntry(self.index, 1, self.data)])
        if self.index % _COMPACT_EVERY == 0:
            batch.row_puts = [(b"position", self.index.to_bytes(8))]
            batch.rows_index, batch.rows_term = self.index - 1, 1
            batch.compact_through = self.index - 1
        return batch


def _store(directory: Path, *, sync: bool) -> LmdbStore:
    return LmdbStore(directory, cluster_id="bench", node_id="n1", options=StoreOptions(sync=sync))


async def _load(store: LmdbStore, *, outstanding: int, size_bytes: int, seconds: float) -> dict[str, float]:
    """Keeps ``outstanding`` batches of one entry each under way; latencies as the loop sees them."""
    writer = LoopWriter(store)
    journal = Journal(store, size_bytes)
    under_way: deque[tuple[float, asyncio.Future[None]]] = deque()
    latencies: list[float] = []
    before = store.stats()
    began = time.perf_counter()
    until = began + seconds
    while (now := time.perf_counter()) < until or under_way:
        while now < until and len(under_way) < outstanding:
            under_way.append((now, writer.write(journal.next())))
        start, future = under_way.popleft()
        await future
        latencies.append(time.perf_counter() - start)
    took = time.perf_counter() - began
    after = store.stats()
    latencies.sort()
    commits = after.commits - before.commits
    return {
        "batches_per_s": len(latencies) / took,
        "commits_per_s": commits / took,
        "mb_per_s": (after.journal_bytes - before.journal_bytes) / took / 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


def _median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in rounds), 3) for key in rounds[0]}


def measure_commits(root: Path, seconds: float) -> dict[str, Any]:
    """Lone, grouped and bulk, each with and without fsync."""
    shapes = {
        "lone": {"outstanding": 1, "size_bytes": 100},
        "grouped": {"outstanding": 64, "size_bytes": 100},
        "bulk": {"outstanding": 16, "size_bytes": 64 << 10},
    }
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        rounds: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        stores = {sync: _store(root / f"{name}-{sync}", sync=sync) for sync in (True, False)}
        for _ in range(_ROUNDS):
            for sync, store in stores.items():
                rounds[sync].append(asyncio.run(_load(store, seconds=seconds / _ROUNDS, **shape)))
        for store in stores.values():
            store.close()
        found[name] = _median(rounds[True])
        found[f"{name}_nosync"] = _median(rounds[False])
        ratio = found[name]["batches_per_s"] / found[f"{name}_nosync"]["batches_per_s"]
        found[name]["share_of_nosync"] = round(ratio, 3)
    return found


def measure_handover(root: Path) -> dict[str, float]:
    """What one batch costs the thread that hands it over and takes its end back, fsync apart."""
    count = 5000
    store = _store(root / "handover", sync=False)
    journal = Journal(store, 100)

    async def with_writer() -> float:
        writer = LoopWriter(store)
        batches = [journal.next() for _ in range(count)]
        began = time.thread_time()
        futures = [writer.write(batch) for batch in batches]
        await futures[-1]
        return time.thread_time() - began

    async def with_futures() -> float:
        batches = [journal.next() for _ in range(count)]
        began = time.thread_time()
        futures = [asyncio.wrap_future(store.write(batch)) for batch in batches]
        await futures[-1]
        return time.thread_time() - began

    figures = {
        "loop_writer_us": round(min(asyncio.run(with_writer()) for _ in range(_ROUNDS)) / count * 1e6, 2),
        "wrapped_future_us": round(min(asyncio.run(with_futures()) for _ in range(_ROUNDS)) / count * 1e6, 2),
    }
    store.close()
    return figures


def measure_rows(root: Path, rows: int, seconds: float) -> dict[str, float]:
    """Loading all rows after a restart, and what a snapshot of them does to lone commits meanwhile."""
    store = _store(root / "rows", sync=True)
    value = os.urandom(120)
    store.write(WriteBatch(appends=[JournalEntry(1, 1, b"")])).result()
    for first in range(0, rows, 50_000):
        puts = [(b"item" + key.to_bytes(8), value) for key in range(first, min(rows, first + 50_000))]
        store.write(WriteBatch(row_puts=puts, rows_index=1, rows_term=1)).result()
    store.close()

    began = time.perf_counter()
    store = _store(root / "rows", sync=True)
    loaded = sum(1 for _ in store.rows())
    load_s = time.perf_counter() - began
    assert loaded == rows

    calm = asyncio.run(_load(store, outstanding=1, size_bytes=100, seconds=seconds))
    future = store.snapshot("bench")
    began = time.perf_counter()
    latencies: list[float] = []
    journal = Journal(store, 100)
    while not future.done():
        start = time.perf_counter()
        store.write(journal.next()).result()
        latencies.append(time.perf_counter() - start)
    snapshot_s = time.perf_counter() - began
    size = future.result().manifest.size_bytes
    store.close()
    latencies.sort()
    return {
        "rows": rows,
        "load_s": round(load_s, 3),
        "calm_p50_ms": round(calm["p50_ms"], 3),
        "calm_p99_ms": round(calm["p99_ms"], 3),
        "snapshot_s": round(snapshot_s, 3),
        "snapshot_mb": round(size / 1e6, 1),
        "during_snapshot_p50_ms": round(latencies[len(latencies) // 2] * 1e3, 3),
        "during_snapshot_p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
        "during_snapshot_max_ms": round(latencies[-1] * 1e3, 3),
    }


def measure_busy_loop(root: Path, seconds: float) -> dict[str, float]:
    """Lone commits while another thread computes in turns of half a millisecond, as a loaded event loop does."""
    store = _store(root / "busy", sync=True)
    stop = threading.Event()

    def turns() -> None:
        while not stop.is_set():
            until = time.perf_counter() + 0.0005
            while time.perf_counter() < until:
                pass
            time.sleep(0)

    thread = threading.Thread(target=turns)
    thread.start()
    figures = asyncio.run(_load(store, outstanding=1, size_bytes=100, seconds=seconds))
    stop.set()
    thread.join()
    store.close()
    return {"p50_ms": round(figures["p50_ms"], 3), "p99_ms": round(figures["p99_ms"], 3)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.storage", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure; default: the temporary one")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=arguments.dir))
    try:
        found = measure_commits(root, arguments.seconds)
        found["busy_loop"] = measure_busy_loop(root, arguments.seconds)
        found["handover"] = measure_handover(root)
        found["rows"] = measure_rows(root, arguments.rows, arguments.seconds)
    finally:
        shutil.rmtree(root)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:28} {value:>14,.3f}")


if __name__ == "__main__":
    main()
