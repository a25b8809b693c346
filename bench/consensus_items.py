"""Stores as a node leaves them that has a million items waiting."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.processes import die_with_parent
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Configure, Enqueue, pack_entry, pack_op, pack_ops
from resourcelease.storage import JournalEntry, LmdbStore, WriteBatch

__all__ = ["prepare"]

_STEP = 1000
_ROWS_A_BATCH = 50_000
_NOOP = b"\x01"
_BODY = bytes(64)


def prepare(directories: Sequence[tuple[Path, str]], items: int) -> None:
    """Founds a store in each directory, for the node named, all with the same items; in a process of its own.

    The memory that it takes must not weigh on what is measured afterwards.
    """
    wanted = json.dumps([[str(directory), name] for directory, name in directories])
    subprocess.run([sys.executable, "-m", "bench.consensus_items", wanted, str(items)], check=True)


def _fill(items: int) -> Machine:
    machine = Machine("bench")
    options = pack_op(Configure(Call("jobs"), {"capacity": items * 20}))
    machine.apply(2, 1, pack_entry(0, 0, pack_ops([options])))
    for number in range(items // _STEP):
        names = [f"item-{number}-{place}" for place in range(_STEP)]
        op = pack_op(Enqueue(Call("jobs"), ItemColumns(_STEP, "table", names, body=[_BODY] * _STEP).packed()))
        machine.apply(3 + number, 1, pack_entry(0, 0, pack_ops([op])))
    return machine


def _found(directory: Path, name: str, rows: list[tuple[bytes, bytes]], last: int) -> None:
    store = LmdbStore(directory, cluster_id="bench", node_id=name)
    store.write(WriteBatch(appends=[JournalEntry(index, 1, _NOOP) for index in range(1, last + 1)], vote=(1, "")))
    for start in range(0, len(rows), _ROWS_A_BATCH):
        store.write(WriteBatch(row_puts=rows[start : start + _ROWS_A_BATCH]))
    store.write(WriteBatch(rows_index=last, rows_term=1, compact_through=last - 2)).result()
    store.close()


def main(wanted: str, items: str) -> None:
    """In the process of its own."""
    die_with_parent()
    machine = _fill(int(items))
    puts, _ = machine.take_changes()
    for directory, name in json.loads(wanted):
        _found(Path(directory), name, puts, machine.applied_index)


if __name__ == "__main__":
    main(*sys.argv[1:])
