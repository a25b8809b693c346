"""What the log of events costs: ``python -m bench.log [--json] [--quick] [--dir DIR] [--only SECTION] [--events N]``.

A machine is fed lifecycles (enqueue, lease and complete of items with 256-byte bodies), and the segment writer writes
its events behind it on a thread of its own, fsyncs included. Shapes differ in how many items an op has; an entry
carries a hundred items or one op, whatever is more. ``share_of_applying`` is the writer's processor time as a share of
what applying and writing cost together. ``segment_cpu_share`` is its share of all that a process spends which also has
the consensus and the store of a node alone: callers in the same process, no network, so with both it is less. The
garbage collector spares what has grown old, as in a node.
"""

import argparse
import asyncio
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import shake_128
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.logsubscribe import measure_subscribe
from resourcelease.consensus import Applied, Consensus, Machines
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Complete, Enqueue, Lease, Op, pack_entry, pack_op, pack_ops
from resourcelease.node.collector import spare_the_old
from resourcelease.storage import LmdbStore
from resourcelease.storage.segments import Log, LogOptions, Owner, SegmentWriter, verify

# Like real ones, half of it repeats from item to item and half does not.
_FIXED = b'{"table": "orders", "columns": ["id", "customer", "total"], "mode": "append", "x": "'.ljust(128, b".")
_ITEMS_AN_ENTRY = 100
_ROUNDS = 3
SECTIONS = ("log", "subscribe", "spark")
_SUBSCRIBE_EVENTS, _SUBSCRIBE_EVENTS_QUICK = 1_000_000, 30_000
_SPARK_EVENTS, _SPARK_EVENTS_QUICK = 10_000_000, 90_000


class Shape(NamedTuple):
    """One way of loading a node."""

    items_an_op: int
    options: LogOptions = LogOptions()


SHAPES = {
    "items_1": Shape(1),
    "items_10": Shape(10),
    "items_100": Shape(100),
    "items_1000": Shape(1000),
    "items_100_zlib": Shape(100, LogOptions(compression="zlib")),
    "items_100_no_bodies": Shape(100, LogOptions(bodies=False)),
}
# The figure under the plain keys: many callers with small calls and workers with batches lie around it.
HEADLINE = "items_10"


def enqueue(call: Call, numbers: Iterator[int], size: int) -> Enqueue:
    """New items, of which no two are alike."""
    drawn = [next(numbers) for _ in range(size)]
    ids = [f"resource-{number:012d}" for number in drawn]
    bodies = [_FIXED + shake_128(number.to_bytes(8, "big")).digest(128) for number in drawn]
    return Enqueue(call, ItemColumns(size, "table", ids, body=bodies).packed())


class Load:
    """Feeds one machine, and the writer behind it; counts what applying costs the thread."""

    def __init__(self, directory: Path, options: LogOptions) -> None:
        self.machine = Machine("bench")
        self.writer = SegmentWriter.resume(directory, self.machine, Owner("bench", "n1"), options)
        self.apply_s = self.append_s = 0.0
        self._numbers = count(1)
        self._index = 0

    def lifecycles(self, items_an_op: int, items: int) -> None:
        """So many items from beginning to end."""
        ops = max(1, _ITEMS_AN_ENTRY // items_an_op)
        for _ in range(items // (ops * items_an_op)):
            self._entry([self._enqueue(items_an_op) for _ in range(ops)])
            granted = self._entry([Lease(self._call(), items_an_op) for _ in range(ops)])
            self._entry([Complete(self._call(), list(one.sequence_ids), 1, list(one.fences)) for one in granted])

    def finish(self) -> None:
        """Waits for the disk, and ends the writer."""
        self.writer.flush().result()
        self.writer.close()

    def _entry(self, ops: list[Op]) -> list[Any]:
        if not self.writer.has_room:
            # A node would take no more work either.
            self.writer.flush().result()
        self._index += 1
        data = pack_entry(self._index, 1_767_603_600_000 + self._index, pack_ops(map(pack_op, ops)))
        began = time.thread_time()
        applied = self.machine.apply(self._index, 1, data)
        handed = time.thread_time()
        self.writer.append(self._index, applied.records, applied.chain, sealed=applied.sealed)
        self.append_s += time.thread_time() - handed
        self.apply_s += handed - began
        return applied.results

    def _call(self) -> Call:
        return Call("jobs", "worker-1", "", f"operation-{next(self._numbers):012d}", 0, None)

    def _enqueue(self, size: int) -> Enqueue:
        return enqueue(self._call(), self._numbers, size)


def measure_one(directory: Path, shape: Shape, items: int) -> dict[str, float]:
    """One run of one shape."""
    load = Load(directory, shape.options)
    began = time.perf_counter()
    load.lifecycles(shape.items_an_op, items)
    load.finish()
    took = time.perf_counter() - began
    stats = load.writer.stats()
    written = stats.cpu_s + load.append_s
    size = sum(path.stat().st_size for path in directory.glob("*.rlseg"))
    return {
        "share_of_applying": written / (written + load.apply_s),
        "writer_us_per_event": written * 1e6 / stats.events,
        "apply_us_per_event": load.apply_s * 1e6 / stats.events,
        "bytes_per_event": size / stats.events,
        "events_per_s": stats.events / took,
    }


async def measure_node(directory: Path, items: int) -> dict[str, float]:
    """A node alone with its disk, ten items an op and some callers at once."""
    machine_of = Machines(lambda: Machine("bench"), Machine.load_rows)
    store = LmdbStore(directory, cluster_id="bench", node_id="n1")
    writer: SegmentWriter
    append_s = 0.0

    def on_applied(entries: Sequence[Applied]) -> None:
        nonlocal append_s
        began = time.thread_time()
        for entry in entries:
            outcome: Any = entry.outcome
            writer.append(entry.index, outcome.records, outcome.chain, sealed=outcome.sealed)
        append_s += time.thread_time() - began

    consensus = Consensus(
        store=store,
        machines=machine_of,
        listen="127.0.0.1:0",
        bootstrap={"n1": "127.0.0.1:1"},
        on_applied=on_applied,
        founding=True,
    )
    machine: Any = consensus.machine
    writer = SegmentWriter.resume(directory / "segments", machine, Owner("bench", "n1"))
    consensus.follow(writer)
    made = count(1)
    per_op, callers = 10, 32

    def call() -> Call:
        return Call("jobs", "worker-1", "", f"operation-{next(made):012d}", 0, None)

    async def work(rounds: int) -> None:
        for _ in range(rounds):
            await consensus.propose([pack_op(enqueue(call(), made, per_op))], 30.0)
            granted = (await consensus.propose([pack_op(Lease(call(), per_op))], 30.0))[0]
            ack = Complete(call(), list(granted.sequence_ids), 1, list(granted.fences))
            await consensus.propose([pack_op(ack)], 30.0)

    async with consensus:
        await consensus.barrier(10.0)
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.gather(*[work(items // per_op // callers) for _ in range(callers)])
        writer.flush().result()
        took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    writer.close()
    store.close()
    stats = writer.stats()
    return {
        "segment_cpu_share": (stats.cpu_s + append_s) / cpu_s,
        "cpu_us_per_event": cpu_s * 1e6 / stats.events,
        "events_per_s": stats.events / took,
    }


def measure_reading(directory: Path) -> dict[str, float]:
    """Verifying, and decoding all records, of what one run left."""
    began = time.perf_counter()
    report = verify(directory)
    verified = time.perf_counter() - began
    assert report.ok, report.problems
    began = time.perf_counter()
    events = sum(record.count for record in Log(directory).records())
    decoded = time.perf_counter() - began
    return {
        "verify_mb_per_s": report.read_bytes / 1e6 / verified,
        "verify_events_per_s": events / verified,
        "decode_events_per_s": events / decoded,
    }


def measure(root: Path, *, quick: bool) -> dict[str, Any]:
    """All figures; the median of rounds in which every shape has its turn."""
    rounds, items = (1, 5_000) if quick else (_ROUNDS, 100_000)
    spare_the_old()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SHAPES}
    nodes: list[dict[str, float]] = []
    for _ in range(rounds):
        for name, shape in SHAPES.items():
            directory = root / name
            shutil.rmtree(directory, ignore_errors=True)
            runs[name].append(measure_one(directory, shape, items if shape.items_an_op > 1 else items // 4))
        nodes.append(asyncio.run(measure_node(root / "node", items // 2)))
        shutil.rmtree(root / "node")
    shapes = {
        name: {key: round(median(run[key] for run in found), 4) for key in found[0]} for name, found in runs.items()
    }
    reading = {name: {key: round(value) for key, value in measure_reading(root / name).items()} for name in SHAPES}
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "segment_cpu_share": round(median(node["segment_cpu_share"] for node in nodes), 4),
        "node": {key: round(median(node[key] for node in nodes), 4) for key in nodes[0]},
        "bytes_per_event": shapes[HEADLINE]["bytes_per_event"],
        "shapes": {name: shapes[name] | reading[name] for name in SHAPES},
    }


def measure_in_spark(root: Path, *, quick: bool, events: int) -> dict[str, Any]:
    """Writes a log of so many events (0: the default), and reads it in Spark; without Spark, why there is no figure."""
    from resourcelease.spark import JavaMissing, SparkMissing

    spare_the_old()
    load = Load(root / "spark", LogOptions())
    items = (events or (_SPARK_EVENTS_QUICK if quick else _SPARK_EVENTS)) // 3
    load.lifecycles(SHAPES[HEADLINE].items_an_op, items)
    load.finish()
    try:
        from bench.logspark import measure_spark

        return measure_spark(root / "spark", load.writer.stats().events, rounds=1 if quick else _ROUNDS)
    except (ImportError, JavaMissing, SparkMissing) as error:
        return {"spark_skipped": str(error)}


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    yield f"event log, Python {report['python']} on {report['machine']}"
    if "shapes" in report:
        yield from _lines_of_log(report)
    if "subscribe_events_per_s" in report:
        yield (
            f"Subscribe, {report['subscribe_events']:,} events from the first on, one node, one subscriber: "
            f"{report['subscribe_events_per_s']:,} events/s"
        )
    if "spark_skipped" in report:
        yield f"Spark: {report['spark_skipped']}"
    elif "spark_rows_per_s" in report:
        yield (
            f"Spark, {report['spark_events']:,} events: {report['spark_rows_per_s']:,} rows/s, Parquet "
            f"{report['parquet_rows_per_s']:,} rows/s, so {report['spark_to_parquet']:.2f} of it; a filter on 1 % "
            f"takes {report['filtered_spark_s']:.2f} s, Parquet {report['filtered_parquet_s']:.2f} s, "
            f"{report['filtered_ratio']:.2f} times as long"
        )


def _lines_of_log(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'shape':>20} {'share':>7} {'write us':>9} {'apply us':>9} {'bytes':>7} {'verify/s':>10} {'decode/s':>10}"
    for name, figures in report["shapes"].items():
        yield (
            f"{name:>20} {figures['share_of_applying']:>7.1%} {figures['writer_us_per_event']:>9.3f} "
            f"{figures['apply_us_per_event']:>9.3f} {figures['bytes_per_event']:>7.1f} "
            f"{figures['verify_events_per_s']:>10,} {figures['decode_events_per_s']:>10,}"
        )
    yield "share of the writer in what applying and writing cost together; figures an event, three to a lifecycle"
    node = report["node"]
    yield (
        f"a node alone: {node['segment_cpu_share']:.1%} of its {node['cpu_us_per_event']:.1f} us an event, "
        f"{node['events_per_s']:,.0f} events/s"
    )


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.log", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="few items, one round: to see that it runs")
    parser.add_argument("--dir", type=Path, help="where the log is written; a place on the disk to be measured")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; repeatable; all by default")
    parser.add_argument("--events", type=int, default=0, help="how many events Spark reads")
    options = parser.parse_args(arguments)
    sections = options.only or SECTIONS
    report: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        if "log" in sections:
            report |= measure(Path(scratch), quick=options.quick)
        if "subscribe" in sections:
            made = _SUBSCRIBE_EVENTS_QUICK if options.quick else _SUBSCRIBE_EVENTS
            rounds = 1 if options.quick else _ROUNDS
            report |= measure_subscribe(Path(scratch) / "subscribe", events=made, rounds=rounds)
        if "spark" in sections:
            report |= measure_in_spark(Path(scratch), quick=options.quick, events=options.events)
    write(json.dumps(report) if options.json else "\n".join(lines(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
