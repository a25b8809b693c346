"""The data source: a log of events as a table, and as a stream."""

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from resourcelease.spark.columns import EVENT_SCHEMA, arrow_schema, checked_schema
from resourcelease.spark.filters import narrowed
from resourcelease.spark.options import LoadOptions
from resourcelease.spark.plan import Catalog, log_directories, pieces
from resourcelease.spark.reading import read_piece
from resourcelease.spark.stream import EventStream

__all__ = ["EventReader", "EventSource", "PushingReader", "PushingSource"]


@cache
def _spare_modules() -> None:
    """Spark's workers search all there is for cycles after each task: what was imported is looked through no more."""
    gc.freeze()


class EventSource(DataSource):
    """``spark.read.format("resourcelease").load(path)``; see ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "resourcelease"

    def schema(self) -> StructType:
        """All columns of an event, or those of the option ``columns``."""
        wanted = LoadOptions.of(self.options).columns
        unknown = [name for name in wanted if name not in EVENT_SCHEMA.fieldNames()]
        if unknown:
            raise ValueError(f"columns: an event has no {unknown[0]}; there are {', '.join(EVENT_SCHEMA.fieldNames())}")
        return StructType([EVENT_SCHEMA[name] for name in wanted]) if wanted else EVENT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there now."""
        return EventReader(LoadOptions.of(self.options), checked_schema(schema))

    def streamReader(self, schema: StructType) -> EventStream:
        """Reads what is there, and what comes."""
        return EventStream(LoadOptions.of(self.options), checked_schema(schema))


class PushingSource(EventSource):
    """The same, and filters of a query are pushed down. Only for loads that serve one query each.

    Spark up to 4.3 keeps what it pushed down with the load and not with the query, so a second query on the same
    DataFrame, or both sides of a union or join of it, may be answered from the rows of the first.
    """

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there now, and of it what the query asks for."""
        return PushingReader(LoadOptions.of(self.options), checked_schema(schema))


class EventReader(DataSourceReader):
    """One load: partitions on the driver, then each partition in a task."""

    def __init__(self, options: LoadOptions, schema: StructType) -> None:
        self._options = options
        self._query = options.query
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each file that may hold something that is wanted."""
        holdings = Catalog(log_directories(self._options.paths)).holdings()
        found = pieces(holdings, self._options.first, self._options.last, self._query)
        return [InputPartition(piece) for piece in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one partition."""
        if partition.value is None:  # what Spark makes of a log without a partition
            return iter(())
        _spare_modules()
        schema = arrow_schema(self._schema)
        return read_piece(partition.value, self._query, schema, verify=self._options.verify)


class PushingReader(EventReader):
    """A reader that takes filters over."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Takes over what the log can tell by itself, and gives back the rest."""
        for one in filters:
            query = narrowed(self._query, one)
            if query is None:
                yield one
            else:
                self._query = query
