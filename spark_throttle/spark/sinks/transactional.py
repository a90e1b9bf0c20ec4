"""A sink that keeps the mark of a batch with its rows, both or neither, takes every batch once.

The sink is asked for the newest mark of the query before each batch. If that is of this batch, an earlier attempt wrote
it. If it is of a later batch, or of another one of this number, the checkpoint was put back or a copy of it runs too,
and the query ends (`checkpoint.batch_mark`). Delta tables keep marks by Delta's own transactions (`taken_batch`).

Law: of runs that follow each other, none loses or doubles a row, wherever they are killed. A run that stood still
between the question and the commit, and goes on beside its successor, is refused by the sink or by nobody: `commit`
says what a sink can do about it.

An Iceberg table keeps marks in the summaries of its snapshots, as Iceberg's own sink of Flink does. Only the snapshots
from which the current one descends count, so a table that was rolled back takes the batches after it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.metering.charging import metered_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_throttle.core.usage import UsageReport
    from spark_throttle.files.storage import Directory

ICEBERG, TRANSACTIONAL = MARKED = "iceberg", "transactional"
"""The formats of targets that keep marks; the second stands for a sink of the user's."""

_PROPERTY: Final = "spark-throttle."
"""The beginning of a summary's property; the query's name follows."""

_MISSING: Final = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND")


class TransactionalSink(Protocol):
    """A destination that remembers the newest batch of each query; both are called on the driver, batch by batch."""

    def newest_mark(self, query: str) -> str | None:
        """Return the text with which the newest batch of a query was committed, `None` if none was.

        Called before each batch that has rows, in every run.
        """
        ...

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        """Add the rows of a batch, and remember its mark as the newest of the query: both, or neither.

        Called once per batch, and again with the same rows and mark if it failed or the process was killed in it,
        unless the mark is there. Two runs may call it with one mark at a time, where one stood still and goes on beside
        its successor: a sink that refuses the second is exact there too.
        """
        ...


def commit_once(sink: TransactionalSink, name: str, rows: Callable[[], DataFrame], mark: BatchMark) -> None:
    """Commit a batch to a sink that does not have it.

    Raises
    ------
    CheckpointMismatchError
        If the sink has a later batch of the query, or another batch of this number.
    ConfigurationError
        If the sink returned a text that is no mark.
    """
    text = sink.newest_mark(mark.query)
    found = parse_mark(text)
    if found is None and text is not None:
        raise ConfigurationError(f"{name} returned {text!r} as its newest mark, which it was never given")
    if found is not None:
        mark.check(name, found.batch, found.identity)
        if found.batch == mark.batch:
            return
    sink.commit(rows(), mark.query, mark.to_text())


@dataclass(frozen=True, slots=True)
class TransactionalOutlet:
    """What commits each batch of a query to a sink of the user's; on the driver."""

    sink: TransactionalSink
    name: str

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        report: UsageReport | None,
        *,
        is_again: bool,  # noqa: ARG002 - the sink knows better
    ) -> None:
        """Commit a batch, unless it has no rows or the sink has it."""
        if rows is not None:
            with metered_write(directory, mark.batch, report):
                commit_once(self.sink, self.name, rows, mark)


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table as such a sink; Spark's own writer appends, so any catalog serves.

    Iceberg appends without a condition. So a run that stood still in the middle of a batch, and went on beside its
    successor, may append that batch once more. And a mark goes with its snapshot: keep snapshots (`expire_snapshots`)
    for longer than the query stands still.
    """

    spark: SparkSession
    table: str | None
    path: str | None
    append: Callable[[DataFrame, Mapping[str, str]], None]
    """What appends rows, given the options of this batch."""

    def newest_mark(self, query: str) -> str | None:
        """Return the newest mark among the snapshots that lead to the current one."""
        try:
            snapshots, history = self._metadata("snapshots"), self._metadata("history")
        except AnalysisException as error:
            if error.getCondition() in _MISSING:
                return None
            raise
        mark = F.col("summary")[_PROPERTY + query]
        found = (
            snapshots.join(history.where("is_current_ancestor").select("snapshot_id").distinct(), "snapshot_id")
            .where(mark.isNotNull())
            .orderBy(F.get_json_object(mark, "$.throttle.batch").cast("bigint").desc())
            .select(mark)
            .first()
        )
        return None if found is None else str(found[0])

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        """Append rows in a snapshot that has the mark in its summary."""
        self.append(rows, {f"snapshot-property.{_PROPERTY}{query}": mark})

    def _metadata(self, name: str) -> DataFrame:
        if self.table is not None:
            return self.spark.table(f"{self.table}.{name}")
        return self.spark.read.format(ICEBERG).load(f"{self.path}#{name}")
