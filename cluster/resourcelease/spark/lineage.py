"""Who held what, from when to when, and how it ended: the log of events told as tables.

Durations are of the lease clock, which every node agrees on; hours are of wall time, which people know.
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from resourcelease.spark.columns import EVENT_SCHEMA

__all__ = ["Lineage", "load_events"]

# What ends a lease, and the word for it. REQUEUED does if the lease was given back; else FAILED or LEASE_EXPIRED has.
_ENDINGS = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "LEASE_EXPIRED": "expired",
    "REQUEUED": "given_back",
}
# What puts an item in line, also before its first lease.
_READY = ("ENQUEUE", "RESTORE_SNAPSHOT", "REQUEUED", "RELEASED", "REDRIVEN")
_BORN = ("ENQUEUE", "RESTORE_SNAPSHOT")
# What an item's last event says about it. One that was leased and has no end is held.
_STATES = {
    "COMPLETED": "completed",
    "DEAD_LETTERED": "dead",
    "DRAIN_SNAPSHOT": "drained",
    "DISCARDED": "discarded",
    "LEASE_GRANTED": "held",
    "FAILED": "failed",
    "LEASE_EXPIRED": "expired",
}

# What lineage looks at: all but bodies and what only people read.
_LEFT_OUT = ("body", "attributes", "partition_key", "payload_encoding", "request_id", "priority")
_COLUMNS = (
    "sequence_number", "type", "occurred_at", "lease_clock", "namespace", "handle", "peer_id", "principal", "payload",
    "error", "metadata",
)  # fmt: skip


def load_events(spark: SparkSession, *paths: str, **options: object) -> DataFrame:
    """The events of a log with the columns that lineage needs, read as few bytes as may be."""
    fields = []
    for field in (EVENT_SCHEMA[name] for name in _COLUMNS):
        kind = field.dataType
        if isinstance(kind, StructType):
            kind = StructType([part for part in kind.fields if part.name not in _LEFT_OUT])
        fields.append(StructField(field.name, kind, field.nullable))
    reader = spark.read.format("resourcelease").schema(StructType(fields))
    return reader.options(**{name: str(value) for name, value in options.items()}).load(list(paths))


class Lineage:
    """The tables of one log; ``events`` has the columns of an event, from whatever source.

    Items are known by namespace and ``item``, which is the sequence id of their handles.
    """

    def __init__(self, events: DataFrame, *, spans: DataFrame | None = None) -> None:
        self.events = events
        self._spans = spans
        self.moves = events.where("handle is not null and type not in ('HEARTBEAT', 'EFFECT')").select(
            "namespace",
            f.col("handle.sequence_id").alias("item"),
            f.col("handle.attempt").alias("attempt"),
            f.col("handle.lease_id").alias("fence"),
            "sequence_number", "type", "occurred_at", "lease_clock", "peer_id", "principal",
            f.col("payload.resource_type").alias("resource_type"),
            f.col("payload.resource_id").alias("resource_id"),
            f.col("error.code").alias("error_code"),
            f.col("error.message").alias("error_message"),
            f.col("metadata")["cause"].alias("cause"),
        )  # fmt: skip

    def with_spans(self, spans: DataFrame) -> "Lineage":
        """The same with spans that were worked out and stored before."""
        return Lineage(self.events, spans=spans)

    def spans(self) -> DataFrame:
        """One row a lease: who held which resource, from when to when, as whom, and with which outcome.

        Outcomes: completed, failed, expired, given_back, drained, and held for what has not ended.
        """
        if self._spans is not None:
            return self._spans
        key = ["namespace", "item", "fence"]
        joined = (
            self._grants().join(self.endings(once=True), key, "left").join(self._items(), ["namespace", "item"], "left")
        )
        spans = _drained(joined, self.moves.where("type = 'DRAIN_SNAPSHOT'"))
        waited = f.col("granted_clock") - f.col("ready_clock")
        return spans.select(
            "namespace", "item", "resource_type", "resource_id", "attempt", "fence", "peer_id", "principal",
            "granted_sequence", "granted_at", "granted_clock", "ended_sequence", "ended_at", "ended_clock",
            f.coalesce("outcome", f.lit("held")).alias("outcome"),
            "error_code", "error_message",
            waited.alias("waited_ms"),
            (f.col("ended_clock") - f.col("granted_clock")).alias("held_ms"),
        )  # fmt: skip

    def endings(self, *, once: bool) -> DataFrame:
        """What ended leases, by namespace, item and fence; the first of each, or all there are."""
        ended = self.moves.where(
            f.col("type").isin(*_ENDINGS) & ((f.col("type") != "REQUEUED") | (f.col("cause") == "given_back"))
        )
        words = f.create_map(*[f.lit(part) for pair in _ENDINGS.items() for part in pair])
        ended = ended.select(
            "namespace", "item", "fence",
            f.struct(
                f.col("sequence_number").alias("ended_sequence"),
                f.col("occurred_at").alias("ended_at"),
                f.col("lease_clock").alias("ended_clock"),
                words[f.col("type")].alias("outcome"),
                "error_code",
                "error_message",
            ).alias("end"),
        )  # fmt: skip
        if once:
            ended = ended.groupBy("namespace", "item", "fence").agg(f.min("end").alias("end"))
        return ended.select("namespace", "item", "fence", "end.*")

    def items(self) -> DataFrame:
        """One row an item: its path through attempts and peers, in order, and what became of it."""
        step = ["granted_sequence", "attempt", "fence", "peer_id", "principal", "granted_at", "ended_at", "outcome"]
        paths = (
            self.spans()
            .groupBy("namespace", "item")
            .agg(f.sort_array(f.collect_list(f.struct(*step))).alias("path"), f.max("fence").alias("last_fence"))
        )
        states = f.create_map(*[f.lit(part) for pair in _STATES.items() for part in pair])
        fates = self.moves.groupBy("namespace", "item").agg(
            f.coalesce(states[f.max_by("type", "sequence_number")], f.lit("pending")).alias("state"),
            f.max("occurred_at").alias("last_at"),
        )
        found = fates.join(self._items(), ["namespace", "item"], "left").join(paths, ["namespace", "item"], "left")
        path = f.coalesce("path", f.expr("array()").cast(paths.schema["path"].dataType))
        return found.select(
            "namespace", "item", "resource_type", "resource_id", "entered_at", "state", "last_at",
            f.size(path).alias("leases"),
            f.array_distinct(f.transform(path, lambda step: step["peer_id"])).alias("peers"),
            path.alias("path"),
        )  # fmt: skip

    def times(self) -> DataFrame:
        """Waiting and holding times in milliseconds, by namespace and hour of the grant."""
        measures: list[Any] = [f.count("*").alias("leases")]
        for name in ("waited_ms", "held_ms"):
            measures += [
                f.avg(name).alias(f"{name}_mean"),
                f.percentile_approx(name, 0.5).alias(f"{name}_median"),
                f.percentile_approx(name, 0.95).alias(f"{name}_p95"),
                f.max(name).alias(f"{name}_max"),
            ]
        hour = f.date_trunc("hour", "granted_at").alias("hour")
        return self.spans().groupBy("namespace", hour).agg(*measures).orderBy("namespace", "hour")

    def failures(self) -> DataFrame:
        """Leases that failed or expired, by peer, resource and error."""
        lost = self.spans().where("outcome in ('failed', 'expired')")
        key = ["namespace", "peer_id", "resource_type", "resource_id", "outcome", "error_code"]
        counts = lost.groupBy(*key).agg(
            f.count("*").alias("leases"),
            f.min("ended_at").alias("first_at"),
            f.max("ended_at").alias("last_at"),
            f.max_by("error_message", "ended_sequence").alias("last_message"),
        )
        return counts.orderBy(f.desc("leases"), *key)

    def churn(self) -> DataFrame:
        """How peers come and go, and how work moves between them, by namespace and hour.

        A handover is a lease of an item whose lease before was another peer's.
        """
        order = Window.partitionBy("namespace", "item").orderBy("granted_sequence")
        hour = f.date_trunc("hour", "at").alias("hour")
        grants = self.spans().select(
            "namespace", f.col("granted_at").alias("at"), "peer_id",
            (f.lag("peer_id").over(order) != f.col("peer_id")).cast("long").alias("handover"),
        )  # fmt: skip
        moved = grants.groupBy("namespace", hour).agg(
            f.count_distinct("peer_id").alias("peers"),
            f.count("*").alias("leases"),
            f.coalesce(f.sum("handover"), f.lit(0)).alias("handovers"),
        )
        changed = self.events.where("type = 'PEER_CHANGED'").select(
            "namespace", f.col("occurred_at").alias("at"), f.col("metadata")["change"].alias("change")
        )
        kinds = ("joined", "connected", "disconnected", "removed")
        seen = changed.groupBy("namespace", hour).agg(
            *[f.count(f.when(f.col("change") == kind, 1)).alias(kind) for kind in kinds]
        )
        both = moved.join(seen, ["namespace", "hour"], "full")
        return both.fillna(0).orderBy("namespace", "hour")

    def activity(self) -> DataFrame:
        """Events by type and hour."""
        hour = f.date_trunc("hour", "occurred_at").alias("hour")
        return self.events.groupBy("namespace", "type", hour).agg(f.count("*").alias("events")).orderBy("hour", "type")

    def _grants(self) -> DataFrame:
        """Leases as they were granted, each with the clock since which its item was ready."""
        order = (
            Window.partitionBy("namespace", "item")
            .orderBy("sequence_number")
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        ready = f.last(f.when(f.col("type").isin(*_READY), f.col("lease_clock")), ignorenulls=True).over(order)
        rows = self.moves.where(f.col("type").isin(*_READY, "LEASE_GRANTED")).withColumn("ready_clock", ready)
        return rows.where("type = 'LEASE_GRANTED'").select(
            "namespace", "item", "fence", "attempt", "peer_id", "principal", "ready_clock",
            f.col("sequence_number").alias("granted_sequence"),
            f.col("occurred_at").alias("granted_at"),
            f.col("lease_clock").alias("granted_clock"),
        )  # fmt: skip

    def _items(self) -> DataFrame:
        """What each item is about, by the event that brought it; what came before the log began is not known."""
        born = self.moves.where(f.col("type").isin(*_BORN) & f.col("resource_id").isNotNull())
        return born.groupBy("namespace", "item").agg(
            f.min_by("resource_type", "sequence_number").alias("resource_type"),
            f.min_by("resource_id", "sequence_number").alias("resource_id"),
            f.min_by("occurred_at", "sequence_number").alias("entered_at"),
        )


def _drained(spans: DataFrame, drains: DataFrame) -> DataFrame:
    """Ends leases that nothing else ended where their item was drained; DRAIN_SNAPSHOT names no fence."""
    key = ["namespace", "item"]
    taken = drains.groupBy(*key).agg(
        f.sort_array(f.collect_list(f.struct("sequence_number", "occurred_at", "lease_clock"))).alias("drains")
    )
    later = f.filter("drains", lambda one: one["sequence_number"] > f.col("granted_sequence"))
    found = spans.join(taken, key, "left").withColumn("drained", f.when(f.size(later) > 0, f.element_at(later, 1)))
    drained = f.col("drained").isNotNull()
    return (
        found.withColumn("outcome", f.coalesce("outcome", f.when(drained, "drained")))
        .withColumn("ended_at", f.coalesce("ended_at", "drained.occurred_at"))
        .withColumn("ended_clock", f.coalesce("ended_clock", "drained.lease_clock"))
        .withColumn("ended_sequence", f.coalesce("ended_sequence", "drained.sequence_number"))
    )
