"""The sink wrapper: one batch of frames goes to the user's sink, the dead letters, the usage table and the feedback.

The frames are computed once and persisted for the batch, because every action on the batch would run the operator
again. Every partition is read, because a batch whose partitions were not all read cannot be committed. If a target
consists of files, a small number of frames is unpacked by a small number of tasks, so that a small batch makes few
files. The feedback is written last. A crash anywhere in between runs the whole batch again with the same rows: Delta
tables skip a batch that they already have, by the query's name and the batch's number (``txnAppId``, ``txnVersion``),
and dead letters in files overwrite their own folder. The table is checked after the write, because Delta skips a batch
silently, even a different batch of the same number (`checkpoint.batch_mark`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark, mark_of
from spark_throttle.checkpoint.manifest import bound_manifest
from spark_throttle.control.feedback import write_reports
from spark_throttle.core.codec import unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import carried_schema, from_carried
from spark_throttle.spark.rows.frames import FrameKind, FrameUnpacker
from spark_throttle.spark.sinks.begin_batch import begin_batch
from spark_throttle.spark.sinks.delta_sink import append_usage
from spark_throttle.spark.sinks.destination import Destination
from spark_throttle.spark.sinks.sink_formats import DELTA, Promise, SinkFormat, format_of
from spark_throttle.spark.sinks.taken_batch import check_taken
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.status.shared_status import batch_usage
from spark_throttle.status.usage_table import FIRST_COLUMNS

BatchFunction = Callable[[DataFrame, int], None]
_METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
_TASK_BYTES = 4 << 20
"""Bytes of compressed frames per task; a task with fewer would take longer to start than to unpack them."""


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
        writer.save(f"{self.path}/batch={batch}")

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


@dataclass(frozen=True, slots=True)
class BatchSink:
    """The function for `foreachBatch`: called on the driver once per batch, and again for that batch after a crash."""

    control_path: str
    schema: StructType
    """Schema of the user's rows."""

    row_schema: pa.Schema
    rejected_schema: pa.Schema
    verdict_type: StructType
    admitted: Target | BatchFunction
    rejected: Target
    usage: Target | Destination | None
    """The usage table, if any; a `Destination` is written without Spark."""

    definition: str = ""
    """The query's definition, as JSON."""

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Write one batch."""
        directory = Directory(self.control_path)
        manifest = bound_manifest(directory)
        frames = frames.persist()
        try:
            kept = _KeptFrames.of(frames)
            packed = kept.usage
            reports = [unpack_usage(block, f"a usage report of batch {batch}") for block in packed]
            mark = mark_of(manifest, batch, reports)
            begin_batch(directory, manifest.query, batch, self.definition, reports)
            has_admitted = any(report.admitted.any() for report in reports)
            has_rejected = any(report.rejected.any() or report.invalid_messages for report in reports)
            if not isinstance(self.admitted, Target):
                self.admitted(self._rows(kept, FrameKind.ADMITTED), batch)
            elif has_admitted or batch == 0 or (has_rejected and self.admitted.is_delta):
                # A table has the mark of every batch that writes anything: so two copies of a query meet there.
                self.admitted.write(self._rows(kept, FrameKind.ADMITTED), mark)
            if has_rejected:
                self._write_rejected(self._rows(kept, FrameKind.REJECTED), mark.of_part("rejected"))
            if isinstance(self.usage, Destination) and packed:
                append_usage(self.usage, directory, mark.of_part("usage"), reports)
            elif isinstance(self.usage, Target) and packed:
                self._write_usage(self.usage, frames, batch_usage(directory, reports, batch), mark.of_part("usage"))
            write_reports(directory, batch, packed)
        finally:
            frames.unpersist()

    @staticmethod
    def _write_usage(usage: Target, frames: DataFrame, rows: pa.Table, mark: BatchMark) -> None:
        if rows.num_columns > FIRST_COLUMNS:  # the table may be older than the other columns
            usage = replace(usage, options={**usage.options, "mergeSchema": "true"})
        usage.write(frames.sparkSession.createDataFrame(rows), mark)

    def _rows(self, kept: _KeptFrames, kind: FrameKind) -> DataFrame:
        wanted = kept.of_kind(kind, self.rejected if kind == FrameKind.REJECTED else self.admitted)
        carried = carried_schema(self.schema)
        if kind == FrameKind.REJECTED:
            schema = StructType([*carried, *self.verdict_type])
            rows = wanted.mapInArrow(FrameUnpacker(self.rejected_schema), schema)
        else:
            rows = wanted.mapInArrow(FrameUnpacker(self.row_schema), carried)
        return from_carried(rows, self.schema)

    def _write_rejected(self, rows: DataFrame, mark: BatchMark) -> None:
        if self.rejected.has_batch_folders:
            self.rejected.write_batch_folder(rows, mark.batch)
        else:
            self.rejected.write(rows, mark)


@dataclass(frozen=True, slots=True)
class _KeptFrames:
    """The computed frames of a batch."""

    frames: DataFrame
    usage: list[bytes]
    """The packed usage reports."""

    size_bytes: dict[int, int]
    """Bytes of the frames of each kind."""

    @classmethod
    def of(cls, frames: DataFrame) -> _KeptFrames:
        """Compute all partitions of the frames, and collect the usage reports and sizes."""
        usage = F.when(_is(FrameKind.USAGE), F.col("frame")).alias("usage")
        rows = frames.select("kind", F.octet_length("frame").alias("bytes"), usage).collect()
        size_bytes: dict[int, int] = {}
        for row in rows:
            size_bytes[row["kind"]] = size_bytes.get(row["kind"], 0) + row["bytes"]
        return cls(frames, [bytes(row["usage"]) for row in rows if row["usage"] is not None], size_bytes)

    def of_kind(self, kind: FrameKind, target: Target | BatchFunction) -> DataFrame:
        """Return the frames of a kind, in no more partitions than their bytes justify for their target."""
        found = self.frames.where(_is(kind)).select("frame")
        if not isinstance(target, Target) or not target.is_paid_by_bytes:
            return found
        return found.coalesce(max(1, -(-self.size_bytes.get(kind, 0) // _TASK_BYTES)))


def _is(kind: FrameKind) -> Column:
    return F.col("kind") == int(kind)
