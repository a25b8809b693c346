"""One node in a process of its own, for ``bench.consensus``: ``python -m bench.consensus_node KIND NAME DIR MEMBERS``.

Kinds: ``ours`` with the real machine, ``bare`` with one that only counts, as ``stock``, the library as it ships, does.
An operation is 100 bytes; for the real machine it is the enqueue of an item.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from bench.processes import die_with_parent
from resourcelease.consensus import Consensus, Machines
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Configure, Drain, Enqueue, pack_op
from resourcelease.node.collector import spare_the_old
from resourcelease.node.run import loop_factory
from resourcelease.storage import LmdbStore

__all__ = ["CAPACITY", "enqueue", "machines"]

CAPACITY = 20_000_000
_OP_BYTES = 100
_DRAIN_ITEMS = 5_000


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


def machines(kind: str) -> Machines:
    """Where a node of this kind has its machine from."""
    if kind == "bare":
        return Machines(Tally, Tally.load_rows)
    return Machines(lambda: Machine("bench"), Machine.load_rows)


def enqueue(count: int) -> bytes:
    """One op that enqueues so many items, about 100 bytes each."""
    names = [f"resource-{number:012}" for number in range(count)]
    return pack_op(
        Enqueue(Call("jobs"), ItemColumns(count, "table", names, body=[bytes(_OP_BYTES - 24)] * count).packed())
    )


class Node:
    """What can be asked of a node of ours; the answer of each method is sent back."""

    def __init__(self, kind: str, store: LmdbStore, node: Consensus) -> None:
        self._kind = kind
        self._store = store
        self._node = node
        self._op = enqueue(1)
        self._ends: list[float] = []
        self._background: asyncio.Task[None] | None = None
        self._bundle = 0

    async def status(self) -> dict[str, Any]:
        """Where it stands."""
        status = self._node.status()
        return {"leader": status.leader, "term": status.term, "applied": status.applied_index}

    async def lone(self, seconds: float) -> list[float]:
        """One proposal after another; how long each took, in seconds."""
        took = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            await self._node.propose([self._op], 5.0)
            took.append(time.perf_counter() - began)
        return took

    async def steady(self, seconds: float, every_s: float = 0.02) -> list[float]:
        """A proposal every 20 ms, whether the one before has been answered or not; how long each took."""
        took: list[float] = []

        async def one(due: float) -> None:
            await self._node.propose([self._op], 30.0)
            took.append(time.monotonic() - due)

        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            end = due + seconds
            while due < end:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                # Counted from when it was due: a loop that stood still delays its callers as well.
                group.create_task(one(due))
                due += every_s
        return took

    async def load(self, ops: int, in_flight: int, seconds: float, apart: bool = False) -> list[float]:
        """As many proposals as ``in_flight`` callers get through: operations and log entries a second.

        The real machine is given what a client's call comes to: one op on so many items; or, ``apart``, an op each.
        """
        batch = [self._op] * ops if apart or self._kind == "bare" else [enqueue(ops)]
        end = time.monotonic() + seconds
        done = 0

        async def caller() -> None:
            nonlocal done
            while time.monotonic() < end:
                await self._node.propose(batch, 10.0)
                done += 1

        entries = self._node.status().applied_index
        began = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(in_flight)))
        took = time.monotonic() - began
        entries = self._node.status().applied_index - entries
        await self.empty()
        return [done * ops / took, entries / took]

    async def empty(self) -> None:
        """Takes all items out again, so that each measurement finds the same queue."""
        machine = self._node.machine
        if not isinstance(machine, Machine):
            return
        self._bundle += 1
        page = 0
        while (queue := machine.queue("jobs")) is not None and queue.pending:
            call = Call("jobs", peer=f"bench-{os.getpid()}")
            await self._node.propose([pack_op(Drain(call, f"b{self._bundle}", page, _DRAIN_ITEMS))], 30.0)
            page += 1

    async def hammer(self) -> None:
        """Begins to propose without an end."""

        async def caller() -> None:
            while True:
                try:
                    await self._node.propose([self._op], 5.0)
                    self._ends.append(time.monotonic())
                except Exception:
                    await asyncio.sleep(0.01)

        async def callers() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(caller())

        self._ends.clear()
        self._background = asyncio.create_task(callers())

    async def first_after(self, moment: float) -> float | None:
        """When the first proposal after a moment was answered; None if none was."""
        return next((end for end in self._ends if end > moment), None)

    async def rest(self) -> None:
        """Ends ``hammer``."""
        if self._background is not None:
            self._background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._background

    async def snapshot(self, seconds: float) -> dict[str, Any]:
        """Like ``steady``, for at least so long as a snapshot of the store takes."""
        began = time.monotonic()
        future = asyncio.wrap_future(self._store.snapshot("bench"))
        took: list[float] = []
        while not future.done():
            took += await self.steady(min(0.5, seconds))
        snapshot = await future
        return {"took": took, "seconds": time.monotonic() - began, "bytes": snapshot.manifest.size_bytes}


async def run_ours(kind: str, name: str, directory: str, members: dict[str, str]) -> None:
    """A node of ours, until its orders end."""
    gc.disable()
    founding = not (Path(directory) / "lmdb").exists()
    began = time.perf_counter()
    store = LmdbStore(Path(directory), cluster_id="bench", node_id=name)
    node = Consensus(store=store, machines=machines(kind), listen=members[name], bootstrap=members, founding=founding)
    loaded = time.perf_counter() - began
    spare_the_old()
    gc.enable()
    await node.start()
    if kind == "restart":
        await node.propose([], 60.0)
        print(json.dumps({"loaded_s": loaded, "ready_s": time.perf_counter() - began}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    orders = Node(kind, store, node)
    if kind != "bare":
        with contextlib.suppress(Exception):
            await node.propose([pack_op(Configure(Call("jobs"), {"capacity": CAPACITY}))], 20.0)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = await getattr(orders, order.pop("do"))(**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


class Stock:
    """The same for the library as it ships: defaults, file journal, its own thread."""

    def __init__(self, name: str, directory: str, members: dict[str, str]) -> None:
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

        self._members = members
        self._op = bytes(_OP_BYTES)
        self._counter: Any = Counter()

    def status(self) -> dict[str, Any]:
        """Who leads."""
        leader = self._counter._getLeader()
        return {"leader": next((key for key, at in self._members.items() if leader and at == leader.id), None)}

    def lone(self, seconds: float) -> list[float]:
        """As above."""
        took = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            self._counter.take([self._op], sync=True, timeout=5.0)
            took.append(time.perf_counter() - began)
        return took

    def load(self, ops: int, in_flight: int, seconds: float) -> list[float]:
        """As above; it makes an entry of each proposal."""
        room = threading.Semaphore(in_flight)
        done = 0

        def called(_: Any, error: int) -> None:
            nonlocal done
            done += 1 if error == 0 else 0
            room.release()

        batch = [self._op] * ops
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            room.acquire()
            self._counter.take(batch, callback=called)
        for _ in range(in_flight):
            room.acquire(timeout=5.0)
        took = time.monotonic() - began
        return [done * ops / took, done / took]


def run_stock(name: str, directory: str, members: dict[str, str]) -> None:
    """A node of the library, until its orders end."""
    stock = Stock(name, directory, members)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(stock, order.pop("do"))(**order)), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Runs a node."""
    die_with_parent()
    kind, name, directory, members = arguments
    if kind == "stock":
        run_stock(name, directory, json.loads(members))
    else:
        # The loop that a node runs on.
        with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
            runner.run(run_ours(kind, name, directory, json.loads(members)))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
