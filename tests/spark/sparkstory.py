"""A known story: what happens to three tables, a dead letter and a drained item, told by a real machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from resourcelease.machine import Machine
from resourcelease.model.events import Event
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.ops import (
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    GiveBack,
    Lease,
    Op,
    pack_entry,
    pack_op,
    pack_ops,
)
from resourcelease.storage.segments import Log, LogOptions, Owner, SegmentWriter

WALL_MS = 1_767_603_600_000


class Story(NamedTuple):
    """A log and what it holds."""

    directory: Path
    events: list[Event]


class Teller:
    """Feeds a machine, and writes what it says."""

    def __init__(self, directory: Path, *, frame_bytes: int = 300, cluster: str = "c1", node: str = "n1") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._machine = Machine(cluster)
        options = LogOptions(flush_s=0.0, frame_bytes=frame_bytes)
        self._writer = SegmentWriter.resume(directory, self._machine, Owner(cluster, node), options)
        self._index = 0

    def at(self, clock_ms: int, *ops: Op) -> list[Any]:
        """One entry."""
        self._index += 1
        data = pack_entry(clock_ms, WALL_MS + clock_ms, pack_ops(map(pack_op, ops)))
        applied = self._machine.apply(self._index, 1, data)
        self._writer.append(self._index, applied.records, applied.chain, sealed=applied.sealed)
        self._writer.flush().result(timeout=30)
        return list(applied.results)

    def close(self) -> Story:
        self._writer.close()
        return Story(self.directory, list(Log(self.directory).events()))


def call(peer: str, principal: str = "", operation: str = "", namespace: str = "jobs") -> Call:
    return Call(namespace, peer, principal, operation, 0, None)


def tables(names: Iterable[str], namespace: str = "jobs") -> Enqueue:
    ids = list(names)
    bodies: list[bytes | None] = [name.encode() * 5 for name in ids]
    operation = f"load-{ids[0]}"
    return Enqueue(
        call("etl", "etl-team", operation, namespace), ItemColumns(len(ids), "table", ids, body=bodies).packed()
    )


def tell(directory: Path) -> Story:
    """orders goes well; users fails, expires and is dead; parts is given back and another does it; late is drained."""
    teller = Teller(directory)
    teller.at(
        0, Configure(call(""), {"max_attempts": 2, "lease_duration_ms": 30_000}), tables(["orders", "users", "parts"])
    )
    teller.at(1_000, Lease(call("p1", "alice"), 2))
    teller.at(5_000, Complete(call("p1", "alice"), [1], 1, [1]))
    failed = [Failure("E_DISK", "no space", {"disk": "sda"})]
    teller.at(6_000, Fail(call("p1", "alice"), [2], 1, [2], failures=failed))
    teller.at(10_000, Lease(call("p2", "bob"), 2))
    teller.at(12_000, GiveBack(call("p2", "bob"), [3], 1, [3]))
    teller.at(41_000)
    teller.at(3_700_000, Lease(call("p1", "alice"), 1))
    teller.at(3_702_000, Complete(call("p1", "alice"), [3], 1, [5]))
    teller.at(3_703_000, tables(["late"]), tables(["other"], "more"))
    teller.at(3_704_000, Lease(call("p1", "alice"), 1))
    teller.at(3_705_000, Drain(call("p1", "alice"), "bundle", 0, 5, 1 << 20, True))
    return teller.close()


def many(directory: Path, rounds: int, *, begin: int = 0, node: str = "n1") -> Story:
    """Lifecycles by the ten, in two namespaces; every round the same but later, so that logs can be compared."""
    teller = Teller(directory, frame_bytes=2_000, node=node)
    more(teller, begin, rounds)
    return teller.close()


def more(teller: Teller, begin: int, rounds: int) -> None:
    for number in range(begin, begin + rounds):
        namespace = "jobs" if number % 3 else "billing"
        clock = number * 1_000
        teller.at(clock, tables([f"t{number}-{place}" for place in range(10)], namespace))
        leases = teller.at(clock + 10, Lease(call("p1", "alice", namespace=namespace), 10))[0]
        done = Complete(call("p1", "alice", namespace=namespace), list(leases.sequence_ids), 1, list(leases.fences))
        teller.at(clock + 20, done)
