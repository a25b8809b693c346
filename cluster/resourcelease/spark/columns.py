"""The columns of an event, as Spark and as Arrow know them."""

import pyarrow as pa
from pyspark.sql import types as spark

__all__ = ["EVENT_SCHEMA", "arrow_schema", "checked_schema"]

_TEXT = spark.StringType()
_NUMBER = spark.LongType()
_TEXTS = spark.MapType(_TEXT, _TEXT, valueContainsNull=False)


def _struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


_COUNTS = spark.StructType([spark.StructField(name, _NUMBER, nullable=False) for name in ("pending", "active")])

# One row an event. What is never null says so, but within structs that may themselves be null: Spark 4 does not plan a
# ``withField`` of these.
EVENT_SCHEMA = spark.StructType(
    [
        spark.StructField("sequence_number", _NUMBER, nullable=False),
        spark.StructField("type", _TEXT, nullable=False),
        spark.StructField("occurred_at", spark.TimestampType(), nullable=False),
        spark.StructField("lease_clock", _NUMBER, nullable=False),
        spark.StructField("raft_index", _NUMBER, nullable=False),
        spark.StructField("raft_term", _NUMBER, nullable=False),
        spark.StructField("namespace", _TEXT, nullable=False),
        spark.StructField("shard_id", _TEXT, nullable=False),
        spark.StructField("handle", _struct(sequence_id=_NUMBER, attempt=_NUMBER, lease_id=_NUMBER)),
        spark.StructField("peer_id", _TEXT, nullable=False),
        spark.StructField("principal", _TEXT, nullable=False),
        spark.StructField(
            "payload",
            _struct(
                resource_type=_TEXT,
                resource_id=_TEXT,
                partition_key=_TEXT,
                payload_encoding=_TEXT,
                attributes=_TEXTS,
                body=spark.BinaryType(),
                request_id=_TEXT,
                priority=spark.IntegerType(),
            ),
        ),
        spark.StructField("error", _struct(code=_TEXT, message=_TEXT, metadata=_TEXTS)),
        spark.StructField("queue", _COUNTS, nullable=False),
        spark.StructField("metadata", _TEXTS, nullable=False),
    ]
)

_ARROW = {
    spark.StringType: pa.string(),
    spark.LongType: pa.int64(),
    spark.IntegerType: pa.int32(),
    spark.BinaryType: pa.binary(),
    # Spark keeps microseconds since 1970 and the zone of the session apart.
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
}


def checked_schema(wanted: spark.StructType) -> spark.StructType:
    """A schema that somebody asks for, which may have fewer columns and fewer fields of structs, in any order.

    Raises ValueError for a column that no event has.

    >>> checked_schema(spark.StructType().add("typ", "string"))
    Traceback (most recent call last):
    ...
    ValueError: an event has no column typ of type string; there are sequence_number, type, occurred_at, ...
    """
    _check(wanted, EVENT_SCHEMA, "")
    return wanted


def _check(wanted: spark.StructType, known: spark.StructType, within: str) -> None:
    by_name = {field.name: field.dataType for field in known.fields}
    for field in wanted.fields:
        kind = by_name.get(field.name)
        if isinstance(kind, spark.StructType) and isinstance(field.dataType, spark.StructType):
            _check(field.dataType, kind, f"{within}{field.name}.")
        elif type(kind) is not type(field.dataType):
            names = ", ".join(by_name)
            asked = f"{within}{field.name} of type {field.dataType.simpleString()}"
            raise ValueError(f"an event has no column {asked}; there are {names}")


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """The same columns for Arrow, as Spark expects to be given them."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: spark.StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), nullable=field.nullable)


def _arrow_type(kind: spark.DataType) -> pa.DataType:
    if isinstance(kind, spark.StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, spark.MapType):
        value = pa.field("value", _arrow_type(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(_arrow_type(kind.keyType), value)
    return _ARROW[type(kind)]
