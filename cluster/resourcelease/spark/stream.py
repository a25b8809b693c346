"""The log as a stream: offsets are sequence numbers, kept in Spark's own checkpoint."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from resourcelease.spark.columns import arrow_schema
from resourcelease.spark.options import LoadOptions
from resourcelease.spark.plan import Catalog, log_directories, pieces
from resourcelease.spark.reading import read_piece

try:  # PySpark 4.2 and later
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # earlier releases take all there is at every trigger, and never ask for a limit

    class ReadAllAvailable:  # type: ignore[no-redef]
        """Stands in for what is not there."""

    class ReadMaxRows:  # type: ignore[no-redef]
        """Stands in for what is not there."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for what is not there."""


__all__ = ["EventStream"]

# The offset: the first event that is yet to be read; 0 where there was none, so that it is the first that is kept.
_NEXT = "next"


class EventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One running query. Spark asks it where the log ends, and for the events between two such places."""

    def __init__(self, options: LoadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._catalog: Catalog | None = None
        # The end that a query with the trigger AvailableNow goes to.
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a query begins that has no checkpoint."""
        return {_NEXT: self._options.first}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        """Where the next micro-batch ends."""
        end = self._end() if self._target is None else self._target
        begin = start[_NEXT] if start else self._options.first
        if isinstance(limit, ReadMaxRows):
            end = min(end, (begin or self._first()) + limit.max_rows)
        return {_NEXT: max(begin, end)}

    def getDefaultReadLimit(self) -> Any:
        """How much a micro-batch takes, if that was said."""
        return ReadMaxRows(self._options.per_trigger) if self._options.per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end: what is there now."""
        self._target = self._end()

    def reportLatestOffset(self) -> dict[str, int]:
        """Where the log ends, for the progress that Spark shows."""
        return {_NEXT: self._end()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A partition for each file that has events between two offsets."""
        first, last = start[_NEXT], end[_NEXT] - 1
        if last < max(first, 1):
            return []
        found = pieces(self._look().holdings(), first, last, self._options.query)
        return [InputPartition(piece) for piece in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one partition."""
        return read_piece(partition.value, self._options.query, arrow_schema(self._schema), verify=self._options.verify)

    def _look(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(log_directories(self._options.paths))
        return self._catalog

    def _first(self) -> int:
        return min((holding.first for holding in self._look().holdings()), default=1)

    def _end(self) -> int:
        last = max((holding.last for holding in self._look().holdings()), default=0)
        return (min(last, self._options.last) if self._options.last else last) + 1
