"""Works a log's lineage out and writes it down: tables, run events, and the report."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from resourcelease.spark import register
from resourcelease.spark.lineage import Lineage, load_events
from resourcelease.spark.lineage_anomalies import anomalies
from resourcelease.spark.openlineage import run_events
from resourcelease.spark.plan import Catalog, Holding, log_directories, pieces
from resourcelease.spark.report import Findings, page
from resourcelease.storage.segments import Query

__all__ = ["STEPS", "Summary", "write_lineage"]

# What is done, in order; progress is told by these names.
STEPS = ("spans", "items", "times", "failures", "churn", "activity", "anomalies", "openlineage", "report")
_MARK = "lineage.json"
# How much of a table stands in the report.
_ROWS = 200
_BUSIEST, _LEASES = 12, 400


class Summary(NamedTuple):
    """What came out."""

    cluster_id: str
    first: int
    last: int
    events: int
    leases: int
    items: int
    anomalies: dict[str, int]
    directory: str


def write_lineage(
    spark: SparkSession,
    paths: Sequence[str],
    out: Path,
    *,
    first: int = 0,
    last: int = 0,
    verify: bool = False,
    progress: Callable[[str], object] = lambda step: None,
) -> Summary:
    """Reads logs as one, and writes everything into ``out``, which may hold an earlier report but nothing else.

    ``progress`` is called before each of ``STEPS``. A log without events is refused with ValueError.
    """
    holdings = Catalog(log_directories(paths)).holdings()
    found = pieces(holdings, first, last, Query())
    if not found:
        raise ValueError(f"{', '.join(paths)}: there are no events yet")
    cluster_id = holdings[0].header.cluster_id
    begin, end = found[0].first, found[-1].last
    _prepare(out)
    register(spark)
    # The end is fixed, so that all tables tell of the same events while the log goes on.
    events = load_events(spark, *paths, fromSequence=begin, toSequence=end, verify=verify)
    job = _Job(spark, out, events, cluster_id, progress)
    with job.kept():
        counted = job.run()
    summary = Summary(
        cluster_id, begin, end, end - begin + 1, counted["spans"], counted["items"], job.anomalies, str(out)
    )
    (out / "report.html").write_text(page(job.findings(summary, holdings)), encoding="utf-8")
    (out / _MARK).write_text(json.dumps(summary._asdict(), indent=2) + "\n", encoding="utf-8")
    return summary


def _prepare(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a directory")
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
        raise FileExistsError(f"{out} holds something else than a report; name an empty directory")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).write_text("{}\n", encoding="utf-8")


class _Job:
    """One run; every table is written before the next is worked out from it."""

    def __init__(
        self, spark: SparkSession, out: Path, events: DataFrame, cluster_id: str, progress: Callable[[str], object]
    ) -> None:
        self._spark = spark
        self._out = out
        self._cluster_id = cluster_id
        self._progress = progress
        self._events = events
        self._tables: dict[str, DataFrame] = {}
        self.anomalies: dict[str, int] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the events that were read, so that the log is read once."""
        from pyspark import StorageLevel

        self._events.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield
        finally:
            self._events.unpersist()

    def run(self) -> Mapping[str, int]:
        """Writes all tables and the run events; how many rows the tables have."""
        lineage = Lineage(self._events)
        lineage = lineage.with_spans(self._write("spans", lineage.spans().repartitionByRange("granted_sequence")))
        makers: dict[str, Callable[[], DataFrame]] = {
            "items": lineage.items,
            "times": lineage.times,
            "failures": lineage.failures,
            "churn": lineage.churn,
            "activity": lineage.activity,
            "anomalies": lambda: anomalies(lineage),
        }
        for name, make in makers.items():
            self._write(name, make())
        self.anomalies = {
            row["kind"]: row["count"]
            for row in self._tables["anomalies"].groupBy("kind").count().orderBy("kind").collect()
        }
        self._progress("openlineage")
        self._write_lines(run_events(self._tables["spans"], self._cluster_id))
        self._progress("report")
        return {name: self._tables[name].count() for name in ("spans", "items")}

    def _write(self, name: str, table: DataFrame) -> DataFrame:
        self._progress(name)
        path = str(self._out / f"{name}.parquet")
        table.write.mode("overwrite").parquet(path)
        self._tables[name] = self._spark.read.parquet(path)
        return self._tables[name]

    def _write_lines(self, events: DataFrame) -> None:
        """One file, in order; Spark's parts are put behind each other."""
        parts = self._out / ".openlineage"
        events.write.mode("overwrite").text(str(parts))
        with open(self._out / "openlineage.jsonl", "wb") as whole:
            for part in sorted(parts.glob("part-*")):
                with open(part, "rb") as lines:
                    shutil.copyfileobj(lines, whole)
        shutil.rmtree(parts)

    def findings(self, summary: Summary, holdings: Sequence[Holding]) -> Findings:
        """What the report shows."""
        spans = self._tables["spans"]
        counts = {row["outcome"]: row["count"] for row in spans.groupBy("outcome").count().collect()}
        facts = {
            "cluster": summary.cluster_id,
            "events": f"{summary.events:,}",
            "first to last event": f"{summary.first:,} to {summary.last:,}",
            "leases": f"{summary.leases:,}",
            "items": f"{summary.items:,}",
            "segment files": f"{len(holdings):,}",
        }
        return Findings(
            title=f"Lineage of {summary.cluster_id}",
            facts=facts,
            outcomes=counts,
            counted=self.anomalies,
            anomalies=self._rows("anomalies"),
            activity=_dicts(
                self._tables["activity"]
                .groupBy("type", "hour")
                .sum("events")
                .withColumnRenamed("sum(events)", "events")
            ),
            times=self._rows("times"),
            failures=self._rows("failures"),
            churn=self._rows("churn"),
            busiest=self._busiest(),
            paths=_dicts(
                self._tables["items"].where("leases > 0").orderBy("leases", "last_at", ascending=False).limit(15)
            ),
        )

    def _busiest(self) -> list[dict[str, Any]]:
        spans = self._tables["spans"].where("resource_id is not null")
        key = ["namespace", "resource_type", "resource_id"]
        most = spans.groupBy(*key).count().orderBy("count", *key, ascending=[False, True, True, True]).limit(_BUSIEST)
        return _dicts(
            spans.join(most, key)
            .orderBy("count", *key, "granted_sequence", ascending=[False] + [True] * 4)
            .limit(_LEASES)
        )

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return _dicts(self._tables[name].limit(_ROWS))


def _dicts(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in table.collect()]
