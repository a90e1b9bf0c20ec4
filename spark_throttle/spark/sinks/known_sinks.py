"""The sinks of a query, collected for the check before the query runs (`start.start_check`)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_throttle.spark.sinks.batch_sink import Target
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.tables import Targets
from spark_throttle.spark.start.spark_paths import local_path
from spark_throttle.spark.start.start_check import Sinks

_PARTS = ("", "rejected", "usage")
"""Suffixes of the query's name in the transactions of the sink, the dead letters and the usage table."""


def sinks_of(spark: SparkSession, checkpoint: str, targets: Targets, usage: Target | FileTable | None) -> Sinks:
    """Return the sinks of a query."""
    tables, dead_letters = [], None
    for part, target in zip(_PARTS, (targets.admitted, targets.rejected, usage), strict=True):
        if isinstance(target, FileTable):
            tables.append((part, target.location))
        elif isinstance(target, Target):
            location = _location(spark, target)
            if location is not None:
                tables.append((part, location))
            elif part == "rejected" and target.has_batch_folders:
                dead_letters = local_path(str(target.path))
    return Sinks(checkpoint, tuple(tables), dead_letters, callable(targets.admitted))


def _location(spark: SparkSession, target: Target) -> str | None:
    """Return the location of a Delta table; `None` if the target is not a Delta table or does not exist yet."""
    if not target.is_delta:
        return None
    if target.path is not None:
        return local_path(target.path)
    if target.table is None or not spark.catalog.tableExists(target.table):
        return None
    return str(spark.sql(f"DESCRIBE DETAIL {target.table}").collect()[0]["location"])
