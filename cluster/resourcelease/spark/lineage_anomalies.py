"""What must never be in a log: each kind of it, looked for."""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from resourcelease.spark.lineage import Lineage

__all__ = ["ANOMALIES", "anomalies"]

# Each kind, in words for people.
ANOMALIES = {
    "overlapping_holders": "an item was leased again while a lease of it had not ended",
    "fence_out_of_order": "a lease got a fence that is not above those drawn before",
    "gap": "events are missing between two others",
    "repeated": "two events have the same sequence number",
    "verdict_twice": "an item that had completed or died did so again",
    "ended_twice": "a lease ended more than once",
    "ended_without_lease": "a lease ended that was never granted",
}
# Neighbours are compared within stretches of so many events, and then stretch with stretch, so that no task has to
# sort the whole log.
_STRETCH = 1 << 17


def anomalies(lineage: Lineage) -> DataFrame:
    """All that are found, in order: kind, namespace, item, sequence_number and detail. None in a true log."""
    found = [
        _overlaps(lineage.spans()),
        _fences(lineage.spans()),
        _neighbours(lineage.events.select("sequence_number")),
        _verdicts(lineage.moves),
        *_endings(lineage),
    ]
    return reduce(DataFrame.unionByName, found).orderBy("sequence_number", "kind")


def _rows(found: DataFrame, kind: str | Column, detail: Column, *, place: str = "sequence_number") -> DataFrame:
    nothing = f.lit(None)
    about = [
        f.col(name) if name in found.columns else nothing.cast(type_).alias(name)
        for name, type_ in (("namespace", "string"), ("item", "bigint"))
    ]
    named = f.lit(kind) if isinstance(kind, str) else kind
    return found.select(named.alias("kind"), *about, f.col(place).alias("sequence_number"), detail.alias("detail"))


def _overlaps(spans: DataFrame) -> DataFrame:
    order = Window.partitionBy("namespace", "item").orderBy("granted_sequence")
    before = f.lag(f.struct("fence", "peer_id", "ended_sequence", "granted_sequence")).over(order)
    found = spans.withColumn("before", before).where(
        "before is not null and (before.ended_sequence is null or before.ended_sequence > granted_sequence)"
    )
    detail = f.format_string(
        "fence %d of %s was granted while fence %d of %s held it",
        "fence", "peer_id", f.col("before.fence"), f.col("before.peer_id"),
    )  # fmt: skip
    return _rows(found, "overlapping_holders", detail, place="granted_sequence")


def _fences(spans: DataFrame) -> DataFrame:
    """Fences rise with the sequence numbers of the grants, over all namespaces."""
    grants = spans.select(
        "namespace", "item", "fence", f.col("granted_sequence").alias("sequence_number"),
        f.floor(f.col("granted_sequence") / _STRETCH).alias("stretch"),
    )  # fmt: skip
    highest = grants.groupBy("stretch").agg(f.max("fence").alias("highest"))
    over = Window.orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    earlier = highest.select("stretch", f.max("highest").over(over).alias("earlier"))
    within = Window.partitionBy("stretch").orderBy("sequence_number").rowsBetween(Window.unboundedPreceding, -1)
    known = grants.join(f.broadcast(earlier), "stretch").withColumn(
        "before", f.greatest(f.max("fence").over(within), "earlier")
    )
    detail = f.format_string("fence %d was drawn after fence %d", "fence", "before")
    return _rows(known.where("fence <= before"), "fence_out_of_order", detail)


def _neighbours(events: DataFrame) -> DataFrame:
    """Sequence numbers follow each other, one by one."""
    placed = events.withColumn("stretch", f.floor(f.col("sequence_number") / _STRETCH))
    ends = placed.groupBy("stretch").agg(f.max("sequence_number").alias("last"))
    earlier = ends.select("stretch", f.lag("last").over(Window.orderBy("stretch")).alias("earlier"))
    within = Window.partitionBy("stretch").orderBy("sequence_number")
    known = placed.join(f.broadcast(earlier), "stretch").withColumn(
        "before", f.coalesce(f.lag("sequence_number").over(within), "earlier")
    )
    found = known.where("sequence_number <> before + 1")
    repeated = f.col("sequence_number") == f.col("before")
    kind = f.when(repeated, "repeated").otherwise("gap")
    lost = f.format_string("events %d to %d are missing", f.col("before") + 1, f.col("sequence_number") - 1)
    return _rows(found, kind, f.when(repeated, f.lit("the number is there twice")).otherwise(lost))


def _verdicts(moves: DataFrame) -> DataFrame:
    final = ("COMPLETED", "DEAD_LETTERED")
    order = Window.partitionBy("namespace", "item").orderBy("sequence_number")
    told = moves.where(f.col("type").isin(*final, "REDRIVEN", "RESTORE_SNAPSHOT")).withColumn(
        "before", f.lag("type").over(order)
    )
    found = told.where(f.col("type").isin(*final) & f.col("before").isin(*final))
    return _rows(found, "verdict_twice", f.format_string("%s after %s", "type", "before"))


def _endings(lineage: Lineage) -> list[DataFrame]:
    key = ["namespace", "item", "fence"]
    ended = lineage.endings(once=False)
    twice = ended.groupBy(*key).agg(f.count("*").alias("times"), f.max("ended_sequence").alias("sequence_number"))
    often = f.format_string("fence %d ended %d times", "fence", "times")
    # Of a log that does not begin at the beginning nobody can say what was granted before.
    begin = lineage.events.agg(f.min("sequence_number").alias("begin"))
    unknown = ended.join(lineage.spans().select(*key), key, "left_anti").join(f.broadcast(begin)).where("begin = 1")
    detail = f.format_string("fence %d %s, and was never granted", "fence", "outcome")
    return [
        _rows(twice.where("times > 1"), "ended_twice", often),
        _rows(unknown, "ended_without_lease", detail, place="ended_sequence"),
    ]
