"""Points at which a run of the job stops dead, so that it can be killed exactly there; and a journal of its batches.

A run that reaches its point says so by a file and then waits for ever, with all its processes: the test sees the file
and kills them. The library has no hook for this. The sink of Spark's writer is a function that the driver calls, so it
is wrapped in place; the native sink runs in processes of Spark's, so a subclass of it is registered instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control.feedback import write_reports
from spark_throttle.spark import writer
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.rows.frames import FrameKind, decode
from spark_throttle.spark.sinks import batch_sink
from spark_throttle.spark.sinks.batch_sink import BatchSink, Target
from spark_throttle.spark.sinks.delta_sink import TaskOutput, ThrottleDeltaSink, ThrottleDeltaWriter
from spark_throttle.spark.sinks.destination import Destination

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

AFTER_ADMITTED = "after-admitted"
"""The admitted rows are committed; rejected rows and usage are not."""

AFTER_FEEDBACK = "after-feedback"
"""All of a batch is written, its feedback too; its commit is not yet logged."""

POINTS = (AFTER_ADMITTED, AFTER_FEEDBACK)

_POINT, _TURN, _REACHED = "TEST_PAUSE_POINT", "TEST_PAUSE_TURN", "TEST_PAUSE_REACHED"
"""Of the environment, which is what processes inherit that are started by the run's JVM."""


def arm(point: str, turn: int, reached: Path, admitted: Path) -> None:
    """Make this run pause at `point` in the first batch from number `turn` on."""
    os.environ[_POINT], os.environ[_TURN], os.environ[_REACHED] = point, str(turn), str(reached)
    if point == AFTER_ADMITTED:
        write = Target.write

        def write_and_pause(self: Target, rows: DataFrame, mark: BatchMark) -> None:
            write(self, rows, mark)
            if self.path == str(admitted) and mark.batch >= turn:
                pause(reached)

        Target.write = write_and_pause  # type: ignore[method-assign]
    elif point == AFTER_FEEDBACK:

        def report_and_pause(directory: Any, batch: int, reports: list[bytes], **options: Any) -> None:
            write_reports(directory, batch, reports, **options)
            if batch >= turn:
                pause(reached)

        batch_sink.write_reports = report_and_pause  # type: ignore[attr-defined]


def pause(reached: Path) -> None:
    """Say that the point is reached, and wait to be killed."""
    reached.touch()
    threading.Event().wait()


def keep_journal(path: Path) -> None:
    """Write a line for every attempt at a batch: what the operator returned, before any of it counts.

    Two attempts at one batch must return the same rows in the same order with the same verdicts, and the same usage.
    """
    writer.ThrottleDeltaSink = WatchedDeltaSink  # type: ignore[attr-defined]
    call = BatchSink.__call__

    def call_and_digest(self: BatchSink, frames: DataFrame, batch: int) -> None:
        frames.persist()  # as the sink does next: the operator runs once
        found = sorted(_shown(row["kind"], bytes(row["frame"])) for row in frames.collect())
        _write_line(path, batch, found)
        call(self, frames, batch)

    BatchSink.__call__ = call_and_digest  # type: ignore[method-assign]


def _write_line(path: Path, batch: int, found: list[str]) -> None:
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    with path.open("a") as journal:
        journal.write(json.dumps({"batch": batch, "digest": digest}) + "\n")


@dataclass(frozen=True, slots=True)
class WatchedOutput(TaskOutput):
    """What a task tells the driver, and what it was given."""

    shown: list[str]


class WatchedDeltaWriter(ThrottleDeltaWriter):
    """Keeps the journal, and pauses where the environment says."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WatchedOutput:
        batches = list(iterator)
        told = super().write(iter(batches))
        frames = [row for batch in batches for row in batch.to_pylist()]
        shown = [_shown(row["kind"], row["frame"]) for row in frames]
        return WatchedOutput(told.admitted, told.rejected, told.usage, told.used_ns, shown)

    def add(self, destination: Destination, mark: BatchMark, files: list[WrittenFile]) -> None:
        super().add(destination, mark, files)
        if destination == self.plan.admitted:
            self._pause_at(AFTER_ADMITTED, mark.batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        shown = [line for message in messages if isinstance(message, WatchedOutput) for line in message.shown]
        # The checkpoint stands beside the journal, and the control directory in the checkpoint.
        _write_line(Path(self.plan.control_path).parents[1] / "journal", batchId, sorted(shown))
        super().commit(messages, batchId)
        self._pause_at(AFTER_FEEDBACK, batchId)

    @staticmethod
    def _pause_at(point: str, batch: int) -> None:
        if os.environ.get(_POINT) == point and batch >= int(os.environ[_TURN]):
            pause(Path(os.environ[_REACHED]))


class WatchedDeltaSink(ThrottleDeltaSink):
    """A native sink that is watched."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> ThrottleDeltaWriter:  # noqa: N802 - Spark's name
        return WatchedDeltaWriter(self.options["plan"])


def _shown(kind: int, frame: bytes) -> str:
    content = frame.hex() if kind == FrameKind.USAGE else repr(decode(frame).to_pylist())
    return f"{kind} {content}"
