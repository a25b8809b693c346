"""A machine at work: entries drawn from a seed, so that every process that knows the seed knows the log."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from resourcelease.machine import Applied, Machine
from resourcelease.model.events import Record
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.ops import (
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    Heartbeat,
    Lease,
    Op,
    Restore,
    pack_entry,
    pack_op,
    pack_ops,
)
from resourcelease.model.results import Drained
from resourcelease.storage.segments import LogOptions, Owner, SegmentWriter

OWNER = Owner("c1", "n1")
NAMESPACES = ("resourcelease", "resourcelease.eu", "billing")
PEERS = ("p1", "p2")
WALL_MS = 1_767_603_600_000


class Step(NamedTuple):
    """One applied entry."""

    index: int  # type: ignore[assignment]
    applied: Applied

    @property
    def records(self) -> Sequence[Record]:
        return self.applied.records


class Work:
    """Draws entries that fit the machine's state, and applies them."""

    def __init__(self, seed: int, cluster: str = "c1") -> None:
        self.machine = Machine(cluster)
        self.entries: list[bytes] = []
        self.steps: list[Step] = []
        self._draw = random.Random(seed)
        self._clock_ms = 0
        self._page = 0
        self._pages: list[bytes] = []

    @property
    def records(self) -> list[Record]:
        return [record for step in self.steps for record in step.records]

    def run(self, steps: int) -> list[Step]:
        """So many entries more."""
        return [self.step() for _ in range(steps)]

    def finish(self) -> "Work":
        """One entry more that surely makes an event: without one, a machine's position is more than its events say."""
        self._apply([Enqueue(Call(NAMESPACES[0]), ItemColumns(1, "table", ["last"]).packed())])
        return self

    def step(self) -> Step:
        self._clock_ms += self._draw.choice((0, 0, 1, 1, 5, 50, 50, 2_000, 40_000))
        number = self._draw.choice((0, 1, 1, 1, 3))
        return self._apply([self._op(self._draw.choice(NAMESPACES)) for _ in range(number)])

    def _apply(self, ops: list[Op]) -> Step:
        # Wall time is anybody's guess.
        wall_ms = WALL_MS + self._clock_ms + self._draw.randrange(-3_000, 3_000)
        self.entries.append(pack_entry(self._clock_ms, wall_ms, pack_ops(map(pack_op, ops))))
        index = 1 + len(self.entries) * 2  # not every entry of the log is the machine's
        applied = self.machine.apply(index, 1, self.entries[-1])
        self._pages += [result.page for result in applied.results if isinstance(result, Drained) and result.page]
        self.steps.append(Step(index, applied))
        return self.steps[-1]

    def _op(self, namespace: str) -> Op:
        draw = self._draw
        peer = draw.choice(PEERS)
        holders = [(name, who) for name in NAMESPACES for who in PEERS if self.machine.leases_of(name, who)]
        if holders and draw.random() < 0.5:
            namespace, peer = draw.choice(holders)
        call = Call(namespace, peer, draw.choice(("", "alice")), f"o{draw.randrange(1 << 30)}", 0, None)
        leases = self.machine.leases_of(namespace, peer)
        ids, attempts, fences = [[lease[part] for lease in leases[:3]] for part in range(3)]
        kind = draw.randrange(12)
        if kind in (0, 1, 8) and ids:
            return Complete(call, ids, attempts, fences)
        if kind == 2 and ids:
            failures = [Failure("E_TEST", "it did not work", {"line": "7"})]
            return Fail(call, ids, attempts, fences, draw.random() < 0.7, failures=failures)
        if kind == 3:
            return Heartbeat(call)
        if kind == 4:
            return Configure(call, {"lease_duration_ms": draw.choice((1_000, 30_000)), "max_attempts": 2})
        if kind == 5:
            self._page += 1
            return Drain(call, f"bundle-{self._page}", 0, 2, 1 << 20, False)
        if kind == 6 and self._pages:
            return Restore(call, draw.choice(self._pages))
        if kind in (7, 8, 9):
            return Lease(call, draw.choice((1, 4)))
        return self._enqueue(call)

    def _enqueue(self, call: Call) -> Enqueue:
        draw = self._draw
        size = draw.choice((1, 1, 2, 9))
        bodies = [
            draw.choice((None, b"", draw.randbytes(draw.randrange(40)), b"the same again " * 5)) for _ in range(size)
        ]
        ids = [f"resource-{draw.randrange(1000)}" for _ in range(size)]
        return Enqueue(call, ItemColumns(size, "table", ids, body=bodies if draw.random() < 0.8 else None).packed())


def again(work: Work, upto: int | None = None) -> Machine:
    """Another machine that was fed the same entries, or the first of them."""
    machine = Machine("c1")
    for step, entry in list(zip(work.steps, work.entries, strict=True))[:upto]:
        machine.apply(step.index, 1, entry)
    return machine


def resume(directory: Path, machine: Machine, **options: object) -> SegmentWriter:
    """A writer that writes as soon as it can."""
    chosen = LogOptions(**{"flush_s": 0.0, "frame_bytes": 300} | options)  # type: ignore[arg-type]
    return SegmentWriter.resume(directory, machine, OWNER, chosen)


def feed(writer: SegmentWriter, steps: Iterable[Step]) -> None:
    """Hands steps over, and waits until they are durable."""
    for index, applied in steps:
        writer.append(index, applied.records, applied.chain, sealed=applied.sealed)
    writer.flush().result(timeout=30)


def write(directory: Path, work: Work, **options: object) -> None:
    """The whole log of a machine."""
    writer = resume(directory, Machine("c1"), **options)
    feed(writer, work.steps)
    writer.close()


def encoded(records: Iterable[Record]) -> list[bytes]:
    return [record.encoded for record in records]
