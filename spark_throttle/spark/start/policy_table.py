"""A query's driver reads a policy table through its session, when the query starts and beside each batch.

So the catalog decides whether the job may read it, and what is read is what SQL shows: a table of any format, or a view
of several, each with grants of its own. With Spark Connect, batches run on the server, which reads it there.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.spark_errors import BatchFunction, spark_line
from spark_throttle.store.policy_location import PolicyLocation
from spark_throttle.store.policy_table import COLUMNS, TableRows, leave_rows

PATIENCE_SECONDS: Final = 10
"""The most time that a batch waits for what is read beside it."""


def read_table(spark: SparkSession, policies: PolicyLocation) -> PolicyLocation:
    """Return the location of policies with what is in their table now; any other location as it is.

    Raises
    ------
    ConfigurationError
        If the table cannot be read.
    PolicyError, DamagedError
        If its rows cannot be applied.
    """
    if policies.kind != "table":
        return policies
    try:
        found = _rows(spark, policies.place, uuid.uuid4().hex)
    except PySparkException as error:
        raise ConfigurationError(
            f"the policy table {policies.place} cannot be read: {spark_line(error)}; give a table or view that the "
            f"session's catalog lets this job read, with the columns {', '.join(COLUMNS)}"
        ) from None
    found.document()
    return replace(policies, rows=found)


@dataclass(slots=True)
class TableReading:
    """A function for `foreachBatch` that does what another one does, and reads a policy table meanwhile."""

    function: BatchFunction
    control_path: str
    table: str
    run: str
    _reader: _Reader | None = None
    """What reads the table; a catalog that does not answer holds back one, and one batch for some seconds."""

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Call the function, and leave the rows of the table for the plan of the next batch.

        The query takes tenths of a second, mostly of the driver, which would else be added to each batch.
        """
        reader, patience_seconds = self._reader, 0.0
        if reader is None:
            reader, patience_seconds = _Reader(frames.sparkSession, self.table, self.run), PATIENCE_SECONDS
            reader.start()
        self.function(frames, batch)
        reader.join(patience_seconds)
        self._reader = reader if reader.is_alive() else None
        leave_rows(Directory(self.control_path), reader.found)


class _Reader(threading.Thread):
    """A thread that reads a policy table once."""

    def __init__(self, spark: SparkSession, table: str, run: str) -> None:
        super().__init__(name="policies", daemon=True)
        self._spark, self._table, self._run_id = spark, table, run
        self.found = TableRows(table, run, problem=f"it was not read within {PATIENCE_SECONDS} s")

    def run(self) -> None:
        try:
            self.found = _rows(self._spark, self._table, self._run_id)
        except Exception as error:  # noqa: BLE001 - a catalog may fail in any way: the last good policies stay in force
            self.found = TableRows(self._table, self._run_id, problem=spark_line(error))


def _rows(spark: SparkSession, table: str, run: str) -> TableRows:
    spark.catalog.refreshTable(table)  # an Iceberg catalog keeps it for as long as it is read
    rows = spark.read.table(table).select(*(F.col(name).cast("string") for name in COLUMNS)).collect()
    return TableRows.of(table, run, rows)
