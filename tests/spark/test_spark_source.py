"""The data source in a running Spark."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sparkstory import Story, Teller, many, more

from resourcelease.model import limits
from resourcelease.spark import register
from resourcelease.storage.segments import SegmentFile, segment_paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 5_000)


def load(spark: "SparkSession", *paths: Path, **options: Any) -> "DataFrame":
    reader = spark.read.format("resourcelease").options(**options)
    return reader.load(list(map(str, paths)) if len(paths) > 1 else str(paths[0]))


def counted(table: "DataFrame") -> Counter[tuple[str, str]]:
    return Counter({(row[0], row[1]): row[2] for row in table.groupBy("namespace", "type").count().collect()})


def truth(story: Story) -> Counter[tuple[str, str]]:
    return Counter((event.namespace, event.type.name) for event in story.events)


def test_spark_starts_without_a_word(first_words: "tuple[SparkSession, str]") -> None:
    assert first_words[1] == ""


def test_rows_by_type_and_namespace_are_those_of_the_log(spark: "SparkSession", tmp_path: Path) -> None:
    log, twin = many(tmp_path / "n1", 30), many(tmp_path / "n2", 40, node="n2")
    assert counted(load(spark, log.directory)) == truth(log)
    # Of two directories each event is read once.
    assert counted(load(spark, log.directory, twin.directory)) == truth(twin)
    assert counted(load(spark, tmp_path / "n*")) == truth(twin)


def test_what_a_row_holds(spark: "SparkSession", story: Story) -> None:
    rows = load(spark, story.directory).orderBy("sequence_number").collect()
    born, failed = rows[2], rows[8]
    assert (born.type, born.payload.resource_id, bytes(born.payload.body)) == ("ENQUEUE", "users", b"users" * 5)
    assert failed.error.asDict() == {"code": "E_DISK", "message": "no space", "metadata": {"disk": "sda"}}
    assert failed.handle.asDict() == {"sequence_id": 2, "attempt": 1, "lease_id": 2}
    assert rows[9].metadata == {"cause": "failed"}
    assert [row.sequence_number for row in rows] == list(range(1, 25))


def test_queries_of_one_load_do_not_mix(spark: "SparkSession", story: Story) -> None:
    """Spark up to 4.3 answers queries from what it pushed down for earlier ones of the load, if a source lets it."""
    table = load(spark, story.directory)
    few = table.where("sequence_number <= 3")
    assert (few.count(), table.count(), few.count()) == (3, 24, 3)
    assert few.union(table.where("sequence_number > 20")).count() == 7
    assert few.join(table, "sequence_number").count() == 3
    assert few.crossJoin(table.where("type = 'COMPLETED'").select("type")).count() == 6


def test_options_leave_unread_what_is_not_wanted(spark: "SparkSession", tmp_path: Path) -> None:
    """The last file is damaged, and is looked at only by those who want it."""
    log = many(tmp_path / "n1", 30)
    path, offset = damaged(log)
    table = load(spark, log.directory, toSequence=200, types="COMPLETED,LEASE_GRANTED", columns="type,sequence_number")
    wanted = [event for event in log.events if event.sequence_number <= 200 and event.type in (2, 4)]
    assert table.columns == ["type", "sequence_number"]
    assert sorted(row[1] for row in table.collect()) == [event.sequence_number for event in wanted]
    with pytest.raises(Exception, match=rf"{path}: at byte {offset}: the frame that begins here"):
        load(spark, log.directory).count()


def test_filters_are_pushed_down_where_that_was_asked_for(spark: "SparkSession", tmp_path: Path) -> None:
    log = many(tmp_path / "n1", 30)
    damaged(log)
    register(spark, push_filters=True)
    try:
        few = load(spark, log.directory).where("sequence_number between 50 and 90 and type in ('COMPLETED', 'ENQUEUE')")
        wanted = [e for e in log.events if 50 <= e.sequence_number <= 90 and e.type in (1, 4)]
        assert few.count() == len(wanted)
        timed = load(spark, log.directory).where("occurred_at < timestamp'2026-01-05 09:00:02' and namespace = 'jobs'")
        until = 1_767_603_602_000
        assert timed.count() == len([e for e in log.events if e.occurred_at_ms < until and e.namespace == "jobs"])
        either = load(spark, log.directory, toSequence=100).where("peer_id = 'etl' or sequence_number = 3")
        assert either.count() == len([e for e in log.events[:100] if e.peer_id == "etl" or e.sequence_number == 3])
    finally:
        register(spark)


def damaged(log: Story) -> tuple[Path, int]:
    """Changes a byte in the last frame of the last sealed file; which file, and where the frame begins."""
    path = segment_paths(log.directory)[-2][1]
    with SegmentFile(path) as file:
        assert file.footer is not None
        offset = file.footer.frames[-1].offset
        end = file.footer.offset
    data = bytearray(path.read_bytes())
    data[end - 1] ^= 1
    path.write_bytes(data)
    return path, offset


def test_a_schema_prunes_columns_and_fields(spark: "SparkSession", story: Story) -> None:
    reader = spark.read.format("resourcelease").schema("type string, payload struct<resource_id: string>")
    rows = reader.load(str(story.directory)).where("type = 'ENQUEUE'").collect()
    assert [row.payload.resource_id for row in rows] == ["orders", "users", "parts", "late", "other"]
    assert rows[0].asDict(recursive=True) == {"type": "ENQUEUE", "payload": {"resource_id": "orders"}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"toSequenze": 3}, "(?i)there is no option toSequenze"),
        ({"columns": "typ"}, "an event has no typ"),
        ({"path": "/nowhere"}, "/nowhere: there is no log here"),
    ],
)
def test_mistakes_are_told(spark: "SparkSession", story: Story, options: dict[str, Any], said: str) -> None:
    options = {"path": str(story.directory)} | options
    with pytest.raises(Exception, match=said):
        spark.read.format("resourcelease").options(**options).load().count()


def test_a_stream_goes_on_from_its_checkpoint_and_sees_each_event_once(spark: "SparkSession", tmp_path: Path) -> None:
    teller = Teller(tmp_path / "n1", frame_bytes=2_000)
    seen: list[int] = []

    def run() -> None:
        stream = spark.readStream.format("resourcelease").option("maxEventsPerTrigger", 100)
        table = stream.option("columns", "sequence_number,type").load(str(tmp_path / "n1"))
        target = tmp_path / "out"
        query = (
            table.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(target))
        )
        query.awaitTermination()
        seen[:] = sorted(row[0] for row in spark.read.parquet(str(target)).select("sequence_number").collect())
        assert all(progress["numInputRows"] <= 100 for progress in query.recentProgress)

    more(teller, 0, 8)
    run()
    first = len(seen)
    assert seen == list(range(1, first + 1))
    # The query ended, Spark forgot it, and the log went on, over several files.
    more(teller, 8, 12)
    run()
    story = teller.close()
    assert seen == [event.sequence_number for event in story.events]
    assert len(segment_paths(story.directory)) > 2
    assert first < len(seen)


def test_a_stream_that_lags_behind_retention_is_told(spark: "SparkSession", tmp_path: Path) -> None:
    log = many(tmp_path / "n1", 20)
    for _, path in segment_paths(log.directory)[:1]:
        path.unlink()
    stream = spark.readStream.format("resourcelease").option("fromSequence", 1).load(str(log.directory))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="event 1 is not kept here any more: the first that can be had is"):
        query.processAllAvailable()
    query.stop()


def test_a_session_of_ours_logs_errors_and_nothing_else(spark: "SparkSession") -> None:
    """By a configuration that is there from the start, so that Spark does not tell that it was missing."""
    assert spark._jvm is not None
    manager = spark._jvm.org.apache.logging.log4j.LogManager
    at = manager.getContext(False).getConfiguration().getConfigurationSource().getLocation()
    assert at.endswith("resourcelease/spark/log4j2.properties")
    for logger in (manager.getRootLogger(), manager.getLogger("org.apache.spark.api.python.PythonGatewayServer")):
        assert logger.getLevel().toString() == "ERROR"
