"""What holds for every history: cut into entries, stored, loaded, folded or repeated in any way, it adds up the same.

A history is a list of ops with the clock of each, made concrete against a machine of its own that applies them one by
one; so handles, pages and retries in it speak of things that were really there.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resourcelease.machine import Applied, Machine, fold
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.events import Event, Record
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.ops import (
    BeginEffect,
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Pause,
    Redrive,
    RequireVersion,
    Restore,
    Resume,
    pack_entry,
    pack_op,
    pack_ops,
)
from resourcelease.model.results import Drained, Granted, Restored, Result

EXAMPLES = int(os.environ.get("RESOURCELEASE_EXAMPLES", "80"))
CLUSTER = "c1"
WALL_MS = 1_700_000_000_000

# Bounds small enough to be met within one history.
SMALL_LIMITS = {
    "MAX_NAMESPACES": 3,
    "MAX_PEERS": 3,
    "ANSWER_WINDOW_MS": 200,
    "ANSWERS_PER_PEER": 4,
    "SETTLED_BLOCK": 4,
    "SETTLED_BLOCKS": 2,
    "RESTORED_PAGES_KEPT": 2,
    "MAX_EFFECTS": 2,
    "MAX_GATES": 2,
    "THIN_BATCH_PART": 2,
    "THIN_BATCHES": 1,
    "SEGMENT_BYTES": 900,
    "SEGMENT_AGE_MS": 700,
}

SPACES = (*("main",) * 6, *("side",) * 3, "more", "many")
PEERS = (*("p1",) * 4, *("p2",) * 4, "p3", "p4")

TIGHT: dict[str, Any] = {
    "capacity": 9,
    "high_watermark": 7,
    "low_watermark": 3,
    "max_attempts": 2,
    "dead_letter_limit": 2,
    "lease_duration_ms": 50,
    "dedup_window_ms": 120,
    "dedup_limit": 2,
    "max_body_bytes": 8,
    "peer_grace_ms": 100,
}
FIRST_OPTIONS = {"main": TIGHT, "side": {"enforce_peer_health": True, "lease_duration_ms": 30, "requeue_delay_ms": 10}}
CHANGES: tuple[dict[str, Any], ...] = (
    TIGHT,
    {"requeue_delay_ms": 10, "requeue_multiplier": 2, "requeue_delay_cap_ms": 30},
    {"enforce_peer_health": True},
    {"enforce_peer_health": False, "max_attempts": 3},
    {"high_watermark": None, "low_watermark": None},
    {"high_watermark": 3, "low_watermark": 1},
    {"dead_letter_limit": 0},
    {"capacity": 0},
    {"capcity": 1},
    {"lease_duration_ms": 20},
)

Handle: TypeAlias = tuple[int, int, int]
# Ops with the clock of each.
History: TypeAlias = Sequence[tuple[int, Op]]
Row: TypeAlias = tuple[bytes, bytes]


class Step(NamedTuple):
    """A choice, before it is known what there is to choose from."""

    kind: str
    space: str
    peer: str
    # Three numbers that each kind of step reads in its own way.
    a: int
    b: int
    c: int
    # 0, 1: no operation id; 2 to 5: a new one; 6, 7: that of an earlier call.
    operation: int


WEIGHTS = {
    "enqueue": 8,
    "lease": 10,
    "complete": 3,
    "fail": 5,
    "give_back": 5,
    "heartbeat": 3,
    "peer": 2,
    "wait": 4,
    "configure": 2,
    "pause": 1,
    "resume": 4,
    "redrive": 3,
    "drain": 1,
    "restore": 3,
    "version": 1,
    "begin": 2,
    "finish": 2,
    "retry": 3,
}
KINDS = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
ON_LEASES = ("complete", "fail", "give_back", "heartbeat", "begin", "finish")

step_lists = st.lists(
    st.builds(
        Step,
        st.sampled_from(KINDS),
        st.sampled_from(SPACES),
        st.sampled_from(PEERS),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    min_size=5,
    max_size=45,
)


class Writer:
    """Turns steps into ops, with the help of a machine that applies each at once."""

    def __init__(self) -> None:
        self.machine = Machine(CLUSTER)
        self.index = 0
        self.clock_ms = 1000
        self._granted: dict[str, list[Handle]] = {}
        self._sent: list[Op] = []
        self._pages: list[bytes] = []
        self._drained: dict[tuple[str, str], int] = {}

    def write(self, steps: Sequence[Step]) -> History:
        """The ops of the steps, one after the other."""
        history: list[tuple[int, Op]] = []
        if not self.index:
            for name, options in FIRST_OPTIONS.items():
                history.append((self.clock_ms, Configure(Call(name), options)))
                self._send(history[-1][1])
        for step in steps:
            if step.kind == "wait":
                self.clock_ms += (1, 1, 2, 5, 15, 30, 50, 200)[step.a]
            op = self._op(step)
            if op is not None:
                self._send(op)
                history.append((self.clock_ms, op))
        return history

    def _send(self, op: Op) -> None:
        self.index += 1
        applied = self.machine.apply(self.index, 1, entry(self.clock_ms, [op]))
        result, space = applied.results[0], op.call.namespace
        if op.call.operation_id:
            self._sent.append(op)
        if isinstance(result, Granted):
            handles = zip(result.sequence_ids, result.attempts, result.fences, strict=True)
            self._granted.setdefault(space, []).extend(handles)
        if isinstance(op, Drain) and isinstance(result, Drained):
            self._pages.append(result.page)
            if result.size:
                self._drained[(space, op.bundle_id)] = op.page + 1

    def _op(self, step: Step) -> Op | None:
        step = self._to_some_purpose(step)
        handles = self._handles(step)
        holder = self.machine.item(step.space, handles[0][0])
        principal = ("", "", "", "alice")[step.c % 4]
        if step.kind in ON_LEASES and holder is not None and step.a:
            principal = holder.principal
        call = Call(step.space, step.peer, principal, self._operation(step), step.c // 6)
        ids, attempts, fences = columns = [list(column) for column in zip(*handles, strict=True)]
        kind, a, b, c = step.kind, step.a, step.b, step.c
        match kind:
            case "enqueue":
                return Enqueue(call, _items(a, b, c))
            case "lease":
                return Lease(call, (1, 1, 2, 4)[a % 4], (0, 0, 0, 4)[b % 4])
            case "heartbeat":
                return Heartbeat(call, *columns)
            case "peer":
                return Heartbeat(call)
            case "complete":
                return Complete(call, *columns)
            case "give_back":
                return GiveBack(call, columns[0], columns[1], columns[2])
            case "fail":
                failures = (None, [Failure("E", "it broke")], [Failure("E", str(n), {"n": "1"}) for n in handles])[
                    c % 3
                ]
                return Fail(call, ids, attempts, fences, bool(a % 3), (None, None, 0, 15)[b % 4], failures)
            case "configure":
                return Configure(call, CHANGES[(a + b) % len(CHANGES)])
            case "pause":
                return Pause(call)
            case "resume":
                return Resume(call)
            case "redrive":
                dead = list(self.machine.dead_ids(step.space))
                named = [dead[-1] if dead else 1, a] if b % 2 else None
                return Redrive(call, named, 1 + c % 3, (0, 0, 20)[b % 3])
            case "drain":
                bundle = f"b{a % 3}"
                page = self._drained.get((step.space, bundle), 0) + (1 if b == 7 else 0)
                return Drain(call, bundle, page, 1 + c % 3, 1 << 20, bool(b % 2))
            case "restore" if self._pages:
                return Restore(call, self._pages[-1 - a % len(self._pages)])
            case "version":
                return RequireVersion(call, f"v{a % 3}", b % 3, b % 3 + c % 3)
            case "begin":
                return BeginEffect(call, f"e{handles[0][0] % 3}", *handles[0])
            case "finish":
                return FinishEffect(call, f"e{handles[0][0] % 3}", *handles[0], b"done")
            case "retry" if self._sent:
                op = self._sent[-1 - a % len(self._sent)]
                return op._replace(call=op.call._replace(take=max(0, op.call.take + b % 3 - 1)))
        return None

    def _to_some_purpose(self, step: Step) -> Step:
        """Acks need leases and leases items; where there are none, the step mostly becomes one that makes them."""
        if step.kind in ON_LEASES and not any(self.machine.active_ids(step.space)):
            leased = (name for name in self.machine.namespaces() if any(self.machine.active_ids(name)))
            step = step._replace(space=next(leased, step.space))
            if step.c % 4 and not any(self.machine.active_ids(step.space)):
                step = step._replace(kind="lease")
        if step.kind == "lease" and step.c % 4 and not any(self.machine.pending_ids(step.space)):
            step = step._replace(kind="enqueue")
        return step

    def _operation(self, step: Step) -> str:
        if step.operation < 2:
            return ""
        if step.operation < 6 or not self._sent:
            return f"op{len(self._sent)}"
        return self._sent[-1 - step.a % len(self._sent)].call.operation_id

    def _handles(self, step: Step) -> list[Handle]:
        """Handles that live, if there are any; now and then one of old, or one that never was."""
        live = []
        for sequence_id in self.machine.active_ids(step.space):
            view = self.machine.item(step.space, sequence_id)
            assert view is not None
            live.append((sequence_id, view.attempt, view.fence))
        known = self._granted.get(step.space, [])
        handles = live if live and step.b != 7 else known or [(1, 1, 1)]
        return [handles[(step.a + place) % len(handles)] for place in range(1 + step.b % 3)]


def _items(a: int, b: int, c: int) -> bytes:
    size = (1, 1, 2, 4)[a % 4]
    return ItemColumns(
        size,
        "table",
        [f"t{b}"] * size,
        body=[(None, b"1234")[(place + c) % 2] for place in range(size)],
        request_id=[f"r{(place + b) % 5}" for place in range(size)] if c % 3 == 0 else None,
        priority=9 if b == 6 else [(4, 9)[place % 2] for place in range(size)] if b == 7 else 4,
        not_before_ms=30 if c == 6 else [(0, 15)[place % 2] for place in range(size)] if c == 7 else 0,
    ).packed()


def entry(clock_ms: int, ops: Sequence[Op]) -> bytes:
    return pack_entry(clock_ms, WALL_MS + clock_ms, pack_ops(map(pack_op, ops)))


def cut(history: History, seed: int) -> Iterator[bytes]:
    """The history as entries, cut at random wherever the clock stands still."""
    draw = random.Random(seed)
    for clock_ms, group in groupby(history, key=itemgetter(0)):
        waiting: list[Op] = []
        for _, op in group:
            waiting.append(op)
            if draw.random() < 0.4:
                yield entry(clock_ms, waiting)
                waiting = []
        if waiting:
            yield entry(clock_ms, waiting)


class Tape:
    """A machine at work, and everything that came out of it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.results: list[Result] = []
        self.records: list[Record] = []

    def play(self, entries: Iterator[bytes] | Sequence[bytes]) -> "Tape":
        for data in entries:
            applied: Applied = self.machine.apply(self.machine.applied_index + 1, 1, data)
            assert applied.refused is None
            self.results += applied.results
            self.records += applied.records
        return self

    def events(self) -> list[Event]:
        return [event for record in self.records for event in record.events()]


def rows(machine: Machine) -> dict[bytes, bytes]:
    """The state but for the position in the log."""
    stored = dict(machine.dump_rows())
    _, cluster, _, _, _, _, sequence, fence, *_ = msgpack.unpackb(stored.pop(b"m"))
    return stored | {b"m": msgpack.packb((cluster, sequence, fence))}


def spoken(machine: Machine) -> dict[str, Any]:
    """What the machine says of its queues and peers: what is derived, and so not in the rows."""
    queues = {
        name: (
            machine.queue(name),
            list(machine.pending_ids(name)),
            list(machine.delayed_ids(name)),
            list(machine.active_ids(name)),
            list(machine.dead_ids(name)),
        )
        for name in machine.namespaces()
    }
    return queues | {"peers": machine.peers()}


def same(one: Machine, other: Machine) -> None:
    assert rows(one) == rows(other)
    assert spoken(one) == spoken(other)


def same_answers(one: Sequence[Result], other: Sequence[Result]) -> None:
    assert [_plain(result) for result in one] == [_plain(result) for result in other]


def _plain(value: Any) -> Any:
    """Lists, tuples and ranges are one thing here; an event is its columns."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [type(value).__name__ if hasattr(value, "_fields") else "", *map(_plain, value)]
    return value


@contextmanager
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL_LIMITS.items():
            patch.setattr(limits, name, value)
        yield


def histories() -> settings:
    """The settings of every property here."""
    return settings(
        max_examples=EXAMPLES,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@histories()
@given(step_lists, st.integers(0, 1 << 16), st.integers(0, 1 << 16))
def test_how_ops_are_cut_into_entries_makes_no_difference(steps: list[Step], seed: int, other_seed: int) -> None:
    with small_limits():
        history = Writer().write(steps)
        one = Tape(Machine(CLUSTER)).play(list(cut(history, seed)))
        other = Tape(Machine(CLUSTER)).play(list(cut(history, other_seed)))
        same_answers(one.results, other.results)
        # The place in the Raft log is all that may differ.
        assert [event._replace(raft_index=0) for event in one.events()] == [
            event._replace(raft_index=0) for event in other.events()
        ]
        same(one.machine, other.machine)


@histories()
@given(step_lists, step_lists, st.randoms(use_true_random=False))
def test_a_loaded_machine_goes_on_as_the_one_that_was_dumped(
    steps: list[Step], further: list[Step], draw: random.Random
) -> None:
    with small_limits():
        writer = Writer()
        writer.write(steps)
        stored = list(writer.machine.dump_rows())
        assert stored == sorted(stored), "rows come in the order of their keys"
        draw.shuffle(stored)
        loaded = Machine.load_rows(stored)
        assert loaded.digest() == writer.machine.digest()
        assert loaded.chain() == writer.machine.chain()
        assert loaded.segment() == writer.machine.segment()
        same(loaded, writer.machine)
        _goes_on_alike(writer, loaded, further)


@histories()
@given(step_lists, step_lists)
def test_folding_the_events_makes_the_machine(steps: list[Step], further: list[Step]) -> None:
    with small_limits():
        tape = Tape(Machine(CLUSTER))
        writer = Writer()
        tape.play(list(cut(writer.write(steps), 0)))
        folded = fold(CLUSTER, [Record.decode(record.encoded) for record in tape.records])
        assert folded.chain() == tape.machine.chain()
        assert folded.segment() == tape.machine.segment()
        same(folded, tape.machine)
        # What one entry each made of it is the same events under other indices; their fold goes on as well.
        records = Tape(Machine(CLUSTER)).play([entry(*one) for one in _singles(Writer().write(steps))]).records
        folded = fold(CLUSTER, [Record.decode(record.encoded) for record in records])
        _goes_on_alike(writer, folded, further)


def _singles(history: History) -> list[tuple[int, list[Op]]]:
    return [(clock_ms, [op]) for clock_ms, op in history]


def _goes_on_alike(writer: Writer, other: Machine, further: list[Step]) -> None:
    """The further steps on the writer's machine and on the other: the same answers, events and rows."""
    # An entry without events moves the clock and the index, and a fold knows of neither.
    index = writer.index + 1
    for machine in (writer.machine, other):
        machine.apply(index, 1, entry(writer.clock_ms, []))
    writer.index = index
    before = Machine.load_rows(writer.machine.dump_rows())
    history = writer.write(further)
    for clock_ms, op in history:
        index += 1
        ours = before.apply(index, 1, entry(clock_ms, [op]))
        theirs = other.apply(index, 1, entry(clock_ms, [op]))
        same_answers(ours.results, theirs.results)
        assert [record.encoded for record in ours.records] == [record.encoded for record in theirs.records]
    same(other, writer.machine)
    assert other.chain() == writer.machine.chain()


@histories()
@given(step_lists, st.integers(0, 1 << 16))
def test_the_changes_add_up_to_the_rows(steps: list[Step], seed: int) -> None:
    with small_limits():
        draw, machine = random.Random(seed), Machine(CLUSTER)
        store: dict[bytes, bytes] = {}
        for data in [*cut(Writer().write(steps), seed), entry(0, [])]:
            machine.apply(machine.applied_index + 1, 1, data)
            if draw.random() < 0.4:
                _store(store, machine)
            if draw.random() < 0.1:
                machine = Machine.load_rows(machine.dump_rows())
                store = dict(machine.dump_rows())
        _store(store, machine)
        assert store == dict(machine.dump_rows())
        assert machine.take_changes()[0] == [(b"m", store[b"m"])], "nothing has changed but, at most, the position"


def _store(store: dict[bytes, bytes], machine: Machine) -> None:
    """What storage does: all puts and all deletes in one transaction."""
    puts, deletes = machine.take_changes()
    put_keys = [key for key, _ in puts]
    assert len({*put_keys, *deletes}) == len(put_keys) + len(deletes), "a key is put or deleted, and that once"
    store.update(puts)
    for key in deletes:
        store.pop(key, None)
    assert store == dict(machine.dump_rows())


@histories()
@given(step_lists)
def test_the_order_of_the_queue_is_that_of_the_stored_tickets(steps: list[Step]) -> None:
    """Rows hold no queue, only tickets; so the queue in memory must stand as the tickets say, at every moment."""
    with small_limits():
        machine = Machine(CLUSTER)
        for data in cut(Writer().write(steps), 1):
            machine.apply(machine.applied_index + 1, 1, data)
            assert spoken(machine) == spoken(Machine.load_rows(machine.dump_rows()))


def test_what_is_given_back_stands_between_neighbours_by_number() -> None:
    """Items 2 and 3 are one run of ids in the queue; item 1, requeued between the two, comes back between them."""
    call = Call("main", "p1")
    one, two, three = (Enqueue(call, ItemColumns(1, "table", name).packed()) for name in ("one", "two", "three"))
    ops: list[Op] = [one, two, Lease(call, 2), Fail(call, 1, 1, 1), Lease(call, 1)]
    ops += [GiveBack(call, 2, 1, 2), three, GiveBack(call, 1, 2, 3)]
    machine = Tape(Machine(CLUSTER)).play([entry(0, ops)]).machine
    assert list(machine.pending_ids("main")) == [2, 1, 3]
    assert list(Machine.load_rows(machine.dump_rows()).pending_ids("main")) == [2, 1, 3]


def test_what_was_drained_can_be_restored() -> None:
    """A page is bounded by more than its bodies: one too large for an op would be lost with everything in it."""
    call = Call("main", "p1")
    large = ItemColumns(2500, "table", ["x" * limits.MAX_TEXT] * 2500).packed()
    source = Tape(Machine(CLUSTER)).play([entry(0, [Enqueue(call, large)]), entry(0, [Enqueue(call, large)])]).machine
    target = Machine("c2")
    restored = 0
    for page in range(20):
        drained = source.apply(3 + page, 1, entry(0, [Drain(call, "b", page, limits.MAX_ITEMS_PER_OP)])).results[0]
        assert isinstance(drained, Drained)
        (result,) = target.apply(1 + page, 1, entry(0, [Restore(call, drained.page)])).results
        assert isinstance(result, Restored), result
        restored += result.restored
        if not drained.more:
            break
    assert restored == 5000


@histories()
@given(step_lists, st.integers(0, 60), st.integers(0, 60))
def test_an_entry_is_applied_once(steps: list[Step], first: int, second: int) -> None:
    with small_limits():
        entries = list(cut(Writer().write(steps), 0))
        machine = Machine(CLUSTER)
        Tape(machine).play(entries)
        before, position = list(machine.dump_rows()), machine.applied_index
        for index, place in ((position, first), (position - first, second), (0, first), (-1, second)):
            if index > position or not entries:
                continue
            applied = machine.apply(index, 9, entries[place % len(entries)])
            assert isinstance(applied.refused, Refusal)
            assert (applied.refused.reason, applied.results, applied.records) == (Reason.CONFLICT, [], [])
        assert list(machine.dump_rows()) == before


@histories()
@given(step_lists, st.data())
def test_the_chain_tells_any_two_logs_apart(steps: list[Step], data: st.DataObject) -> None:
    with small_limits():
        tape = Tape(Machine(CLUSTER)).play(list(cut(Writer().write(steps), 0)))
        records = [Record.decode(record.encoded) for record in tape.records]
        if not records:
            return
        assert fold(CLUSTER, records).chain() == tape.machine.chain()
        record = data.draw(st.sampled_from(records))
        place = data.draw(st.integers(0, len(record.encoded) - 1))
        other = bytearray(record.encoded)
        other[place] ^= data.draw(st.integers(1, 255))
        record.encoded = bytes(other)
        assert fold(CLUSTER, records).chain() != tape.machine.chain()


def test_a_history_meets_everything() -> None:
    """The histories are worth their while: together they make every type of event and every kind of answer."""
    types: dict[str, int] = {}
    reasons: dict[str, int] = {}
    draw = random.Random(7)
    with small_limits():
        for _ in range(150):
            steps = [
                Step(
                    draw.choice(KINDS), draw.choice(SPACES), draw.choice(PEERS), *(draw.randrange(8) for _ in range(4))
                )
                for _ in range(45)
            ]
            tape = Tape(Machine(CLUSTER)).play(list(cut(Writer().write(steps), 0)))
            for record in tape.records:
                types[record.type.name] = types.get(record.type.name, 0) + 1
            for result in tape.results:
                refusals = [result] if isinstance(result, Refusal) else getattr(result, "refused", {}).values()
                for refusal in refusals:
                    reasons[refusal.reason.name] = reasons.get(refusal.reason.name, 0) + 1
    assert len(types) == 18, sorted(types)
    unmet = {"NO_LEADER", "OUTCOME_UNKNOWN", "UNAUTHENTICATED"}
    assert sorted(reasons) == sorted({reason.name for reason in Reason} - unmet)


@histories()
@given(step_lists, st.integers(0, 1 << 16))
def test_segments_end_where_the_log_says(steps: list[Step], seed: int) -> None:
    with small_limits():
        live = Machine(CLUSTER)
        first, size, ends = 1, 0, []
        for data in cut(Writer().write(steps), seed):
            applied = live.apply(live.applied_index + 1, 1, data)
            size += sum(len(record.encoded) for record in applied.records)
            assert not applied.sealed or applied.records, "a segment ends with an event"
            assert applied.sealed or size < limits.SEGMENT_BYTES
            if applied.sealed:
                ends.append(live.sequence_number)
                first, size = live.sequence_number + 1, 0
            assert live.segment()[:2] == (first, size)
            live = Machine.load_rows(live.dump_rows())
        assert ends == sorted(set(ends))
