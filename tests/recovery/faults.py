"""Points at which a run of the job stops dead, so that it can be killed exactly there; and a journal of its batches.

A run that reaches its point says so by a file and then waits for ever, with all its processes: the test sees the file
and kills them. The library has no hook for this. The sink is a function that the driver calls, so it is wrapped in
place; the control source lives in a process of its own, so a subclass of it is registered instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_throttle.control.feedback import write_reports
from spark_throttle.spark import batch_sink, throttle
from spark_throttle.spark.batch_sink import BatchSink, Target
from spark_throttle.spark.control_source import ThrottleControlReader, ThrottleControlSource
from spark_throttle.spark.frames import FrameKind, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

AFTER_EPOCH = "after-epoch"
"""An epoch is written, and the offset that names it is not yet logged."""

AFTER_ADMITTED = "after-admitted"
"""The admitted rows are committed; rejected rows and usage are not."""

AFTER_FEEDBACK = "after-feedback"
"""All of a batch is written, its feedback too; its commit is not yet logged."""

POINTS = (AFTER_EPOCH, AFTER_ADMITTED, AFTER_FEEDBACK)

_TURN, _REACHED = "TEST_PAUSE_TURN", "TEST_PAUSE_REACHED"


def arm(point: str, turn: int, reached: Path, admitted: Path) -> None:
    """Make this run pause at `point` in the first batch (or at the first epoch) from number `turn` on."""
    if point == AFTER_EPOCH:
        # The environment is what the control source's process inherits.
        os.environ[_TURN], os.environ[_REACHED] = str(turn), str(reached)
        throttle.ThrottleControlSource = PausingControlSource  # type: ignore[attr-defined]
    elif point == AFTER_ADMITTED:
        write = Target.write

        def write_and_pause(self: Target, rows: DataFrame, query: str, batch: int) -> None:
            write(self, rows, query, batch)
            if self.path == str(admitted) and batch >= turn:
                pause(reached)

        Target.write = write_and_pause  # type: ignore[method-assign]
    else:

        def report_and_pause(directory: Any, batch: int, reports: list[bytes], **options: Any) -> None:
            write_reports(directory, batch, reports, **options)
            if batch >= turn:
                pause(reached)

        batch_sink.write_reports = report_and_pause  # type: ignore[attr-defined]


def pause(reached: Path) -> None:
    """Say that the point is reached, and wait to be killed."""
    reached.touch()
    threading.Event().wait()


class PausingControlReader(ThrottleControlReader):
    """Writes an epoch and does not return its offset."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        offset = super().latestOffset(start, limit)
        if offset != start and offset["epoch"] >= int(os.environ[_TURN]):
            pause(Path(os.environ[_REACHED]))
        return offset


class PausingControlSource(ThrottleControlSource):
    """A control source whose reader pauses."""

    def streamReader(self, schema: StructType) -> ThrottleControlReader:  # noqa: N802 - Spark's name
        return PausingControlReader(dict(self.options))


def keep_journal(path: Path) -> None:
    """Write a line for every attempt at a batch: what the operator returned, before any of it is written.

    Two attempts at one batch must return the same rows in the same order with the same verdicts, and the same usage.
    """
    call = BatchSink.__call__

    def call_and_digest(self: BatchSink, frames: DataFrame, batch: int) -> None:
        frames.persist()  # as the sink does next: the operator runs once
        found = sorted(_shown(row["kind"], bytes(row["frame"])) for row in frames.collect())
        digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
        with path.open("a") as journal:
            journal.write(json.dumps({"batch": batch, "digest": digest}) + "\n")
        call(self, frames, batch)

    BatchSink.__call__ = call_and_digest  # type: ignore[method-assign]


def _shown(kind: int, frame: bytes) -> str:
    content = frame.hex() if kind == FrameKind.USAGE else repr(decode(frame).to_pylist())
    return f"{kind} {content}"
