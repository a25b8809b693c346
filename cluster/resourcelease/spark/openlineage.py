"""Leases as OpenLineage run events: each lease is a run that starts, and completes, fails or is aborted."""

from uuid import NAMESPACE_URL, UUID, uuid5

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

__all__ = ["PRODUCER", "RUN_IDS", "run_events"]

PRODUCER = "urn:resourcelease:lineage"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACET_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunFacet"
_ERROR_SCHEMA = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"

# The run of a lease is the version 5 UUID of "<cluster>/<namespace>/<item>/<fence>" in here: the same in every report.
RUN_IDS: UUID = uuid5(NAMESPACE_URL, "resourcelease:leases")

_TYPES = {"completed": "COMPLETE", "failed": "FAIL", "expired": "FAIL", "given_back": "ABORT", "drained": "ABORT"}


def run_events(spans: DataFrame, cluster_id: str) -> DataFrame:
    """One column, ``value``: the events of all leases as JSON, in the order in which they happened."""
    named = spans.withColumn("run_id", _run_id(cluster_id))
    types = f.create_map(*[f.lit(part) for pair in _TYPES.items() for part in pair])
    starts = named.select(
        "*", f.lit("START").alias("event"), f.col("granted_at").alias("at"), f.col("granted_sequence").alias("place")
    )
    ends = named.where("ended_sequence is not null").select(
        "*",
        types[f.col("outcome")].alias("event"),
        f.col("ended_at").alias("at"),
        f.col("ended_sequence").alias("place"),
    )
    return starts.unionByName(ends).orderBy("place", "fence").select(f.to_json(_event(cluster_id)).alias("value"))


def _event(cluster_id: str) -> Column:
    time = f.date_format(f.to_utc_timestamp("at", f.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    kind = f.coalesce("resource_type", f.lit("unknown"))
    job = f.struct(
        f.concat(f.lit(f"resourcelease://{cluster_id}/"), "namespace").alias("namespace"), kind.alias("name")
    )
    dataset = f.struct(kind.alias("namespace"), f.col("resource_id").alias("name"))
    known = f.when(f.col("resource_id").isNotNull(), f.array(dataset)).otherwise(
        f.array().cast("array<struct<namespace:string,name:string>>")
    )
    lease = f.struct(
        f.lit(PRODUCER).alias("_producer"), f.lit(_FACET_SCHEMA).alias("_schemaURL"),
        "item", "attempt", "fence", f.col("peer_id").alias("peer"), "principal",
        f.col("place").alias("sequence_number"),
        f.when(f.col("event") != "START", f.col("outcome")).alias("outcome"),
    )  # fmt: skip
    said = f.coalesce("error_message", "error_code", f.when(f.col("outcome") == "expired", "the lease expired"))
    error = f.struct(
        f.lit(PRODUCER).alias("_producer"), f.lit(_ERROR_SCHEMA).alias("_schemaURL"),
        f.coalesce(said, f.lit("failed")).alias("message"), f.lit("unknown").alias("programmingLanguage"),
    )  # fmt: skip
    facets = f.struct(lease.alias("resourcelease_lease"), f.when(f.col("event") == "FAIL", error).alias("errorMessage"))
    return f.struct(
        f.col("event").alias("eventType"),
        time.alias("eventTime"),
        f.struct(f.col("run_id").alias("runId"), facets.alias("facets")).alias("run"),
        job.alias("job"),
        known.alias("inputs"),
        f.array().cast("array<struct<namespace:string,name:string>>").alias("outputs"),
        f.lit(PRODUCER).alias("producer"),
        f.lit(_SCHEMA).alias("schemaURL"),
    )


def _run_id(cluster_id: str) -> Column:
    """``uuid5(RUN_IDS, name)``, without a Python call for each row."""
    name = f.concat_ws("/", f.lit(cluster_id), "namespace", "item", "fence")
    hashed = f.sha1(f.concat(f.unhex(f.lit(RUN_IDS.hex)), f.encode(name, "UTF-8")))
    nibble = f.conv(f.substring(hashed, 17, 1), 16, 10).cast("int") % 4
    parts = [
        f.substring(hashed, 1, 8),
        f.substring(hashed, 9, 4),
        f.concat(f.lit("5"), f.substring(hashed, 14, 3)),
        f.concat(f.substr(f.lit("89ab"), nibble + 1, f.lit(1)), f.substring(hashed, 18, 3)),
        f.substring(hashed, 21, 12),
    ]
    return f.concat_ws("-", *parts)
