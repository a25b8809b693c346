"""``python -m bench.consensus --json``: what replication costs, on three real processes on loopback.

Ours with LMDB and an fsync before every answer, and the library as it ships, which does not sync, in the same run. The
load comes from within the leader's process; ops are 100 bytes. Failover: the leader is killed with -9 under load,
and a survivor's callers wait for their next success.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgpack

OP = bytes(100)
OPS_AN_ENTRY = (1, 10, 100)


class Tally:
    """The cheapest machine: counts ops."""

    def __init__(self) -> None:
        self.clock_ms = 0
        self.applied_index = 0
        self.count = 0
        self.records: list[Any] = []
        self.results: list[int] = []

    def apply(self, index: int, term: int, data: bytes) -> Self:
        """One entry; the results are numbers."""
        _, self.clock_ms, _, ops = msgpack.unpackb(data)
        self.applied_index = index
        self.results = list(range(self.count, self.count + len(ops)))
        self.count += len(ops)
        return self

    def next_due_ms(self) -> int | None:
        """Nothing falls due."""
        return None

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """One row."""
        return [(b"tally", msgpack.packb([self.clock_ms, self.applied_index, self.count]))], []

    def dump_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The same."""
        yield from self.take_changes()[0]

    @classmethod
    def load_rows(cls, rows: Iterable[tuple[bytes, bytes]]) -> Self:
        """Back."""
        tally = cls()
        for _, value in rows:
            tally.clock_ms, tally.applied_index, tally.count = msgpack.unpackb(value)
        return tally

    def digest(self) -> bytes:
        """The count."""
        return self.count.to_bytes(8, "big")


# One node, in a process of its own, told what to do by lines of JSON.


async def run_node(name: str, directory: str, members: dict[str, str]) -> None:
    """A node of ours."""
    from resourcelease.consensus import Consensus, Machines
    from resourcelease.storage import LmdbStore

    store = LmdbStore(Path(directory), cluster_id="bench", node_id=name)
    node = Consensus(store=store, machines=Machines(Tally, Tally.load_rows), listen=members[name], bootstrap=members)
    await node.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ends: list[float] = []
    background: asyncio.Task[None] | None = None
    while line := await reader.readline():
        order = json.loads(line)
        answer: Any = None
        if order["do"] == "status":
            answer = {"leader": node.leader, "term": node.status().term, "applied": node.status().applied_index}
        elif order["do"] == "lone":
            answer = await _lone(node, order["seconds"])
        elif order["do"] == "load":
            answer = await _load(node, order["ops"], order["in_flight"], order["seconds"])
        elif order["do"] == "hammer":
            ends.clear()
            background = asyncio.create_task(_hammer(node, ends))
        elif order["do"] == "ends":
            answer = list(ends)
        elif order["do"] == "rest" and background is not None:
            background.cancel()
        print(json.dumps(answer), flush=True)
    os._exit(0)


async def _lone(node: Any, seconds: float) -> list[float]:
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        await node.propose([OP], 5.0)
        took.append(time.perf_counter() - began)
    return took


async def _load(node: Any, ops: int, in_flight: int, seconds: float) -> float:
    batch = [OP] * ops
    end = time.monotonic() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.monotonic() < end:
            await node.propose(batch, 10.0)
            done += ops

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return done / (time.monotonic() - began)


async def _hammer(node: Any, ends: list[float]) -> None:
    async def caller() -> None:
        while True:
            try:
                await node.propose([OP], 5.0)
                ends.append(time.monotonic())
            except Exception:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(caller() for _ in range(8)))


def run_stock(name: str, directory: str, members: dict[str, str]) -> None:
    """A node of the library as it ships: defaults, file journal, its own thread."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Counter(SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            conf = SyncObjConf(journalFile=f"{directory}/journal", fullDumpFile=f"{directory}/dump")
            super().__init__(members[name], [other for key, other in members.items() if key != name], conf)
            self.count = 0

        @replicated  # type: ignore[untyped-decorator]
        def take(self, ops: list[bytes]) -> int:
            self.count += len(ops)
            return self.count

    counter = Counter()
    for line in sys.stdin:
        order = json.loads(line)
        answer: Any = None
        if order["do"] == "status":
            leader = counter._getLeader()
            answer = {"leader": next((key for key, at in members.items() if leader and at == leader.id), None)}
        elif order["do"] == "lone":
            answer = _stock_lone(counter, order["seconds"])
        elif order["do"] == "load":
            answer = _stock_load(counter, order["ops"], order["in_flight"], order["seconds"])
        print(json.dumps(answer), flush=True)
    os._exit(0)


def _stock_lone(counter: Any, seconds: float) -> list[float]:
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        counter.take([OP], sync=True, timeout=5.0)
        took.append(time.perf_counter() - began)
    return took


def _stock_load(counter: Any, ops: int, in_flight: int, seconds: float) -> float:
    room = threading.Semaphore(in_flight)
    done = 0

    def called(_: Any, error: int) -> None:
        nonlocal done
        done += ops if error == 0 else 0
        room.release()

    batch = [OP] * ops
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        room.acquire()
        counter.take(batch, callback=called)
    for _ in range(in_flight):
        room.acquire(timeout=5.0)
    return done / (time.monotonic() - began)


# The run.


class Process:
    """A node's process, and a line to it."""

    def __init__(self, kind: str, name: str, directory: Path, members: dict[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._pipe = subprocess.Popen(
            [sys.executable, "-m", "bench.consensus", "--node", kind, name, str(directory), json.dumps(members)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, do: str, **order: Any) -> Any:
        """Does it there, and waits."""
        assert self._pipe.stdin is not None
        assert self._pipe.stdout is not None
        self._pipe.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self._pipe.stdin.flush()
        return json.loads(self._pipe.stdout.readline())

    def kill(self) -> None:
        """Kill -9."""
        self._pipe.send_signal(signal.SIGKILL)
        self._pipe.wait()


class Cluster:
    """Three processes."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.home = home / kind
        self.members = {f"n{number}": f"127.0.0.1:{_free_port()}" for number in (1, 2, 3)}
        self.processes: dict[str, Process] = {}
        for name in self.members:
            self.start(name)

    def start(self, name: str) -> None:
        """One node."""
        self.processes[name] = Process(self.kind, name, self.home / name, self.members)

    def leader(self) -> Process:
        """Once all that run agree."""
        while True:
            leaders = {process.ask("status")["leader"] for process in self.processes.values()}
            if len(leaders) == 1 and (name := leaders.pop()) in self.processes:
                return self.processes[name]
            time.sleep(0.05)

    def stop(self) -> None:
        """All."""
        for process in self.processes.values():
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _measure(cluster: Cluster, seconds: float) -> tuple[list[float], dict[str, float]]:
    leader = cluster.leader()
    leader.ask("lone", seconds=0.5)
    lone = leader.ask("lone", seconds=seconds)
    rates = {}
    for ops in OPS_AN_ENTRY:
        rates[str(ops)] = max(
            leader.ask("load", ops=ops, in_flight=in_flight, seconds=seconds) for in_flight in (32, 256)
        )
    return lone, rates


def _fail_over(cluster: Cluster, times: int) -> list[float]:
    took = []
    for _ in range(times):
        leader = cluster.leader()
        survivor = next(process for process in cluster.processes.values() if process is not leader)
        survivor.ask("hammer")
        time.sleep(0.3)
        killed_at = time.monotonic()
        leader.kill()
        del cluster.processes[leader.name]
        # What was under way when the leader died may still be answered within this.
        grace = killed_at + 0.005
        while not (after := [end for end in survivor.ask("ends") if end > grace]):
            time.sleep(0.05)
        took.append(min(after) - killed_at)
        survivor.ask("rest")
        cluster.start(leader.name)
        time.sleep(0.5)
    return took


def restart_with_items(home: Path, items: int) -> float:
    """Seconds from opening the directory of a lone node with so many waiting items to its first answer."""
    from resourcelease.consensus import Consensus, Machines
    from resourcelease.machine import Machine
    from resourcelease.model.items import ItemColumns
    from resourcelease.model.ops import Call, Configure, Enqueue, pack_entry, pack_op, pack_ops
    from resourcelease.storage import JournalEntry, LmdbStore, WriteBatch

    machine = Machine("bench")
    options = pack_op(Configure(Call("jobs"), {"capacity": items * 2}))
    machine.apply(2, 1, pack_entry(0, 0, pack_ops([options])))
    step = 1000
    for number in range(items // step):
        names = [f"item-{number}-{place}" for place in range(step)]
        op = pack_op(Enqueue(Call("jobs"), ItemColumns(step, "table", names).packed()))
        machine.apply(3 + number, 1, pack_entry(0, 0, pack_ops([op])))
    puts, deletes = machine.take_changes()
    last = machine.applied_index
    directory = home / "restart"
    store = LmdbStore(directory, cluster_id="bench", node_id="n1")
    noop = b"\x01"
    store.write(
        WriteBatch(appends=[JournalEntry(index, 1, noop) for index in range(1, last + 1)], vote=(1, "n1"))
    ).result()
    store.write(
        WriteBatch(row_puts=puts, row_deletes=deletes, rows_index=last, rows_term=1, compact_through=last - 2)
    ).result()
    store.close()
    del machine, puts

    async def restart() -> float:
        began = time.perf_counter()
        store = LmdbStore(directory, cluster_id="bench", node_id="n1")
        machines = Machines(lambda: Machine("bench"), Machine.load_rows)
        address = f"127.0.0.1:{_free_port()}"
        async with Consensus(store=store, machines=machines, listen=address, bootstrap={"n1": address}) as node:
            await node.propose([], 30.0)
            took = time.perf_counter() - began
        store.close()
        return took

    return asyncio.run(restart())


def main(argv: list[str] | None = None) -> int:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.consensus", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--failovers", type=int, default=50)
    parser.add_argument("--items", type=int, default=1_000_000, help="waiting items at the restart; 0: leave it out")
    parser.add_argument("--node", nargs=4, metavar=("KIND", "NAME", "DIR", "MEMBERS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.node:
        kind, name, directory, members = arguments.node
        if kind == "ours":
            asyncio.run(run_node(name, directory, json.loads(members)))
        else:
            run_stock(name, directory, json.loads(members))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-consensus-") as home:
        figures = _run(Path(home), arguments)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:<18} {value}")
    return 0


def _run(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    ours = Cluster("ours", home)
    lone, rates = _measure(ours, arguments.seconds)
    failovers = _fail_over(ours, arguments.failovers)
    ours.stop()
    stock = Cluster("stock", home)
    stock_lone, stock_rates = _measure(stock, arguments.seconds)
    stock.stop()
    figures: dict[str, Any] = {
        "lone_p50_ms": _ms(_quantile(lone, 0.5)),
        "lone_p99_ms": _ms(_quantile(lone, 0.99)),
        "stock_lone_p50_ms": _ms(_quantile(stock_lone, 0.5)),
        "ops_per_s": {key: round(value) for key, value in rates.items()},
        "stock_ops_per_s": {key: round(value) for key, value in stock_rates.items()},
    }
    if failovers:
        figures["failover_p50_ms"] = _ms(statistics.median(failovers))
        figures["failover_p99_ms"] = _ms(_quantile(failovers, 0.99))
    if arguments.items:
        figures["restart_1m_s"] = round(restart_with_items(home, arguments.items), 2)
    return figures


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 2)


if __name__ == "__main__":
    sys.exit(main())
