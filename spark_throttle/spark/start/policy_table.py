"""A query's driver reads a policy table through its session, when the query starts and beside each batch.

So the catalog decides whether the job may read it, and what is read is what SQL shows: a table of any format, or a view
of several, each with grants of its own. With Spark Connect, batches run on the server, which reads it there.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.spark_errors import BatchFunction, spark_line
from spark_throttle.store.policy_location import PolicyLocation
from spark_throttle.store.policy_table import COLUMNS, TableRows, leave_rows


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


@dataclass(frozen=True, slots=True)
class TableReading:
    """A function for `foreachBatch` that does what another one does, and reads a policy table meanwhile."""

    function: BatchFunction
    control_path: str
    table: str
    run: str

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Call the function, and leave the rows of the table for the plan of the next batch.

        The query takes tenths of a second, mostly of the driver, which would else be added to each batch.
        """
        with ThreadPoolExecutor(1, "policies") as beside:
            found = beside.submit(self._found, frames.sparkSession)
            self.function(frames, batch)
            leave_rows(Directory(self.control_path), found.result())

    def _found(self, spark: SparkSession) -> TableRows:
        try:
            return _rows(spark, self.table, self.run)
        except Exception as error:  # noqa: BLE001 - a catalog may fail in any way: the last good policies stay in force
            return TableRows(self.table, self.run, problem=spark_line(error))


def _rows(spark: SparkSession, table: str, run: str) -> TableRows:
    rows = spark.read.table(table).select(*(F.col(name).cast("string") for name in COLUMNS)).collect()
    return TableRows.of(table, run, rows)
