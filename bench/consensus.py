"""What replication costs, on three real processes on loopback: ``python -m bench.consensus [--json]``.

Ours is LMDB with an fsync before every answer; the library as it ships does not sync, and is measured in the same run,
in turns with ours. The load comes from within the leader's process; an operation is 100 bytes.

speed     a lone proposal, from the leader and from a follower; operations a second at 1, 10 and 100 a proposal, with
          a machine that only counts, which is what the library's twin has, and (``machine``) with the real one: as
          one op on so many items, and ``apart``, as so many ops
failover  the leader is killed with -9 under load; a survivor's callers wait for their next success
restart   a lone node with a million waiting items, from opening its store to its first answer
snapshot  a proposal every 20 ms while the leader takes a snapshot of a million items, against the same without one
idle      elections in so many idle minutes; only when asked for, ``--busy`` with a process spinning on every core
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.consensus_items import prepare
from bench.processes import Process, die_with_parent, free_ports

__all__ = ["main"]

SECTIONS = ("speed", "failover", "restart", "snapshot", "idle")
OPS_AN_ENTRY = (1, 10, 100)
KINDS = ("ours", "bare", "stock")
IN_FLIGHT = (32, 256)


class Cluster:
    """Three processes, killed at the end of a ``with``."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.home = home
        self.members = {f"n{place}": f"127.0.0.1:{port}" for place, port in enumerate(free_ports(3), 1)}
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> "Cluster":
        try:
            for name in self.members:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """One node."""
        directory = self.home / name
        directory.mkdir(parents=True, exist_ok=True)
        arguments = [self.kind, name, str(directory), json.dumps(self.members)]
        self.processes[name] = Process(["-m", "bench.consensus_node"], arguments)

    def kill(self, name: str) -> None:
        """Kill -9."""
        self.processes.pop(name).kill()

    def stop(self) -> None:
        """All."""
        for name in list(self.processes):
            self.kill(name)

    def leader(self) -> Process:
        """Once all that run agree."""
        while True:
            leaders = {process.ask("status")["leader"] for process in self.processes.values()}
            if len(leaders) == 1 and (name := leaders.pop()) in self.processes:
                return self.processes[name]
            time.sleep(0.05)

    def follower(self) -> Process:
        """One that does not lead."""
        leader = self.leader()
        return next(process for process in self.processes.values() if process is not leader)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 2)


def speed(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Latency and throughput, the three kinds in turns."""
    lone: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "follower")}
    ops: dict[str, dict[str, list[float]]] = {kind: {str(n): [] for n in OPS_AN_ENTRY} for kind in KINDS}
    entries: dict[str, list[float]] = {str(n): [] for n in OPS_AN_ENTRY}
    apart = []
    elections = 0
    seconds = arguments.seconds
    for turn in range(arguments.rounds):
        for kind in KINDS:
            with Cluster(kind, home / f"{kind}-{turn}") as cluster:
                leader = cluster.leader()
                leader.ask("lone", seconds=0.3)
                term = leader.ask("status").get("term", 0)
                lone[kind] += leader.ask("lone", seconds=seconds)
                if kind == "ours":
                    lone["follower"] += cluster.follower().ask("lone", seconds=seconds)
                for size in OPS_AN_ENTRY:
                    tries = [leader.ask("load", ops=size, in_flight=n, seconds=seconds) for n in IN_FLIGHT]
                    best = max(tries)
                    ops[kind][str(size)].append(best[0])
                    if kind == "bare":
                        entries[str(size)].append(best[1])
                if kind == "ours":
                    apart.append(leader.ask("load", ops=OPS_AN_ENTRY[-1], in_flight=32, seconds=seconds, apart=True)[0])
                    elections += leader.ask("status")["term"] - term
    rates = {kind: {size: round(statistics.median(runs)) for size, runs in ops[kind].items()} for kind in KINDS}
    return {
        "lone_p50_ms": _ms(_quantile(lone["ours"], 0.5)),
        "lone_p99_ms": _ms(_quantile(lone["ours"], 0.99)),
        "lone_follower_p50_ms": _ms(_quantile(lone["follower"], 0.5)),
        "lone_follower_p99_ms": _ms(_quantile(lone["follower"], 0.99)),
        "stock_lone_p50_ms": _ms(_quantile(lone["stock"], 0.5)),
        "stock_lone_p99_ms": _ms(_quantile(lone["stock"], 0.99)),
        "ops_per_s": rates["bare"],
        "machine_apart_ops_per_s": {str(OPS_AN_ENTRY[-1]): round(statistics.median(apart))},
        "machine_ops_per_s": rates["ours"],
        "stock_ops_per_s": rates["stock"],
        # Log entries: each holds the proposals of one turn of the leader's loop.
        "entries_per_s": {size: round(statistics.median(runs)) for size, runs in entries.items()},
        "elections_under_load": elections,
        "ratio_to_stock_best": round(rates["bare"]["100"] / max(rates["stock"].values()), 2),
        "machine_ratio_to_stock_best": round(rates["ours"]["100"] / max(rates["stock"].values()), 2),
    }


def failover(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """From the kill of the leader to the next answer."""
    took = []
    with Cluster("ours", home / "failover") as cluster:
        for _ in range(arguments.failovers):
            leader = cluster.leader()
            name = next(name for name, process in cluster.processes.items() if process is leader)
            survivor = cluster.follower()
            survivor.ask("hammer")
            time.sleep(0.3)
            killed_at = time.monotonic()
            cluster.kill(name)
            # What was under way when the leader died may still be answered within this.
            while (end := survivor.ask("first_after", moment=killed_at + 0.005)) is None:
                time.sleep(0.02)
            took.append(end - killed_at)
            survivor.ask("rest")
            cluster.start(name)
            time.sleep(0.3)
    return {
        "failovers": len(took),
        "failover_p50_ms": _ms(_quantile(took, 0.5)),
        "failover_p99_ms": _ms(_quantile(took, 0.99)),
        "failover_max_ms": _ms(max(took)),
    }


def restart(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """A lone node with many items; the best and the median of a few starts, since the first one reads a cold file."""
    directory = home / "restart"
    prepare([(directory, "n1")], arguments.items)
    starts = []
    for _ in range(3):
        members = json.dumps({"n1": f"127.0.0.1:{free_ports(1)[0]}"})
        process = Process(["-m", "bench.consensus_node"], ["restart", "n1", str(directory), members])
        try:
            starts.append(process.answer())
        finally:
            process.kill()
    return {
        "restart_items": arguments.items,
        "restart_1m_s": round(statistics.median(start["ready_s"] for start in starts), 2),
        "restart_loaded_s": round(statistics.median(start["loaded_s"] for start in starts), 2),
    }


def snapshot(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a hot copy adds to the delay of proposals that come at a steady rate."""
    root = home / "snapshot"
    prepare([(root / name, name) for name in ("n1", "n2", "n3")], arguments.items)
    with Cluster("ours", root) as cluster:
        leader = cluster.leader()
        leader.ask("steady", seconds=1.0)
        calm: list[float] = []
        during: list[float] = []
        seconds = []
        for _ in range(arguments.rounds):
            calm += leader.ask("steady", seconds=max(2.0, arguments.seconds))
            copied = leader.ask("snapshot", seconds=1.0)
            during += copied["took"]
            seconds.append(copied["seconds"])
    return {
        "snapshot_items": arguments.items,
        "snapshot_s": round(statistics.median(seconds), 2),
        "snapshot_calm_p50_ms": _ms(_quantile(calm, 0.5)),
        "snapshot_calm_p99_ms": _ms(_quantile(calm, 0.99)),
        "snapshot_calm_max_ms": _ms(max(calm)),
        "snapshot_p99_ms": _ms(_quantile(during, 0.99)),
        "snapshot_max_ms": _ms(max(during)),
        "snapshot_delay_ms": _ms(max(during) - _quantile(calm, 0.99)),
    }


def idle(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Elections while nothing happens."""
    with Cluster("ours", home / "idle") as cluster:
        cluster.leader()
        time.sleep(1.0)
        before = cluster.leader().ask("status")
        with _busy(os.cpu_count() or 1 if arguments.busy else 0):
            time.sleep(arguments.idle_minutes * 60.0)
        after = cluster.leader().ask("status")
    return {
        "idle_minutes": arguments.idle_minutes,
        "idle_busy": arguments.busy,
        "elections_in_idle_minutes": after["term"] - before["term"],
    }


@contextlib.contextmanager
def _busy(spinning: int) -> Iterator[None]:
    workers = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(spinning)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _spin() -> None:
    die_with_parent()
    while True:
        pass


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the sections that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.consensus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS[:-1], metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter of everything")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often each kind has its turn")
    parser.add_argument("--failovers", type=int, default=50)
    parser.add_argument("--items", type=int, default=1_000_000, help="waiting items for restart and snapshot")
    parser.add_argument("--idle-minutes", type=float, default=10.0)
    parser.add_argument("--busy", action="store_true", help="idle: keep every core busy meanwhile")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.seconds, arguments.rounds, arguments.failovers, arguments.items = 0.5, 1, 5, 100_000
    die_with_parent()
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory(prefix="bench-consensus-") as home:
        for section in SECTIONS:
            if section in arguments.only:
                figures |= globals()[section](Path(home), arguments)
    figures["load_after"] = round(os.getloadavg()[0], 2)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:<26} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
