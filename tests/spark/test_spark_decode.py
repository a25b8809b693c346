"""Records as columns: the same events as ``Record.events`` spells out, for logs of every type. No Spark runs here."""

import json
import random
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sparkstory import many

from resourcelease.model import limits
from resourcelease.model.eventdata import DATA, EventType
from resourcelease.model.events import Event, Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call
from resourcelease.spark.arrays import Rows
from resourcelease.spark.batch import NOT_A_RECORD, EventBatch
from resourcelease.spark.columns import EVENT_SCHEMA, arrow_schema, checked_schema
from resourcelease.spark.handles import handles_of
from resourcelease.spark.items import payloads
from resourcelease.spark.plan import Piece
from resourcelease.spark.reading import read_piece
from resourcelease.storage.segments import CorruptSegment, Frame, Query, segment_paths

SCHEMA = arrow_schema(EVENT_SCHEMA)


def test_arrow_columns_are_those_that_spark_expects() -> None:
    assert to_arrow_schema(EVENT_SCHEMA, timezone="UTC").equals(SCHEMA)


def test_a_column_that_no_event_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no column payload\.size of type bigint"):
        checked_schema(StructType().add("payload", StructType().add("size", "long")))


# Values for columns of data; what a machine would not do is no matter here.
VALUES: dict[str, Any] = {
    "first_id": 7, "first_fence": 90, "deadline_ms": 5, "attempts": [1, 2], "sequence_ids": [4, 9], "fences": [11, 3],
    "failures": [["E", "m", {"a": "b"}], ["F", "", None]], "due_ms": [0, 30], "cause": "failed", "bundle_id": "b",
    "number": 2, "more": True, "places": [1, 0], "active": True, "high": 9, "low": 2, "options": {"capacity": 5},
    "paused": False, "peer": "p9", "change": "joined", "reason": "why", "kind": "begin", "id": "e", "sequence_id": 4,
    "attempt": 2, "fence": 8, "value": None, "message": "said",
}  # fmt: skip


def record(type_: EventType, count: int = 2, **changes: Any) -> Record:
    data = DATA[type_]
    items = ItemColumns(count, "table", [f"r{place}" for place in range(count)], attributes=[{"k": "v"}, None][:count])
    columns = [
        [["table"] * 2, ["a", "b"], ["pk", None], [None] * 2, [None] * 2, [b"x", None], ["", "q"], [4, 5], [1, 2]]
    ]
    page = msgpack.packb((msgpack.packb((1, "c", "n", "b", 0, 0, [4, 9], *columns)), b""))
    values = VALUES | {"columns": items.packed(), "page": page} | changes
    made = Record(
        type_,
        data(**{name: values[name] for name in data._fields}),
        call=Call("resourcelease.eu", "p1", "alice", "op-1", 0, {"trace": "t"}),
        count=count,
    )
    made.sequence, made.index, made.term, made.clock_ms, made.wall_ms, made.pending, made.active = (
        100,
        7,
        2,
        50,
        60,
        3,
        1,
    )
    return made


SINGLE = ("BACKPRESSURE", "CONFIGURED", "PEER_CHANGED", "EFFECT", "REJECTED")
RECORDS = [
    *[record(type_, 1 if type_.name in SINGLE else 2) for type_ in EventType if type_ is not EventType.REDRIVEN],
    record(EventType.REDRIVEN, due_ms=70),
    record(EventType.HEARTBEAT, 1, sequence_ids=[], attempts=0, fences=[]),
    record(EventType.COMPLETED, attempts=3),
    record(EventType.FAILED, failures=[["E", "for both", None]]),
    record(EventType.FAILED, failures=None),
    record(EventType.REQUEUED, due_ms=70, attempts=1),
    record(EventType.EFFECT, 1, kind="finish", value=b"result"),
    record(EventType.EFFECT, 1, kind="version", value=3, fence=0),
    record(EventType.DRAIN_SNAPSHOT, 1, sequence_ids=[], attempts=0, page=b""),
]


@pytest.mark.parametrize("one", RECORDS, ids=[f"{place}-{one.type.name}" for place, one in enumerate(RECORDS)])
def test_the_columns_of_each_type_are_its_events(one: Record) -> None:
    batch = EventBatch(SCHEMA)
    batch.add(msgpack.unpackb(one.encode()))
    rows = batch.finish(0, 1 << 60).to_pylist()
    check(rows, list(one.events()))


def test_records_of_all_types_in_one_batch_keep_apart() -> None:
    draw = random.Random(5)
    mixed = [draw.choice(RECORDS) for _ in range(400)]
    batch, expected = EventBatch(SCHEMA), []
    for one in mixed:
        batch.add(msgpack.unpackb(one.encode()))
        expected += list(one.events())
    made = batch.finish(0, 1 << 60)
    made.validate(full=True)
    check(made.to_pylist(), expected)


@pytest.mark.parametrize("order", ["EC", "CE", "CEC", "ECCE", "CCEECC", "EE", "CC", "C" * 40 + "E"])
@pytest.mark.parametrize("bodies", [[b"first", b""], [b"", b"second"], [None, b"x"], None], ids=str)
def test_items_stand_in_their_rows_wherever_they_are(order: str, bodies: list[bytes | None] | None) -> None:
    columns = ItemColumns(2, "table", ["r0", "r\u00e9"], body=bodies, priority=[3, 9]).packed()
    kinds = {"E": record(EventType.ENQUEUE, columns=columns), "C": record(EventType.COMPLETED)}
    batch, expected = EventBatch(SCHEMA), []
    for letter in order:
        batch.add(msgpack.unpackb(kinds[letter].encode()))
        expected += list(kinds[letter].events())
    made = batch.finish(0, 1 << 60)
    made.validate(full=True)
    check(made.to_pylist(), expected)


@pytest.mark.parametrize("cut", [0, 5, 19, 21, 1000])
def test_items_that_begin_in_one_record_and_end_in_another_are_none(cut: int) -> None:
    item = msgpack.packb([1, "table", "a", None, None, None, b"body", None, 0, None])
    kind = pa.struct([("body", pa.binary())])
    whole = payloads(kind, Rows([1, 1]), [EventType.ENQUEUE] * 2, [1, 1], [[1, item], [1, item]])
    assert len(whole) == 2
    datas = [[1, (item + item)[:cut]], [1, (item + item)[cut:]]]
    with pytest.raises(NOT_A_RECORD):
        payloads(kind, Rows([1, 1]), [EventType.ENQUEUE] * 2, [1, 1], datas)


def test_a_column_with_one_value_too_many_and_another_with_one_too_few_is_no_record() -> None:
    batch = EventBatch(SCHEMA)
    for fences in ([11, 3, 5], [11]):
        batch.add(msgpack.unpackb(record(EventType.COMPLETED, fences=fences).encode()))
    with pytest.raises(ValueError, match="as many values as there are events"):
        batch.finish(0, 1 << 60)


@pytest.mark.parametrize("deadline", [0, 5, None, "x"], ids=str)
def test_a_grant_tells_its_deadline_if_it_has_one(deadline: Any) -> None:
    fields = msgpack.unpackb(record(EventType.LEASE_GRANTED).encode())
    fields[12], fields[16][3] = None, deadline
    batch = EventBatch(SCHEMA)
    batch.add(fields)
    told = {"deadline_ms": str(deadline)} if deadline else {}
    rows = batch.finish(0, 1 << 60).to_pylist()
    assert [dict(row["metadata"]) for row in rows] == [told | {"operation_id": "op-1"}] * 2


def check(rows: list[dict[str, Any]], events: list[Event]) -> None:
    assert len(rows) == len(events)
    for row, event in zip(rows, events, strict=True):
        assert plain(row) == told(event, row)


def told(event: Event, row: dict[str, Any]) -> dict[str, Any]:
    """An event in the words of a row."""
    fields = event._asdict()
    fields["type"] = event.type.name
    fields["occurred_at"] = event.occurred_at_ms
    fields["lease_clock"] = event.lease_clock_ms
    fields["handle"] = event.handle and dict(zip(("sequence_id", "attempt", "lease_id"), event.handle, strict=True))
    fields["error"] = event.error and dict(zip(("code", "message", "metadata"), event.error, strict=True))
    fields["queue"] = {"pending": event.pending, "active": event.active}
    fields["payload"] = event.payload and {name: getattr(event.payload, name) for name in row["payload"]}
    if event.type is EventType.RESTORE_SNAPSHOT:  # a row says more: the item, from the page
        fields["payload"] = plain(row)["payload"]
        assert fields["payload"]["resource_id"] in ("a", "b")
    metadata = dict(event.metadata)
    if metadata.get("due_ms", "").startswith("["):  # a row says its own
        own = json.loads(metadata.pop("due_ms"))[[11, 3].index(event.handle.lease_id)] if event.handle else 0
        metadata |= {"due_ms": str(own)} if own else {}
    fields["metadata"] = metadata
    return {name: fields[name] for name in row}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with maps as dicts and the time in milliseconds."""
    row = dict(row, metadata=dict(row["metadata"]), occurred_at=round(row["occurred_at"].timestamp() * 1000))
    for name, texts in (("payload", "attributes"), ("error", "metadata")):
        if row[name] is not None and row[name][texts] is not None:
            row[name] = dict(row[name], **{texts: dict(row[name][texts])})
    return row


def test_only_what_is_asked_for_is_built() -> None:
    schema = arrow_schema(StructType().add("payload", StructType().add("resource_id", "string")).add("type", "string"))
    batch = EventBatch(schema)
    batch.add(msgpack.unpackb(record(EventType.ENQUEUE).encode()))
    rows = [{"payload": {"resource_id": name}, "type": "ENQUEUE"} for name in ("r0", "r1")]
    assert batch.finish(0, 1 << 60).to_pylist() == rows


def test_every_type_has_handles_or_says_that_it_has_none() -> None:
    for one in RECORDS:
        handles_of(one.type, one.count, msgpack.unpackb(one.encode())[16])


@pytest.mark.parametrize("place", range(17))
@pytest.mark.parametrize("value", [None, -1, "x", [], 1 << 70], ids=str)
def test_a_record_that_is_none_is_an_error_of_a_known_kind(place: int, value: Any) -> None:
    for one in RECORDS[:4]:
        fields = msgpack.unpackb(one.encode())
        fields[place] = value
        batch = EventBatch(SCHEMA)
        try:
            batch.add(fields)
            batch.finish(0, 1 << 60)
        except (*NOT_A_RECORD, pa.ArrowException):
            continue


def test_records_that_do_not_follow_each_other_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 1 << 30)
    many(tmp_path, 3)
    path = segment_paths(tmp_path)[0][1]
    joined = Frame.joined
    monkeypatch.setattr(Frame, "joined", lambda frame: shifted(joined(frame)))
    with pytest.raises(CorruptSegment, match="event 2 stands where 1 belongs") as caught:
        list(read_piece(Piece(str(path), 1, 20), Query(), SCHEMA))
    assert caught.value.path == path


def shifted(joined: memoryview) -> memoryview:
    """Records that all begin an event later than they should."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(joined)
    return memoryview(b"".join(msgpack.packb([*value[:2], value[2] + 1, *value[3:]]) for value in unpacker))


def test_records_that_are_not_as_many_as_they_should_be_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(tmp_path, 3)
    path = segment_paths(tmp_path)[0][1]
    joined = Frame.joined
    for damage in (lambda content: content[:-1], lambda content: memoryview(bytes(content) + b"\x01")):
        monkeypatch.setattr(Frame, "joined", lambda frame, damage=damage: damage(joined(frame)))
        with pytest.raises(CorruptSegment, match="more records or fewer"):
            list(read_piece(Piece(str(path), 1, 20), Query(), SCHEMA))


def test_no_batch_looks_for_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where NumPy is not installed, pyarrow looks for it at every conversion that was not told a type.
    class Watch:
        sought: ClassVar[list[str]] = []

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            self.sought.append(name)

    for attempt in range(2):
        batch = EventBatch(SCHEMA)
        for one in RECORDS:
            batch.add(msgpack.unpackb(one.encode()))
        if attempt:
            monkeypatch.setattr(sys, "meta_path", [Watch(), *sys.meta_path])
        batch.finish(0, 1 << 60)
    assert not Watch.sought
