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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, cast

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

_MOVED: Final = "org.apache.iceberg.exceptions.ValidationException"
_MOST_MOVES: Final = 3
"""So often a batch is written anew because others append to its table; then it is appended without a condition."""

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
    try:
        sink.commit(rows(), mark.query, mark.to_text())
    except MovedError:
        commit_once(sink, name, rows, mark)


class MovedError(Exception):
    """An Iceberg table was appended to since it was asked for its mark; nothing was committed."""


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
class _Asked:
    """A table as it was when it was asked for its mark."""

    snapshot: int | None
    is_missing: bool = False


@dataclass(slots=True)
class IcebergTable:
    """An Iceberg table as such a sink; Spark's own writer appends, so any catalog serves.

    A batch is committed if nobody has appended since the mark was asked for. So of two runs that commit the same batch,
    for one stood still and goes on beside its successor, the second asks again and finds the mark. Iceberg validates
    this for an overwrite alone. The overwrite here replaces nothing, so its snapshot is an append like any other. A
    table at a path has no such commit.

    A mark goes with its snapshot: keep snapshots (`expire_snapshots`) for longer than the query stands still.
    """

    spark: SparkSession
    table: str | None
    path: str | None
    options: Mapping[str, str]
    append: Callable[[DataFrame, Mapping[str, str]], None]
    """What appends rows, given the options of this batch, and makes a table that is missing."""

    _asked: _Asked | None = field(default=None, init=False)
    _moved: int = field(default=0, init=False)

    def newest_mark(self, query: str) -> str | None:
        """Return the newest mark among the snapshots that lead to the current one."""
        mark = F.col("summary")[_PROPERTY + query]
        try:
            snapshots, history = self._metadata("snapshots"), self._metadata("history")
        except AnalysisException as error:
            if error.getCondition() not in _MISSING:
                raise
            self._asked = _Asked(None, is_missing=True)
            return None
        (found,) = (
            history.where("is_current_ancestor")
            .join(snapshots.select("snapshot_id", mark.alias("mark")), "snapshot_id", "left")
            .agg(
                F.max_by("snapshot_id", "made_current_at"),
                F.max_by("mark", F.get_json_object("mark", "$.throttle.batch").cast("bigint")),
            )
            .collect()
        )
        self._asked = _Asked(found[0])
        return None if found[1] is None else str(found[1])

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        """Append rows in a snapshot that has the mark in its summary.

        Raises
        ------
        MovedError
            If somebody has appended since `newest_mark` was called; but a table that moves each time is appended to
            all the same.
        """
        told = {f"snapshot-property.{_PROPERTY}{query}": mark}
        if self.table is None or self._moved == _MOST_MOVES:
            self.append(rows, told)
            return
        if self._asked is None:
            self.newest_mark(query)
        asked, self._asked = cast("_Asked", self._asked), None
        if asked.is_missing:
            self.append(rows.limit(0), {})
        seen = {} if asked.snapshot is None else {"validate-from-snapshot-id": str(asked.snapshot)}
        writer = rows.writeTo(self.table).options(**self.options, **told, **seen)
        try:
            writer.option("isolation-level", "serializable").overwrite(F.lit(False))  # noqa: FBT003 - of no row
        except Exception as error:
            if _MOVED not in str(error):  # Connect and py4j raise different exceptions
                raise
            self._moved += 1
            self.spark.catalog.refreshTable(self.table)
            raise MovedError from error

    def _metadata(self, name: str) -> DataFrame:
        if self.table is not None:
            return self.spark.table(f"{self.table}.{name}")
        return self.spark.read.format(ICEBERG).load(f"{self.path}#{name}")
