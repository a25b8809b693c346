"""Which files are read, and how much of them. No Spark runs here."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from sparkstory import WALL_MS, Story, Teller, many, more

from resourcelease.model import limits
from resourcelease.spark.columns import EVENT_SCHEMA, arrow_schema
from resourcelease.spark.filters import NOTHING, narrowed
from resourcelease.spark.options import LoadOptions
from resourcelease.spark.plan import Catalog, Piece, log_directories, pieces
from resourcelease.spark.reading import read_piece
from resourcelease.spark.source import PushingReader
from resourcelease.spark.stream import EventStream
from resourcelease.storage.segments import (
    CorruptSegment,
    Damage,
    Frame,
    HistoryGone,
    HistoryMissing,
    Query,
    SegmentFile,
    segment_paths,
)

SCHEMA = arrow_schema(EVENT_SCHEMA)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 5_000)


@pytest.fixture
def log(tmp_path: Path) -> Story:
    return many(tmp_path / "n1", 60)


@pytest.fixture
def read_frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first event of every frame that is read."""
    seen: list[int] = []

    def counting(name: str) -> None:
        usual: Callable[[Frame], Any] = getattr(Frame, name)

        def counted(frame: Frame) -> Any:
            seen.append(frame.meta.span.first)
            return usual(frame)

        monkeypatch.setattr(Frame, name, counted)

    counting("entries")
    counting("joined")
    return seen


def numbers(found: list[Piece], query: Query = Query()) -> list[int]:  # noqa: B008
    batches = [batch for piece in found for batch in read_piece(piece, query, SCHEMA)]
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def plan(*directories: Path, first: int = 0, last: int = 0, query: Query = Query()) -> list[Piece]:  # noqa: B008
    return pieces(Catalog(log_directories(map(str, directories))).holdings(), first, last, query)


def test_each_file_is_a_piece_and_each_event_is_in_one(log: Story) -> None:
    found = plan(log.directory)
    assert len(found) == len(segment_paths(log.directory)) > 4
    assert numbers(found) == [event.sequence_number for event in log.events]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (17, 17), (100, 900), (1_000, 0), (0, 333)])
def test_a_range_is_met_to_the_event(log: Story, first: int, last: int) -> None:
    found = plan(log.directory, first=first, last=last)
    assert numbers(found) == list(range(first or 1, (last or len(log.events)) + 1))


def test_filters_let_frames_be_left_unread(log: Story, read_frames: list[int]) -> None:
    everything = numbers(plan(log.directory))
    frames = len(read_frames)
    read_frames.clear()
    reader = PushingReader(LoadOptions.of({"path": str(log.directory)}), EVENT_SCHEMA)
    left = list(
        reader.pushFilters(
            [IsNotNull(("type",)), GreaterThan(("sequence_number",), 800), In(("type",), ("COMPLETED",))]
        )
    )
    parts = reader.partitions()
    got = [row for part in parts for batch in reader.read(part) for row in batch.column(0).to_pylist()]
    wanted = [
        event.sequence_number for event in log.events if event.sequence_number > 800 and event.type.name == "COMPLETED"
    ]
    assert got == wanted
    assert left == []
    assert len(parts) < len(plan(log.directory))
    assert 0 < len(read_frames) < frames / 2, f"{len(read_frames)} of {frames} for {len(got)} of {len(everything)}"


def test_namespaces_and_times_let_frames_be_left_unread(log: Story, read_frames: list[int]) -> None:
    options = {"namespaces": "billing", "fromTime": moment(20_000).isoformat(), "toTime": moment(29_000).isoformat()}
    chosen = LoadOptions.of({"path": str(log.directory)} | options)
    got = numbers(plan(log.directory, query=chosen.query), chosen.query)
    until = WALL_MS + 29_000
    wanted = [
        event.sequence_number
        for event in log.events
        if event.namespace == "billing" and WALL_MS + 20_000 <= event.occurred_at_ms <= until
    ]
    assert got == wanted != []
    assert len(read_frames) <= 20


def test_types_are_known_in_capitals_or_not() -> None:
    given = [
        LoadOptions.of({"path": "n1", "types": text}).query for text in ("completed, Enqueue", "COMPLETED,ENQUEUE")
    ]
    assert given[0] == given[1] != LoadOptions.of({"path": "n1"}).query


def moment(ms: int, microseconds: int = 0) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=WALL_MS + ms, microseconds=microseconds)


TIMES = [moment(0, part) for part in (0, 1, 999)]


@pytest.mark.parametrize("at", TIMES, ids=str)
@pytest.mark.parametrize("kind", [GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo])
def test_times_between_milliseconds_are_met_exactly(kind: Any, at: datetime) -> None:
    compare: dict[Any, Any] = {
        GreaterThan: datetime.__gt__, GreaterThanOrEqual: datetime.__ge__, LessThan: datetime.__lt__,
        LessThanOrEqual: datetime.__le__, EqualTo: datetime.__eq__,
    }  # fmt: skip
    query = narrowed(Query(), kind(("occurred_at",), at))
    assert query is not None
    for ms in range(-3, 4):
        kept = query != NOTHING and query._in_time(WALL_MS + ms, WALL_MS + ms)
        assert kept == compare[kind](moment(ms), at), f"{ms} ms"


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (GreaterThan(("sequence_number",), 3), [4, 5]),
        (GreaterThanOrEqual(("sequence_number",), 3), [3, 4, 5]),
        (LessThan(("sequence_number",), 3), [1, 2]),
        (LessThanOrEqual(("sequence_number",), 0), []),
        (EqualTo(("sequence_number",), 3), [3]),
        (EqualTo(("type",), "NO_SUCH"), []),
        (EqualTo(("namespace",), "no such"), []),
    ],
    ids=str,
)
def test_what_a_filter_keeps(log: Story, one: object, kept: list[int]) -> None:
    query = narrowed(Query(last=5), one)
    assert query is not None
    assert numbers(plan(log.directory, last=5, query=query), query) == kept


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("type",), "ENQUEUE")),
        In(("sequence_number",), (1, 5)),
        GreaterThan(("type",), "A"),
        EqualTo(("peer_id",), "p1"),
        EqualTo(("handle", "sequence_id"), 1),
        IsNotNull(("payload",)),
        EqualTo(("type",), None),
    ],
    ids=str,
)
def test_what_the_log_cannot_tell_is_left_to_spark(one: object) -> None:
    assert narrowed(Query(), one) is None


def test_two_directories_are_one_log(log: Story, tmp_path: Path) -> None:
    twin = many(tmp_path / "n2", 70, node="n2")
    paths = [path for _, path in segment_paths(log.directory)]
    paths[0].unlink()
    for _, path in segment_paths(twin.directory)[2:4]:
        path.unlink()
    found = plan(log.directory, twin.directory)
    assert numbers(found) == [event.sequence_number for event in twin.events]
    with pytest.raises(HistoryMissing, match="are missing"):
        plan(twin.directory)


def test_another_clusters_log_is_refused(log: Story, tmp_path: Path) -> None:
    other = Teller(tmp_path / "other", cluster="c2")
    more(other, 0, 1)
    other.close()
    with pytest.raises(CorruptSegment, match="the log of cluster c2") as caught:
        plan(log.directory, tmp_path / "other")
    assert caught.value.kind is Damage.STRANGER


def test_a_node_that_diverged_is_named(log: Story, tmp_path: Path) -> None:
    other = Teller(tmp_path / "n2", frame_bytes=2_000, node="n2")
    more(other, 1, 60)
    other.close()
    with pytest.raises(CorruptSegment, match="its digest is not that of") as caught:
        plan(log.directory, tmp_path / "n2")
    assert caught.value.kind is Damage.UNCHAINED


def test_a_missing_file_is_named_by_its_events(log: Story) -> None:
    paths = segment_paths(log.directory)
    paths[2][1].unlink()
    with pytest.raises(HistoryMissing) as caught:
        plan(log.directory)
    assert (caught.value.first, caught.value.last) == (paths[2][0], paths[3][0] - 1)


def test_what_was_retired_is_said_to_be_gone(log: Story) -> None:
    paths = segment_paths(log.directory)
    paths[0][1].unlink()
    assert numbers(plan(log.directory))[0] == paths[1][0]
    with pytest.raises(HistoryGone, match=f"the first that can be had is {paths[1][0]}"):
        plan(log.directory, first=1)


def test_verify_finds_what_the_checksums_do_not(log: Story) -> None:
    first, second = (path for _, path in segment_paths(log.directory)[:2])
    with SegmentFile(first) as file:
        start = file.start
    data = bytearray(first.read_bytes())
    # Another chain in the header, with checksums that fit.
    chain = data.index(b"chain") + 7
    data[chain] ^= 1
    fix_checksums(data, start)
    first.write_bytes(data)
    found = plan(log.directory)
    assert numbers(found)
    with pytest.raises(CorruptSegment, match="does not chain up"):
        list(read_piece(found[0], Query(), SCHEMA, verify=True))
    assert second.exists()


def fix_checksums(data: bytearray, end: int) -> None:
    import struct
    import zlib

    data[16:20] = struct.pack(">I", zlib.crc32(data[24:end]))
    data[20:24] = struct.pack(">I", zlib.crc32(data[:20]))


def test_a_stream_reads_what_comes_once_and_only_the_new_frames(tmp_path: Path, read_frames: list[int]) -> None:
    teller = Teller(tmp_path / "n1", frame_bytes=2_000)
    more(teller, 0, 2)
    stream = EventStream(LoadOptions.of({"path": str(tmp_path / "n1")}), EVENT_SCHEMA)
    at, got = stream.initialOffset(), []
    for rounds in range(2, 40):
        read_frames.clear()
        end = stream.latestOffset(at)
        parts = [part.value for part in stream.partitions(at, end)]
        got += numbers(parts)
        # Of the open file and of those that were finished since: not what had been read before.
        assert all(first >= at["next"] - 40 for first in read_frames)
        at = end
        more(teller, rounds, 1)
    got += numbers([part.value for part in stream.partitions(at, stream.latestOffset(at))])
    story = teller.close()
    assert got == [event.sequence_number for event in story.events]
    assert list(stream.partitions(at, at)) == []


def test_an_empty_log_is_a_stream_that_begins_where_the_log_does(tmp_path: Path) -> None:
    (tmp_path / "n1" / "segments").mkdir(parents=True)
    stream = EventStream(LoadOptions.of({"path": str(tmp_path / "n1")}), EVENT_SCHEMA)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin)
    assert stream.partitions(begin, end) == []
    more(teller := Teller(tmp_path / "n1" / "segments"), 0, 2)
    story = teller.close()
    found = stream.partitions(end, stream.latestOffset(end))
    assert numbers([part.value for part in found]) == [event.sequence_number for event in story.events]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fromSequenze": "1"}, "there is no option fromSequenze"),
        ({"fromSequence": "one"}, "fromSequence is 'one'"),
        ({"fromSequence": "9", "toSequence": "3"}, "lies behind"),
        ({"types": "ENQUEUED"}, "there is no type ENQUEUED"),
        ({"verify": "yes"}, "true or false"),
        ({"fromTime": "yesterday"}, "must look like"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LoadOptions.of({"path": "/x"} | options)


def test_paths_may_be_nodes_segments_or_patterns(log: Story, tmp_path: Path) -> None:
    node = tmp_path / "node"
    shutil.copytree(log.directory, node / "segments")
    assert log_directories([str(node)]) == [node / "segments"]
    assert log_directories([f"file://{node}/segments"]) == [node / "segments"]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "data").symlink_to(node)
    assert log_directories([str(tmp_path / "dev")]) == [node / "segments"]
    assert log_directories([str(tmp_path / "n*")]) == [log.directory, node / "segments"]
    with pytest.raises(FileNotFoundError, match="there is no log here"):
        log_directories([str(tmp_path / "nothing")])


def test_spark_may_ask_for_a_partition_where_there_is_none(log: Story) -> None:
    reader = PushingReader(LoadOptions.of({"path": str(log.directory)}), EVENT_SCHEMA)
    assert list(reader.read(InputPartition(None))) == []
