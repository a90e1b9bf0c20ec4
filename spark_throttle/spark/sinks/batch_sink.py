"""The sink wrapper: one batch of frames goes to the user's sink, the dead letters, the usage table and the feedback.

Every partition of the frames is read, once, because a batch whose partitions were not all read cannot be committed. The
rows come from a payload: from the files in which they were staged, or from those of their source (`staged.payload`).
The feedback is written last. A crash anywhere in between runs the whole batch again with the same rows: Delta tables
skip a batch that they already have, by the query's name and the batch's number (``txnAppId``, ``txnVersion``), and dead
letters in files overwrite their own folder. The table is checked after the write, because Delta skips a batch silently,
even a different batch of the same number (`checkpoint.batch_mark`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter

from spark_throttle.checkpoint.batch_mark import BatchMark, mark_of
from spark_throttle.checkpoint.manifest import bound_manifest
from spark_throttle.control.reports import write_report
from spark_throttle.core.usage import UsageReport, unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.charging import decided_policy, metered_write
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.sink_formats import DELTA, Promise, SinkFormat, format_of
from spark_throttle.spark.sinks.taken_batch import batch_folder, begin_batch, check_taken
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.status.usage_table import FIRST_COLUMNS, batch_usage

BatchFunction = Callable[[DataFrame, int], None]
_METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Target:
    """A target of rows: a format and its options, or a table's name."""

    format: str | None
    options: dict[str, str] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    path: str | None = None
    table: str | None = None

    @property
    def kind(self) -> SinkFormat:
        """The entry for its format; a table without a format is a Delta table."""
        return format_of(DELTA if self.format is None and self.table is not None else self.format)

    @property
    def promise(self) -> Promise:
        """The target's delivery guarantee for a batch that is written again after a crash."""
        return self.kind.promise

    @property
    def is_delta(self) -> bool:
        """Whether it is a Delta table: its transactions tell whether it has a batch, and it may be written natively."""
        return self.kind.name == DELTA

    def resolved(self, paths: SparkPaths) -> Target:
        """Return the target with its path resolved by Spark; a format whose path names no file keeps it as it is."""
        if self.path is None or not self.kind.has_path:
            return self
        return replace(self, path=paths.resolve(self.path))

    def write(self, rows: DataFrame, mark: BatchMark) -> None:
        """Append a batch.

        Raises
        ------
        CheckpointMismatchError
            If a Delta table has a different batch of that number, or a later one.
        """
        writer = rows.write.mode("append").options(**self.options)
        if self.partition_columns:
            writer = writer.partitionBy(*self.partition_columns)
        if not self.is_delta:
            self._save(writer)
            return
        writer = writer.option("txnAppId", mark.query).option("txnVersion", mark.batch)
        if not self._has_own_metadata(rows):
            writer = writer.option("userMetadata", mark.to_text())
        self._save(writer)
        check_taken(rows.sparkSession, self.path, self.table, mark)

    def _has_own_metadata(self, rows: DataFrame) -> bool:
        if any(key.lower() == "usermetadata" for key in self.options):
            return True
        return bool(rows.sparkSession.conf.get(_METADATA_CONF, ""))

    def write_batch_folder(self, rows: DataFrame, batch: int) -> None:
        """Write a batch of dead letters into a folder of its own, replacing the files of an earlier attempt."""
        writer = rows.write.mode("overwrite").options(**self.options)
        if self.format is not None:
            writer = writer.format(self.format)
        writer.save(f"{self.path}/{batch_folder(batch)}")

    @property
    def is_paid_by_bytes(self) -> bool:
        """Whether a write costs what its bytes cost, as for files; writes to other systems may need all tasks."""
        return self.format is None or self.kind.is_paid_by_bytes

    @property
    def has_batch_folders(self) -> bool:
        """Whether dead letters here have one folder per batch, which makes files exactly once."""
        return self.kind.has_files and self.path is not None

    def _save(self, writer: DataFrameWriter) -> None:
        if self.format is not None:
            writer = writer.format(self.format)
        if self.table is not None:
            writer.saveAsTable(self.table)
        elif self.path is not None:
            writer.save(self.path)
        else:
            writer.save()


class BatchRows(Protocol):
    """The rows of a batch, and its usage report."""

    @property
    def usage(self) -> bytes:
        """The packed usage report; empty of a batch that brought nothing to decide."""
        ...

    @property
    def has_admitted(self) -> bool:
        """Whether any row leaves, those included that are sent again."""
        ...

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target; called again with the same mark if the batch is run again."""
        ...

    def admitted(self, target: Target | BatchFunction) -> DataFrame:
        """Return the admitted rows, in as many partitions as pay for their target."""
        ...

    def rejected(self, target: Target) -> DataFrame:
        """Return the rejected rows, with the ``throttle`` column; called only if there are any."""
        ...

    def confirm(self) -> None:
        """Refuse the batch if its rows were not what was decided when a sink read them; called after all sinks."""
        ...

    def close(self) -> None:
        """Drop what was kept for the batch; called once, even if the batch failed."""
        ...


class Payload(Protocol):
    """Where the rows of a query's batches come from."""

    def take(self, frames: DataFrame, batch: int) -> BatchRows:
        """Return the rows of a batch, after computing every partition of its frames once."""
        ...


class Outlet(Protocol):
    """What takes the admitted rows of a batch itself, by what the decider reports of it."""

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        report: UsageReport | None,
        *,
        is_again: bool,
    ) -> None:
        """Take the rows, and write down what was not delivered of them (`checkpoint.delivery`).

        Without rows, `None` is given for a target, and no row for a function, which is called for every batch.

        Called again with the same rows if the batch is run again.

        Parameters
        ----------
        is_again
            Whether an earlier attempt may have come so far.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchSink:
    """The function for `foreachBatch`: called on the driver once per batch, and again for that batch after a crash."""

    control_path: str
    payload: Payload
    admitted: Target | BatchFunction
    rejected: Target
    usage: Target | FileTable | None
    """The usage table, if any; a `FileTable` is written without Spark."""

    definition: str = ""
    """The query's definition, as JSON."""

    outlet: Outlet | None = None
    """What takes the admitted rows in place of Spark's writer, a function's always; `admitted` says how they come."""

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Write one batch."""
        directory = Directory(self.control_path)
        manifest = bound_manifest(directory)
        rows = self.payload.take(frames, batch)
        try:
            packed = rows.usage
            report = unpack_usage(packed, f"the usage report of batch {batch}") if packed else None
            mark = mark_of(manifest, batch, report)
            is_again = begin_batch(directory, manifest.query, batch, self.definition, report)
            has_admitted = rows.has_admitted
            has_rejected = report is not None and bool(report.rejected.any() or report.invalid_messages)
            if self.outlet is not None:
                is_given = has_admitted or not isinstance(self.admitted, Target)
                given = partial(rows.admitted, self.admitted) if is_given else None
                self.outlet.write(given, directory, mark, report, is_again=is_again)
            elif not isinstance(self.admitted, Target):
                raise TypeError(f"{self.admitted!r} is a function, and has no outlet that calls it")
            elif has_admitted or batch == 0 or (has_rejected and self.admitted.is_delta):
                # A table has the mark of every batch that writes anything: so two copies of a query meet there.
                with metered_write(directory, batch, report):
                    rows.append(self.admitted, mark)
            if has_rejected:
                self._write_rejected(rows.rejected(self.rejected), mark.of_part("rejected"))
            if isinstance(self.usage, FileTable) and report is not None:
                self.usage.append_usage(directory, mark.of_part("usage"), report, manifest)
            elif isinstance(self.usage, Target) and report is not None:
                policy = decided_policy(directory, report)
                usage = batch_usage(directory, report, batch, manifest=manifest, policy=policy)
                self._write_usage(self.usage, frames, usage, mark.of_part("usage"))
            rows.confirm()
            if packed:
                write_report(directory, batch, packed)
        finally:
            rows.close()

    @staticmethod
    def _write_usage(usage: Target, frames: DataFrame, rows: pa.Table, mark: BatchMark) -> None:
        if rows.num_columns > FIRST_COLUMNS:  # the table may be older than the other columns
            usage = replace(usage, options={**usage.options, "mergeSchema": "true"})
        usage.write(frames.sparkSession.createDataFrame(rows), mark)

    def _write_rejected(self, rows: DataFrame, mark: BatchMark) -> None:
        if self.rejected.has_batch_folders:
            self.rejected.write_batch_folder(rows, mark.batch)
        else:
            self.rejected.write(rows, mark)
