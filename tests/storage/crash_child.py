"""Run by a test as a process of its own, which kills itself with -9 at a named point, or is killed at any moment.

What it writes is known beforehand, so the test can tell which prefix of it is on disk afterwards; what was acknowledged
it says on its standard output.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from resourcelease.storage import LmdbStore, Manifest, WriteBatch, points

from .model import append, entries, open_store

WRITES = 60
SNAPSHOT_AFTER = 40
# A log ahead of a few batches, whose files take turns all the time, or none.
OPTIONS: dict[str, Any] = {"settle_s": 0.02}


def schedule() -> list[WriteBatch]:
    """Batches of every kind; rows and compaction follow the journal at a distance."""
    batches: list[WriteBatch] = []
    last = 0
    for number in range(1, WRITES + 1):
        batch = append(last + 1, last + 3, term=number, size=1500)
        if number % 7 == 0:
            batch = WriteBatch(truncate_from=last, appends=entries(last, last + 2, term=number, size=1500))
        last = batch.appends[-1].index
        batch.vote = (number, f"n{number % 3}")
        batch.row_puts = [(b"row%d" % (number % 10), b"%d" % number), (b"always", b"%d" % number)]
        batch.row_deletes = [b"row%d" % ((number + 3) % 10)]
        if number % 4 == 0:
            batch.rows_index, batch.rows_term = last - 2, number
        if number % 8 == 0:
            batch.compact_through = last - 4
        batches.append(batch)
    return batches


def parted() -> list[tuple[WriteBatch, WriteBatch | None]]:
    """The same, with the rows of some batches as what may come later, and none in the others."""
    parts: list[tuple[WriteBatch, WriteBatch | None]] = []
    for batch in schedule():
        rows = WriteBatch(
            row_puts=batch.row_puts,
            row_deletes=batch.row_deletes,
            rows_index=batch.rows_index,
            rows_term=batch.rows_term,
            compact_through=batch.compact_through,
        )
        entries_alone = WriteBatch(truncate_from=batch.truncate_from, appends=batch.appends, vote=batch.vote)
        parts.append((entries_alone, rows if batch.rows_index else None))
    return parts


def kill_at(wanted: str, nth: int) -> None:
    """Has this process killed when it reaches a point for the n-th time."""
    seen = 0

    def hook(point: str) -> None:
        nonlocal seen
        if point == wanted:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    points.set_hook(hook)


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def write_all(store: LmdbStore, batches: list[WriteBatch], *, at_once: int) -> None:
    """Hands batches over a few at a time, and says the number of each one that is acknowledged."""
    for first in range(0, len(batches), at_once):
        futures = []
        for number, batch in enumerate(batches[first : first + at_once], first + 1):
            if store.write_at_once(batch):
                say(str(number))
                continue
            future = store.write(batch)
            future.add_done_callback(lambda _, number=number: say(str(number)))  # type: ignore[misc]
            futures.append(future)
        for future in futures:
            future.result()


def finish(store: LmdbStore) -> None:
    while not store.settle():
        time.sleep(0.001)
    # What compaction has not deleted along with a group goes once nothing else waits.
    while store._writer.durable.deletion_due:
        time.sleep(0.001)
    store.close()


def writing(directory: Path) -> None:
    store = open_store(directory, map_size_bytes=64 << 10, compaction_chunk=1, **OPTIONS)
    write_all(store, schedule(), at_once=5)
    finish(store)


def parting(directory: Path) -> None:
    store = open_store(directory, map_size_bytes=64 << 10, compaction_chunk=1, **OPTIONS)
    for number, (batch, rows) in enumerate(parted(), 1):
        if not store.write_at_once(batch):
            store.write(batch).result()
        say(str(number))
        if rows is not None:
            store.write_later(rows)
    finish(store)


def snapshotting(directory: Path) -> None:
    # A map that has to grow would end the snapshot.
    store = open_store(directory, snapshots_kept=1, map_size_bytes=8 << 20, **OPTIONS)
    batches = schedule()
    write_all(store, batches[:SNAPSHOT_AFTER], at_once=20)
    store.snapshot("first").result()
    say("snapshot")
    write_all(store, batches[SNAPSHOT_AFTER:], at_once=20)
    store.snapshot("second").result()
    say("snapshot")
    store.close()


def installing(directory: Path) -> None:
    """Receives what the test has put beside the directory, installs it, and writes on behind it."""
    store = open_store(directory, **OPTIONS)
    write_all(store, schedule()[:SNAPSHOT_AFTER], at_once=20)
    sent = directory.parent / "sent"
    receiver = store.snapshots.receive(Manifest.from_json((sent / "manifest.json").read_bytes()))
    receiver.write((sent / "data.mdb").read_bytes())
    staged = store.stage(receiver.finish()).result()
    installed = store.install(staged)
    index = staged.manifest.index
    following = store.write(append(index + 1, index + 2, term=99))
    installed.result()
    say("installed")
    following.result()
    say("followed")
    store.close()


if __name__ == "__main__":
    scenario, directory, point, nth, ahead = sys.argv[1:]
    OPTIONS["ahead_bytes"] = int(ahead)
    kill_at(point, int(nth))
    {"writing": writing, "parting": parting, "snapshotting": snapshotting, "installing": installing}[scenario](
        Path(directory)
    )
