"""The sink wrapper: one batch of frames goes to the user's sink, the dead letters, the usage table and the feedback.

Every partition of the frames is read, once, because a batch whose partitions were not all read cannot be committed. The
rows come from a payload: from the files in which they were staged, or from those of their source (`payload`). The
feedback is written last. A run that was frozen ends before it writes where nobody refuses it, if another has taken over
its control directory. A crash anywhere in between runs the whole batch again with the same rows: Delta tables skip a
batch that they already have, by the query's name and the batch's number (``txnAppId``, ``txnVersion``), and dead
letters in files overwrite their own folder. The table is checked after the write, because Delta skips a batch silently,
even a different batch of the same number (`checkpoint.batch_mark`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_throttle.checkpoint.batch_mark import BatchMark, mark_of
from spark_throttle.checkpoint.manifest import bound_manifest
from spark_throttle.control.reports import write_report
from spark_throttle.control.run_fence import RunWatch
from spark_throttle.core.usage import UsageReport, unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.charging import decided_policy, metered_write
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.payload import StagedPayload
from spark_throttle.spark.sinks.taken_batch import begin_batch
from spark_throttle.spark.sinks.targets import BatchFunction, Target
from spark_throttle.status.usage_table import FIRST_COLUMNS, batch_usage


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
    payload: StagedPayload
    admitted: Target | BatchFunction
    rejected: Target
    usage: Target | FileTable | None
    """The usage table, if any; a `FileTable` is written without Spark."""

    definition: str
    """The query's definition, as JSON."""

    watch: RunWatch
    outlet: Outlet | None = None
    """What takes the admitted rows in place of Spark's writer, a function's always; `admitted` says how they come."""

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Write one batch."""
        directory = Directory(self.control_path)
        manifest = bound_manifest(directory)
        rows = self.payload.take(frames, batch)
        packed = rows.usage
        report = unpack_usage(packed, f"the usage report of batch {batch}") if packed else None
        mark = mark_of(manifest, batch, report)
        if not self.watch.was_begun or not isinstance(self.admitted, Target) or self.admitted.promise != "exactly once":
            self.watch.check(directory)
        is_again = begin_batch(directory, manifest.query, batch, self.definition, report)
        has_admitted = rows.has_admitted
        has_rejected = report is not None and bool(report.rejected.any() or report.invalid_messages)
        if self.outlet is not None:
            is_given = has_admitted or not isinstance(self.admitted, Target)
            given = partial(rows.admitted, self.admitted) if is_given else None
            self.outlet.write(given, directory, mark, report, is_again=is_again)
        else:
            assert isinstance(self.admitted, Target)  # noqa: S101 - a function has an outlet that calls it
            # A table has the mark of every batch that writes anything: so two copies of a query meet there.
            if has_admitted or batch == 0 or (has_rejected and self.admitted.is_delta):
                with metered_write(directory, batch, report):
                    rows.append(self.admitted, mark)
        if has_rejected:
            self._write_rejected(directory, rows.rejected(), mark.of_part("rejected"))
        if isinstance(self.usage, FileTable) and report is not None:
            self.usage.append_usage(directory, mark.of_part("usage"), report, manifest)
        elif isinstance(self.usage, Target) and report is not None:
            policy = decided_policy(directory, report)
            usage = batch_usage(directory, report, batch, manifest=manifest, policy=policy)
            self._write_usage(self.usage, frames, usage, mark.of_part("usage"))
        rows.confirm()
        if packed:
            write_report(directory, batch, packed)

    @staticmethod
    def _write_usage(usage: Target, frames: DataFrame, rows: pa.Table, mark: BatchMark) -> None:
        if rows.num_columns > FIRST_COLUMNS:  # the table may be older than the other columns
            usage = replace(usage, options={**usage.options, "mergeSchema": "true"})
        usage.write(frames.sparkSession.createDataFrame(rows), mark)

    def _write_rejected(self, directory: Directory, rows: DataFrame, mark: BatchMark) -> None:
        if self.rejected.has_batch_folders:
            self.watch.check(directory)
            self.rejected.write_batch_folder(rows, mark.batch)
        else:
            self.rejected.write(rows, mark)
