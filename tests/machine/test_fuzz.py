"""Garbage in: the machine says no, changes nothing that its events do not say, and goes on.

What is mutated is real: the entries, events, rows and pages of the stories told in ``test_golden``. A value is opened
down to the last packed column (``opened``), one thing in it is spoilt, and it is packed again, seals and all.
"""

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from story import TERM, Cluster
from test_golden import STORIES, told

from resourcelease.machine import Machine, fold
from resourcelease.model.errors import CorruptLog, Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.limits import MAX_OP_BYTES, MAX_TIME_MS
from resourcelease.model.ops import ENTRY_VERSION, OPS, Call, Complete, Configure, Enqueue, Lease, Op, Restore, pack_op
from resourcelease.model.results import Acked, Enqueued, Granted, Restored

EXAMPLES = int(os.environ.get("RESOURCELEASE_EXAMPLES", "200"))

Row = tuple[bytes, bytes]
# The steps down into an opened value.
Way = tuple[Any, ...]


class Packed(NamedTuple):
    """Bytes that are msgpack in themselves, opened; a page is sealed again when it is closed."""

    inner: Any


def opened(value: Any) -> Any:
    """The value with everything in it unpacked that is packed."""
    if type(value) is bytes:
        try:
            inner = msgpack.unpackb(value)
        except ValueError:
            return value
        return Packed(opened(inner)) if type(inner) is list and msgpack.packb(inner) == value else value
    if type(value) is list:
        return [opened(part) for part in value]
    return value


def closed(value: Any) -> Any:
    """The value packed again as it was; the digest of a page is made to fit what is now in it."""
    if isinstance(value, Packed):
        inner = closed(value.inner)
        if [type(part) for part in inner] == [bytes, bytes] and len(inner[1]) == 32:
            inner[1] = sha256(inner[0]).digest()
        return packed(inner)
    if type(value) is list:
        return [closed(part) for part in value]
    if type(value) is dict:
        return {key: closed(part) for key, part in value.items()}
    return value


# Stands for arrays in arrays as deep as msgpack reads them, which is deeper than it writes.
ABYSS = msgpack.ExtType(42, b"abyss")


def packed(value: Any) -> bytes:
    """As msgpack, also what is no valid text; nothing where msgpack has no form for it."""
    try:
        data: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    except (OverflowError, ValueError, TypeError):
        return b""
    return data.replace(msgpack.packb(ABYSS), b"\x91" * 1000 + b"\xc0")


def a_path(draw: st.DrawFn, value: Any) -> Way:
    """A way down into an opened value, to where something is to be spoilt."""
    path: Way = ()
    while True:
        inner = value.inner if isinstance(value, Packed) else value
        steps = list(range(len(inner))) if type(inner) is list else list(inner) if type(inner) is dict else []
        if not steps or (path and not draw(st.integers(0, 3))):
            return path
        path = (*path, draw(st.sampled_from(steps)))
        value = inner[path[-1]]


def at(value: Any, path: Way) -> Any:
    for step in path:
        value = (value.inner if isinstance(value, Packed) else value)[step]
    return value


def replaced(value: Any, path: Way, new: Any) -> Any:
    """The value with one part of it exchanged."""
    if not path:
        return new
    if isinstance(value, Packed):
        return Packed(replaced(value.inner, path, new))
    copy = value.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


# Numbers stay clear of the middle, where code that trusts them would fill the memory before it fails.
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    1 << 45,
    1 << 50,
    (1 << 50) + 1,
    (1 << 62) + 1,
    (1 << 63) - 1,
    (1 << 64) - 1,
    -(1 << 63),
)
CONSTANTS = (None, True, False, 0.0, 1.0, 1.5, float("nan"), float("inf"))
TEXTS = ("", " ", "\u200b", "x", "x" * 257, "x" * 5000, "\ud800", "jobs")
BYTES = (b"", b"\xc1", b"\x93\x01", b"0123456789", b"x" * 300)
LISTS: tuple[Any, ...] = ([], [[]], [None], [1, "x", None], [True] * 3, [0] * 10_001)
MAPS: tuple[Any, ...] = (
    {},
    {"a": "b"},
    {"a": {"b": 1}},
    {"": ""},
    {str(n): "x" for n in range(70)},
    {1: 2},
    {b"a": b"b"},
)
STRANGERS = (ABYSS, msgpack.ExtType(5, b"x"), msgpack.Timestamp(0, 0))
JUNK: tuple[Any, ...] = (*NUMBERS, *CONSTANTS, *TEXTS, *BYTES, *LISTS, *MAPS, *STRANGERS)


def lookalikes(value: Any) -> list[Any]:
    """What might be taken for the value by somebody who only looks at its length, or only at its sense."""
    if type(value) is list and value:
        size = len(value)
        return ["x" * size, b"x" * size, bytes(size), {f"k{n}": "v" for n in range(size)}, value[0], value[::-1]]
    if type(value) is dict:
        return [list(value), [list(pair) for pair in value.items()], None]
    if type(value) is int:
        return [str(value), float(value), bool(value), [value], -value, value + 1, value - 1, 1 << 45, (1 << 64) - 1]
    if type(value) is str:
        return [value.encode(errors="replace"), list(value), {value: value}, value + " "]
    if type(value) is bytes:
        return [value.decode("latin-1"), list(value), value * 2]
    return [[value], not value]


def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """The opened value with one thing wrong in it, or two."""
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        path = a_path(draw, value)
        here = at(value, path)
        inner = here.inner if isinstance(here, Packed) else here
        how = draw(st.sampled_from(("junk", "junk", "alike", "alike", "abyss", "swap", "wrap", "less", "more", "bits")))
        if how == "abyss":
            new = ABYSS
        elif how == "alike":
            new = draw(st.sampled_from(lookalikes(inner)))
        elif how == "swap":
            new = at(value, a_path(draw, value))
        elif how == "wrap":
            new = draw(st.sampled_from(([here], [here, here], {"a": here})))
        elif how in ("less", "more") and type(inner) is list and inner:
            place = draw(st.integers(0, len(inner) - 1))
            rest = inner[:place] + inner[place + 1 :] if how == "less" else [*inner[: place + 1], *inner[place:]]
            new = Packed(rest) if isinstance(here, Packed) else rest
        elif how == "bits" and isinstance(here, Packed | bytes):
            new = _bits(draw, closed(here))
        else:
            new = draw(st.sampled_from(JUNK))
        value = replaced(value, path, new)
    return value


def _bits(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with some bits turned over, or cut off, or longer."""
    how = draw(st.sampled_from(("flip", "flip", "cut", "longer")))
    if how == "longer" or not data:
        return data + draw(st.binary(min_size=1, max_size=8))
    place = draw(st.integers(0, len(data) - 1))
    flipped = bytes([data[place] ^ (1 << draw(st.integers(0, 7)))])
    return data[:place] + (b"" if how == "cut" else flipped + data[place + 1 :])


@cache
def clusters() -> list[Cluster]:
    """Every cluster of every story."""
    return [cluster for name in STORIES for cluster in told(name, silent=True).clusters]


a_cluster = st.deferred(lambda: st.sampled_from(clusters()))


@st.composite
def cut_stories(draw: st.DrawFn) -> tuple[Cluster, int]:
    """A cluster, and how many of its entries are applied before the garbage comes."""
    cluster = draw(a_cluster)
    return cluster, draw(st.integers(0, len(cluster.entries) - 1))


@cache
def entries_by_op() -> dict[int, list[tuple[Cluster, int]]]:
    """Where in the stories each kind of op is called."""
    found: dict[int, list[tuple[Cluster, int]]] = {}
    for cluster in clusters():
        for place, data in enumerate(cluster.entries):
            for op in msgpack.unpackb(data)[3]:
                found.setdefault(msgpack.unpackb(op)[0], []).append((cluster, place))
    assert sorted(found) == sorted(OPS), "the stories call every op"
    return found


@st.composite
def spoilt_entries(draw: st.DrawFn) -> tuple[Cluster, int, bytes]:
    """A cluster, how many of its entries come first, and then the next one, with something wrong in it."""
    cluster, count = draw(st.sampled_from(entries_by_op()[draw(st.sampled_from(sorted(OPS)))]))
    data = cluster.entries[count]
    if not draw(st.integers(0, 7)):
        return cluster, count, _bits(draw, data)
    tree = opened(msgpack.unpackb(data))
    # The ops are what is worth spoiling; the head of an entry is little.
    tree = replaced(tree, (3, 0), spoilt(draw, tree[3][0])) if draw(st.integers(0, 5)) else spoilt(draw, tree)
    return cluster, count, packed(closed(tree))


def rows(machine: Machine) -> dict[bytes, bytes]:
    """The state but for the position."""
    stored = dict(machine.dump_rows())
    _, name, _, _, _, _, sequence, fence, chain, segment = msgpack.unpackb(stored.pop(b"m"))
    return stored | {b"m": packed([name, sequence, fence, chain, segment])}


def entry_of(*ops: Op) -> bytes:
    """The ops as an entry that moves no clock."""
    return packed([1, 0, 0, [pack_op(op) for op in ops]])


def opcount(data: bytes) -> int | None:
    """How many ops an entry has, by a reading of our own; None if it is no entry."""
    try:
        fields = msgpack.unpackb(data)
    except ValueError:
        return None
    if type(fields) is not list or [type(field) for field in fields] != [int, int, int, list]:
        return None
    version, clock_ms, wall_ms, ops = fields
    known = 1 <= version <= ENTRY_VERSION
    return len(ops) if known and all(0 <= at_ms <= MAX_TIME_MS for at_ms in (clock_ms, wall_ms)) else None


class Subject:
    """Two machines that are told the same, and the log of what came of it."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.name = cluster.name
        self.machine = Machine(cluster.name)
        self.records: list[Record] = []
        for data in cluster.entries[:count]:
            self.feed(data)
        self.twin = Machine.load_rows(self.machine.dump_rows())

    def feed(self, data: bytes) -> Any:
        applied = self.machine.apply(self.machine.applied_index + 1, TERM, data)
        self.records += applied.records
        return applied

    def suffer(self, data: bytes) -> Any:
        """Applies garbage, and looks what it did."""
        before = rows(self.machine)
        applied = self.feed(data)
        after = rows(self.machine)
        count = opcount(data)
        if count is None:
            assert applied.refused is not None
            assert (applied.refused.reason, applied[:2]) == (Reason.INVALID_ARGUMENT, ([], []))
        else:
            assert applied.refused is None
            assert len(applied.results) == count
        if not applied.records:
            assert after == before, "no event, and yet the state has changed"
        likewise = self.twin.apply(self.twin.applied_index + 1, TERM, data)
        assert [record.encoded for record in likewise.records] == [record.encoded for record in applied.records]
        assert [str(result) for result in likewise.results] == [str(result) for result in applied.results]
        return applied

    def is_well(self) -> None:
        """The machine works as it should, and its log says all that it knows."""
        live_a_life(self.machine, self.records)
        live_a_life(self.twin, [])
        assert self.machine.digest() == self.twin.digest()
        folded = fold(self.name, [Record.decode(record.encoded) for record in self.records])
        assert rows(folded) == rows(self.machine)


def live_a_life(machine: Machine, records: list[Record]) -> None:
    """Enqueue, lease, complete, in a namespace and by a peer of its own."""
    call = Call("after", "survivor")

    def do(op: Op) -> Any:
        applied = machine.apply(machine.applied_index + 1, TERM, entry_of(op))
        records.extend(applied.records)
        return applied.results[0]

    do(Configure(call, {"lease_duration_ms": 5000}))
    assert list(do(Enqueue(call, ItemColumns(2, "table", ["orders", "users"]).packed())).sequence_ids) == [1, 2]
    granted = do(Lease(call, 2))
    assert isinstance(granted, Granted)
    assert do(Complete(call, [1, 2], 1, list(granted.fences))) == Acked(2, {})


def fuzzing() -> settings:
    return settings(
        max_examples=EXAMPLES,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Half a gigabyte more than there is in use: who trusts a damaged number, fails before the computer does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


WRONG_HEADS = [packed([version, 0, 0, []]) for version in (0, ENTRY_VERSION + 1, True, 1.0, "1", None)]


@fuzzing()
@given(cut_stories(), st.lists(st.binary(max_size=200) | st.sampled_from(WRONG_HEADS), min_size=1, max_size=5))
def test_random_bytes_are_no_entry(story: tuple[Cluster, int], garbage: list[bytes]) -> None:
    subject = Subject(*story)
    for data in garbage:
        subject.suffer(data)
    subject.is_well()


@fuzzing()
@given(cut_stories(), st.lists(st.binary(max_size=60) | st.sampled_from(JUNK), max_size=4))
def test_random_ops_are_refused_one_by_one(story: tuple[Cluster, int], ops: list[Any]) -> None:
    subject = Subject(*story)
    data = packed([1, 0, 0, [*ops, pack_op(Enqueue(Call("jobs"), ItemColumns(1, "table", "orders").packed()))]])
    assume(data and opcount(data) is not None)
    applied = subject.suffer(data)
    assert all(isinstance(result, Refusal) for result in applied.results[:-1])
    assert isinstance(applied.results[-1], Enqueued)
    subject.is_well()


@fuzzing()
@given(spoilt_entries())
def test_spoilt_entries_change_nothing_unsaid(case: tuple[Cluster, int, bytes]) -> None:
    cluster, count, garbage = case
    subject = Subject(cluster, count)
    subject.suffer(garbage)
    # What comes after is the rest of the story, as it was meant, which may make sense or not.
    for data in cluster.entries[count : count + 5]:
        subject.suffer(data)
    subject.is_well()


@fuzzing()
@given(cut_stories(), st.sampled_from(sorted(OPS)), st.lists(st.sampled_from(JUNK), max_size=8), st.data())
def test_any_op_with_any_fields(story: tuple[Cluster, int], code: int, fields: list[Any], data: st.DataObject) -> None:
    subject = Subject(*story)
    call: list[Any] = ["jobs", "worker-1", "", "", 0, None]
    if data.draw(st.booleans()):
        call[data.draw(st.integers(0, 5))] = data.draw(st.sampled_from(JUNK))
    op = packed([code, call, *fields])
    assume(op)
    subject.suffer(packed([1, 0, 0, [op]]))
    subject.is_well()


def test_an_op_may_be_too_large() -> None:
    subject = Subject(clusters()[0], 5)
    (refusal,) = subject.suffer(entry_of(Enqueue(Call("jobs"), b"x" * MAX_OP_BYTES))).results
    assert (refusal.reason, refusal.field) == (Reason.INVALID_ARGUMENT, "op")
    subject.is_well()


def test_a_value_of_an_op_may_be_nested_deeply() -> None:
    """A thousand arrays in one another can be read, but neither compared nor told in words."""
    for calls in entries_by_op().values():
        cluster, count = calls[0]
        op = opened(msgpack.unpackb(cluster.entries[count]))[3][0]
        for path in every_path(op):
            subject = Subject(cluster, count)
            subject.suffer(packed(closed([1, 0, 0, [replaced(op, path, ABYSS)]])))


def test_any_value_of_a_record_may_be_nested_deeply_or_a_wild_number() -> None:
    for happened in records_by_type().values():
        cluster, place = happened[0]
        log = [record.encoded for record in cluster.records[: place + 1]]
        for changed in wildly_changed(log[place]):
            log[place] = changed
            with bounded_memory(), suppress(CorruptLog):
                fold(cluster.name, [Record.decode(encoded) for encoded in log])


def test_any_value_of_a_row_may_be_nested_deeply_or_a_wild_number() -> None:
    for there in rows_by_letter().values():
        number, place = there[0]
        kept = list(stored()[number])
        key, value = kept[place]
        for changed in wildly_changed(value):
            kept[place] = (key, changed)
            with bounded_memory(), suppress(CorruptLog):
                Machine.load_rows(kept)


def wildly_changed(data: bytes) -> Iterator[bytes]:
    """Packed data with each part of it in turn made an abyss, and each number any other."""
    tree = opened(msgpack.unpackb(data, strict_map_key=False))
    for path in every_path(tree):
        for wild in (ABYSS, *NUMBERS) if type(at(tree, path)) is int else (ABYSS,):
            yield packed(closed(replaced(tree, path, wild)))


def test_a_column_of_a_page_is_nothing_but_a_column() -> None:
    for number, page in enumerate(pages()):
        body, digest = opened(page).inner
        for path in every_path(body):
            for other in lookalikes(at(body, path)):
                machine = Machine("elsewhere")
                spoilt_page = closed(Packed([replaced(body, path, other), digest]))
                machine.apply(1, TERM, entry_of(Restore(Call("restored", "mover"), spoilt_page)))
                assert_items(machine, "restored", f"page {number}, {path}: {other!r}")


def every_path(value: Any, path: Way = ()) -> Iterator[Way]:
    """All the ways down into an opened value."""
    yield path
    inner = value.inner if isinstance(value, Packed) else value
    steps: Any = range(len(inner)) if type(inner) is list else inner if type(inner) is dict else ()
    for step in steps:
        yield from every_path(inner[step], (*path, step))


@cache
def pages() -> list[bytes]:
    """Every page that was drained in the stories."""
    found = []
    for cluster in clusters():
        for record in cluster.records:
            page = getattr(record.data, "page", None)
            if page and page not in found:
                found.append(page)
    return found


@st.composite
def spoilt_pages(draw: st.DrawFn) -> bytes:
    page = draw(st.sampled_from(pages()))
    if not draw(st.integers(0, 5)):
        return _bits(draw, page)
    body, digest = opened(page).inner
    fields = body.inner
    # Mostly it is the items that are worth spoiling: their columns, and what has happened to them.
    place = draw(st.sampled_from((7, 7, 7, 7, 8, -1, -1)))
    fields = spoilt(draw, fields) if place < 0 else replaced(fields, (place,), spoilt(draw, fields[place]))
    return bytes(closed(Packed([Packed(fields), digest])))


@fuzzing()
@given(spoilt_pages(), a_cluster)
def test_a_spoilt_page_brings_nothing_that_is_no_item(page: bytes, cluster: Cluster) -> None:
    subject = Subject(cluster, len(cluster.entries))
    (result,) = subject.suffer(entry_of(Restore(Call("restored", "mover"), page))).results
    if isinstance(result, Restored):
        assert assert_items(subject.machine, "restored") == result.restored
    subject.is_well()


def assert_items(machine: Machine, namespace: str, told: str = "") -> int:
    """Every field of every waiting item is of its type, as it is after an enqueue. Says how many there are."""
    ids = [*machine.pending_ids(namespace), *machine.delayed_ids(namespace)]
    for sequence_id in ids:
        view = machine.item(namespace, sequence_id)
        assert view is not None
        item = view.item
        assert [type(item.resource_type), type(item.resource_id)] == [str, str], told
        assert [type(item.priority), type(item.enqueued_at_ms)] == [int, int], told
        for kind, value in (
            (str, item.partition_key),
            (str, item.payload_encoding),
            (str, item.request_id),
            (bytes, item.body),
            (dict, item.attributes),
        ):
            assert value is None or type(value) is kind, told
    return len(ids)


@cache
def records_by_type() -> dict[EventType, list[tuple[Cluster, int]]]:
    """Where in the stories each type of event happens."""
    found: dict[EventType, list[tuple[Cluster, int]]] = {}
    for cluster in clusters():
        for place, record in enumerate(cluster.records):
            found.setdefault(record.type, []).append((cluster, place))
    assert sorted(found) == sorted(EventType), "every type of event happens in the stories"
    return found


@st.composite
def spoilt_logs(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """The log of a cluster with one record spoilt, left out or told twice."""
    cluster, place = draw(st.sampled_from(records_by_type()[draw(st.sampled_from(EventType))]))
    log = [record.encoded for record in cluster.records]
    how = draw(st.sampled_from(("spoil", "spoil", "spoil", "spoil", "bits", "gone", "twice", "swap")))
    if how == "spoil":
        log[place] = packed(closed(spoilt(draw, opened(msgpack.unpackb(log[place])))))
    elif how == "bits":
        log[place] = _bits(draw, log[place])
    elif how == "gone":
        del log[place]
    elif how == "twice":
        log.insert(place, log[place])
    else:
        other = draw(st.integers(0, len(log) - 1))
        log[place], log[other] = log[other], log[place]
    return cluster.name, log


@fuzzing()
@given(spoilt_logs())
def test_a_spoilt_log_is_corrupt_or_can_be_folded(case: tuple[str, list[bytes]]) -> None:
    name, log = case
    with bounded_memory(), suppress(CorruptLog):
        fold(name, [Record.decode(encoded) for encoded in log])


@cache
def stored() -> list[list[Row]]:
    """The rows of every cluster."""
    return [list(cluster.machine.dump_rows()) for cluster in clusters()]


@cache
def rows_by_letter() -> dict[bytes, list[tuple[int, int]]]:
    """Where each kind of row is, by the number of the cluster and its place there."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for number, kept in enumerate(stored()):
        for place, (key, _) in enumerate(kept):
            found.setdefault(key[:1], []).append((number, place))
    assert b"".join(sorted(found)) == b"abceghimnprsv", "every kind of row is there"
    return found


@st.composite
def spoilt_rows(draw: st.DrawFn) -> list[Row]:
    """The rows of a cluster with one of them spoilt, in its key or its value, left out or told twice."""
    kinds = rows_by_letter()
    number, place = draw(st.sampled_from(kinds[draw(st.sampled_from(sorted(kinds)))]))
    kept = list(stored()[number])
    key, value = kept[place]
    how = draw(st.sampled_from(("value", "value", "value", "value", "bits", "key", "gone", "twice", "swap")))
    if how == "value":
        kept[place] = (key, packed(closed(spoilt(draw, opened(msgpack.unpackb(value, strict_map_key=False))))))
    elif how == "bits":
        kept[place] = (key, _bits(draw, value))
    elif how == "key":
        kept[place] = (_bits(draw, key), value)
    elif how == "gone":
        del kept[place]
    elif how == "twice":
        kept.append(kept[place])
    else:
        other = draw(st.integers(0, len(kept) - 1))
        kept[place] = (key, kept[other][1])
    return kept


@fuzzing()
@given(spoilt_rows())
def test_spoilt_rows_are_corrupt_or_can_be_loaded(kept: Sequence[Row]) -> None:
    with bounded_memory(), suppress(CorruptLog):
        Machine.load_rows(kept)
