"""What reading the log of events costs in Spark, beside Spark's own Parquet reader on the same rows in the same run.

Every run is a full read of all columns into nothing, and counts its rows on the way: a run that gave fewer is an error
and no figure. The rows of ``filtered_*`` are one percent of the log, from its middle; ours are chosen by the options of
the load, those of Parquet by a filter that is pushed down to row groups.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from resourcelease.spark import local_session, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure_spark"]

_PART = 100


def measure_spark(directory: Path, events: int, *, rounds: int, cores: int = 0) -> dict[str, Any]:
    """Reads a log of so many events; the median of rounds in which both readers have their turn, after one each."""
    session = local_session("bench", cores=cores, memory="4g")
    register(session)
    parquet = directory.parent / "parquet"
    try:
        session.read.format("resourcelease").load(str(directory)).write.parquet(str(parquet))
        return _measure(session, directory, parquet, events, rounds)
    finally:
        session.stop()
        shutil.rmtree(parquet, ignore_errors=True)


def _measure(session: "SparkSession", directory: Path, parquet: Path, events: int, rounds: int) -> dict[str, Any]:
    begin, few = events // 2, events // _PART
    between = f"sequence_number between {begin} and {begin + few - 1}"
    ours = session.read.format("resourcelease")

    readers: dict[str, tuple[Callable[[], DataFrame], int]] = {
        "spark": (lambda: ours.load(str(directory)), events),
        "parquet": (lambda: session.read.parquet(str(parquet)), events),
        "filtered_spark": (
            lambda: (
                session.read.format("resourcelease")
                .options(fromSequence=begin, toSequence=begin + few - 1)
                .load(str(directory))
            ),
            few,
        ),
        "filtered_parquet": (lambda: session.read.parquet(str(parquet)).where(between), few),
    }
    took: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(rounds + 1):
        for name, (load, rows) in readers.items():
            spent = _read(load(), rows, name)
            if number:
                took[name].append(spent)
    seconds = {name: median(values) for name, values in took.items()}
    return {
        "spark_events": events,
        "spark_rows_per_s": round(events / seconds["spark"]),
        "parquet_rows_per_s": round(events / seconds["parquet"]),
        "spark_to_parquet": round(seconds["parquet"] / seconds["spark"], 3),
        "filtered_spark_s": round(seconds["filtered_spark"], 3),
        "filtered_parquet_s": round(seconds["filtered_parquet"], 3),
        # How many times as long as Parquet.
        "filtered_ratio": round(seconds["filtered_spark"] / seconds["filtered_parquet"], 3),
        "spark_rounds_s": {name: [round(value, 3) for value in values] for name, values in took.items()},
    }


def _read(table: "DataFrame", rows: int, name: str) -> float:
    """Seconds for all columns of all rows; RuntimeError if there are not as many as there should be."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    began = time.perf_counter()
    table.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - began
    if seen.get["rows"] != rows:
        raise RuntimeError(f"{name} read {seen.get['rows']} rows, and there are {rows}: its time says nothing")
    return took
