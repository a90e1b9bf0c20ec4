"""The native Delta sink: executors write rows to Parquet files, and the driver commits the files to the tables' logs.

``throttle_delta`` is a Python data source to which a query writes all its frames; nothing is kept for a second pass.
The operator has already written most rows, and its frames name the files (`file_outlet`). A task of the sink writes the
admitted and rejected rows that came as frames, and reports all files and usage reports to the driver. Like
`batch_sink`, the driver then commits admitted rows, rejected rows, usage and feedback, in this order, each once by the
query's name and the batch's number. A crash anywhere in between runs the whole batch again with the same rows: tables
skip batches that they already have, and files of the earlier attempt are never named. A different batch of the same
number, as planned by a checkpoint that was put back, is refused (`checkpoint.batch_mark`).

`abort` does not delete files: Spark also calls it for a commit that failed half-way, when a table may already have some
of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark, mark_of
from spark_throttle.checkpoint.manifest import Manifest, bound_manifest
from spark_throttle.control.feedback import write_reports
from spark_throttle.core.usage import UsageReport, unpack_usage
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.delta.kept_tables import append_to_table
from spark_throttle.spark.delta.table_files import TableFileWriter, WrittenFile
from spark_throttle.spark.metering.decided_policy import decided_policy
from spark_throttle.spark.metering.sink_meter import charge_sink, is_metered
from spark_throttle.spark.rows.frames import OUTPUT_SCHEMA, FrameKind, FrameUnpacker
from spark_throttle.spark.rows.worker_heap import set_loaded_aside
from spark_throttle.spark.sinks.begin_batch import begin_batch
from spark_throttle.spark.sinks.destination import (
    Destination,
    SinkPlan,
    batch_folder,
    file_writer,
    part_name,
    table_writer,
)
from spark_throttle.spark.sinks.file_outlet import unpack_files
from spark_throttle.spark.sinks.table_features import check_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

DELTA_SINK_FORMAT = "throttle_delta"
_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class TaskOutput(WriterCommitMessage):
    """The message of a task to the driver."""

    admitted: list[WrittenFile]
    rejected: list[WrittenFile]
    usage: list[bytes]
    used_ns: int
    """The CPU time of the task's thread."""


class ThrottleDeltaSink(DataSource):
    """The data source ``throttle_delta``; used by `ThrottledStreamWriter`, not by users."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return DELTA_SINK_FORMAT

    def schema(self) -> str:
        """Return the schema of frames."""
        return OUTPUT_SCHEMA

    def streamWriter(self, schema: StructType, overwrite: bool) -> ThrottleDeltaWriter:  # noqa: N802, FBT001, ARG002 - Spark's
        """Return the writer; called on the driver twice per batch: to plan the tasks, and to commit."""
        set_loaded_aside()
        return ThrottleDeltaWriter(self.options[_PLAN])


class ThrottleDeltaWriter(DataSourceStreamArrowWriter):
    """A writer of one batch: `write` runs on the executors, once per attempt at a task, the rest on the driver."""

    def __init__(self, plan_json: str) -> None:
        self._plan_json = plan_json

    @property
    def plan(self) -> SinkPlan:
        """The destinations of the rows."""
        return SinkPlan.from_json(self._plan_json)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        """Write the rows of all frames, and return the files and the usage reports."""
        set_loaded_aside()
        began_ns = time.thread_time_ns()
        plan = self.plan
        writers = {
            FrameKind.ADMITTED: self.file_writer(plan.admitted),
            FrameKind.REJECTED: self.file_writer(plan.rejected),
        }
        unpack = {kind: FrameUnpacker(writer.schema) for kind, writer in writers.items()}
        named: dict[FrameKind, list[WrittenFile]] = {kind: [] for kind in writers}
        usage = []
        for batch in iterator:
            for number, frame in zip(batch.column("kind").to_pylist(), batch.column("frame"), strict=True):
                kind = FrameKind(number)
                if kind == FrameKind.USAGE:
                    usage.append(frame.as_py())
                elif kind == FrameKind.FILES:
                    holds, files = unpack_files(frame.as_py())
                    named[holds] += files
                else:
                    for rows in unpack[kind].rows(frame.as_buffer()):
                        writers[kind].add(rows)
        admitted, rejected = (named[kind] + writer.finish() for kind, writer in writers.items())
        return TaskOutput(admitted, rejected, usage, time.thread_time_ns() - began_ns)

    def file_writer(self, destination: Destination) -> TableFileWriter:
        """Return the writer of this task's rows for a destination."""
        return file_writer(destination)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a batch; called again for the same batch, with other files of the same rows, after a crash."""
        plan = self.plan
        directory, began_ns = Directory(plan.control_path), time.thread_time_ns()
        tasks = [message for message in messages if isinstance(message, TaskOutput)]
        packed = [block for task in tasks for block in task.usage]
        reports = [unpack_usage(block, f"a usage report of batch {batchId}") for block in packed]
        manifest = bound_manifest(directory)
        mark = mark_of(manifest, batchId, reports)
        begin_batch(directory, manifest.query, batchId, plan.definition, reports)
        admitted, rejected = (
            [file for task in tasks for file in task.admitted],
            [file for task in tasks for file in task.rejected],
        )
        # The first table has the mark of every batch that writes anything: so two copies of a query meet there.
        if admitted or rejected:
            self.add(plan.admitted, mark, admitted)
        if rejected:
            self.add(plan.rejected, mark.of_part("rejected"), rejected)
        if plan.usage is not None and reports:
            append_usage(plan.usage, directory, mark.of_part("usage"), reports, manifest)
        if is_metered(directory, reports):
            used_ns = sum(task.used_ns for task in tasks) + time.thread_time_ns() - began_ns
            charge_sink(directory, batchId, reports, used_ns)
        write_reports(directory, batchId, packed)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing; the module's header explains why."""

    def add(self, destination: Destination, mark: BatchMark, files: list[WrittenFile]) -> None:
        """Make the files of a batch visible at a destination, once; a table has its mark even without files."""
        if destination.is_table:
            append_once(destination, mark, lambda: files)
        else:
            show_folder(destination.location, mark.batch, files)


def append_usage(
    destination: Destination,
    directory: Directory,
    mark: BatchMark,
    reports: Sequence[UsageReport],
    manifest: Manifest,
) -> None:
    """Append the usage reports of a batch to the usage table, once."""
    from spark_throttle.status.shared_status import SHARE_SCHEMA, batch_usage  # slow to load, and rarely needed

    def write() -> list[WrittenFile]:
        writer = table_writer(destination, part_name(0))
        has_shares = set(SHARE_SCHEMA.names) <= set(destination.schema.names)
        policy = decided_policy(directory, reports)
        usage = batch_usage(directory, reports, mark.batch, has_shares=has_shares, manifest=manifest, policy=policy)
        for rows in usage.to_batches():
            writer.add(rows)
        return writer.finish()

    append_once(destination, mark, write)


def append_once(destination: Destination, mark: BatchMark, written: Callable[[], list[WrittenFile]]) -> None:
    """Append the files that `written` returns to a table, unless the table already has the batch.

    Raises
    ------
    CheckpointMismatchError
        If the table has a different batch of that number, or a later one.
    NativeWriterError, ConfigurationError
        If the table was changed so that the rows can no longer be appended. Nothing of the batch was committed to it.
    """
    append_to_table(
        destination.location,
        mark,
        lambda table: _check_as_planned(table, destination),
        written,
    )


def _check_as_planned(table: DeltaTable, destination: Destination) -> None:
    """Refuse a table that can no longer take the files as they are written since the query started."""
    found = tuple(table.metadata().partition_columns)
    if found != destination.partition_columns:
        raise ConfigurationError(
            f"{destination.location} was partitioned by {list(destination.partition_columns)} when the query started, "
            f"and is now by {list(found)}: restart the query, without partitionBy or with what the table has"
        )
    check_table(table, destination.location, destination.schema, destination.partition_columns)


def show_folder(location: str, batch: int, files: list[WrittenFile]) -> None:
    """Show the files of a batch in its folder, and delete the files that an earlier attempt left there."""
    system, root = file_system(location)
    folder = f"{root}/{batch_folder(batch)}"
    hidden = {file.path: file.path.removeprefix(".") for file in files}
    for info in system.get_file_info(fs.FileSelector(folder, recursive=True)):
        if info.type == fs.FileType.File and PurePosixPath(info.path).name not in hidden:
            system.delete_file(info.path)
    for name, shown in hidden.items():
        system.move(f"{folder}/{name}", f"{folder}/{shown}")
