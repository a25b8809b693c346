"""How much an item costs in the state machine alone: no disk, no network, no consensus.

    python -m bench.machine [--json] [--quick]

A lifecycle is enqueue, lease and complete of one item with a 256-byte body, from packed entries to encoded events, the
chain digest included. The baseline is the least a Python queue could do in the same run: a dict, a deque and a dict of
owners, fed plain tuples. Ratios of one run mean something on a noisy machine; microseconds only roughly.
"""

import argparse
import gc
import json
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Complete, Enqueue, Lease, Op, pack_entry, pack_op, pack_ops
from resourcelease.node.collector import spare_the_old

BODY = bytes(256)
STEPS = ("enqueue", "lease", "complete")


def _ids(first: int, size: int) -> list[str]:
    return [f"resource-{number:012d}" for number in range(first, first + size)]


class Driver:
    """One machine fed with entries of one op each; times what the machine does, not what packs the entries."""

    def __init__(self) -> None:
        self.machine = Machine("bench")
        self.index = 0
        self.made = 0
        self.spent = dict.fromkeys(STEPS, 0.0)

    def run(self, step: str, op: Op) -> Any:
        """Applies an entry of one op."""
        self.index += 1
        data = pack_entry(self.index, 1_700_000_000_000 + self.index, pack_ops([pack_op(op)]))
        started = perf_counter()
        applied = self.machine.apply(self.index, 1, data)
        answer: Any = applied.results[0]
        if step == "lease":
            # A caller gets the content of its items, so reading that is part of the price.
            list(answer.rows)
        self.spent[step] += perf_counter() - started
        return answer

    def call(self) -> Call:
        """The caller, under an operation id of its own."""
        return Call("jobs", "worker-1", "", f"operation-{self.index}")

    def enqueue(self, size: int) -> None:
        """New items."""
        ids = _ids(self.made, size)
        self.made += size
        body = [BODY[:-8] + number.to_bytes(8, "big") for number in range(size)]
        self.run("enqueue", Enqueue(self.call(), ItemColumns(size, "table", ids, body=body).packed()))

    def lease(self, size: int) -> Any:
        """The next items."""
        return self.run("lease", Lease(self.call(), size))

    def complete(self, granted: Any) -> None:
        """All of a grant."""
        acked = self.run("complete", Complete(self.call(), list(granted.sequence_ids), 1, list(granted.fences)))
        assert not acked.refused, acked

    def lifecycles(self, size: int, items: int) -> dict[str, float]:
        """Microseconds an item and step, over so many items."""
        self.spent = dict.fromkeys(STEPS, 0.0)
        for _ in range(items // size):
            self.enqueue(size)
            granted = self.lease(size)
            assert len(granted.sequence_ids) == size
            self.complete(granted)
        return {step: spent * 1e6 / items for step, spent in self.spent.items()}


def baseline(size: int, items: int) -> float:
    """Microseconds a lifecycle of the bare loop."""
    waiting: deque[int] = deque()
    stored: dict[int, tuple[str, bytes]] = {}
    held: dict[int, str] = {}
    number = 0
    spent = 0.0
    for _ in range(items // size):
        ids = _ids(number, size)
        bodies = [BODY[:-8] + place.to_bytes(8, "big") for place in range(size)]
        started = perf_counter()
        for resource_id, body in zip(ids, bodies, strict=True):
            number += 1
            stored[number] = (resource_id, body)
            waiting.append(number)
        for _ in range(size):
            held[waiting.popleft()] = "worker-1"
        for sequence_id in list(held):
            if held[sequence_id] == "worker-1":
                del held[sequence_id], stored[sequence_id]
        spent += perf_counter() - started
    return spent * 1e6 / items


def with_waiting(waiting: int, size: int, items: int) -> float:
    """Microseconds a lifecycle with so many items waiting already."""
    driver = Driver()
    for _ in range(waiting // 1000):
        driver.enqueue(1000)
    driver.machine.take_changes()
    driver.lifecycles(size, 20 * size)
    return sum(driver.lifecycles(size, items).values())


def resident_bytes() -> int:
    """The memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def bytes_per_item(waiting: int) -> float:
    """Memory of a waiting item beyond its body, as the process grows by it."""
    driver = Driver()
    driver.enqueue(1000)
    gc.collect()
    before = resident_bytes()
    for _ in range(waiting // 1000):
        driver.enqueue(1000)
    gc.collect()
    return (resident_bytes() - before) / waiting - len(BODY)


def measure(*, quick: bool) -> dict[str, Any]:
    """All figures; quick is for trying the benchmark out."""
    rounds, items, deep = (1, 4_000, 50_000) if quick else (5, 100_000, 1_000_000)
    report: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    spare_the_old()  # as a node does
    # Memory first, in a process that has not grown yet.
    report["bytes_per_item"] = round(bytes_per_item(deep))
    sizes = (1, 10, 100, 1000)
    steps: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    bare: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            bare[size].append(baseline(size, items))
            steps[size].append(Driver().lifecycles(size, items // 4 if size == 1 else items))
    report["step_us"] = {
        str(size): {step: round(median(run[step] for run in steps[size]), 3) for step in STEPS} for size in sizes
    }
    report["lifecycle_us"] = {str(size): round(median(sum(run.values()) for run in steps[size]), 3) for size in sizes}
    report["baseline_us"] = {str(size): round(median(bare[size]), 3) for size in sizes}
    report["ratio_to_baseline"] = {
        str(size): round(report["lifecycle_us"][str(size)] / report["baseline_us"][str(size)], 2) for size in sizes
    }
    depths = (1_000, deep // 10, deep)
    waiting: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(rounds):
        for depth in depths:
            waiting[depth].append(with_waiting(depth, 100, items))
            gc.collect()
    report["waiting_us"] = {str(depth): round(median(waiting[depth]), 3) for depth in depths}
    growth = [deepest / shallow for deepest, shallow in zip(waiting[deep], waiting[1_000], strict=True)]
    report["growth_1k_to_1m"] = round(median(growth), 3)
    return report


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    yield f"state machine alone, Python {report['python']} on {report['machine']}"
    columns = " ".join(f"{step:>9}" for step in STEPS)
    yield f"{'items an op':>12} {columns} {'lifecycle':>10} {'bare loop':>10} {'ratio':>6}"
    for size, steps in report["step_us"].items():
        columns = " ".join(f"{steps[step]:>9.2f}" for step in STEPS)
        whole, bare = report["lifecycle_us"][size], report["baseline_us"][size]
        yield f"{size:>12} {columns} {whole:>10.2f} {bare:>10.2f} {report['ratio_to_baseline'][size]:>6.1f}"
    yield "microseconds an item; 256-byte bodies"
    for depth, spent in report["waiting_us"].items():
        yield f"with {int(depth):>9,} waiting: {spent:.2f} us a lifecycle, 100 items an op"
    yield f"growth to the deepest: {report['growth_1k_to_1m']:.3f}"
    yield f"memory beyond the body: {report['bytes_per_item']} bytes a waiting item"


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.machine", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="few items, one round: to see that it runs")
    options = parser.parse_args(arguments)
    report = measure(quick=options.quick)
    write(json.dumps(report) if options.json else "\n".join(lines(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
