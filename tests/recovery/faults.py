"""Points at which a query of a job stops dead, so that it can be killed exactly there; and a journal of its batches.

A query that reaches its point says so by a file and then waits for ever: the test sees the file and kills the job with
all its processes. The library has no hook for this: what the driver calls is wrapped in place. All that a query of
these jobs has is in one directory, its root, by which it is known here.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.delivery import Delivery, write_delivery
from spark_throttle.control.reports import write_report
from spark_throttle.files.storage import Directory
from spark_throttle.spark.paced import paced_sink
from spark_throttle.spark.sinks import batch_sink
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.payload import StagedPayload, StagedRows
from spark_throttle.spark.sinks.targets import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AFTER_ADMITTED = "after-admitted"
"""The admitted rows are committed; rejected rows and usage are not."""

AFTER_FEEDBACK = "after-feedback"
"""All of a batch is written, its feedback too; its commit is not yet logged."""

BEFORE_KEPT, AMID_KEPT, AFTER_KEPT = "before-kept", "amid-kept", "after-kept"
"""The record of what a batch delivered is to be written, or half of it is, or all."""

_SINK = Target("delta")
_ARMED = "TEST_PAUSES"
"""Of the environment, which is what processes inherit that are started by the job's JVM: points, by a query's root."""


def arm(root: Path, point: str) -> None:
    """Make the query of `root` pause at `point`, in a batch after the first; before the session is opened."""
    os.environ[_ARMED] = json.dumps(_armed() | {str(root): point})


def reached(root: Path) -> Path:
    """Return the file that is there once the query of `root` stands at its point."""
    return root / "reached"


def stop_at_points() -> None:
    """Put the points into the sinks of this process."""
    write, append = Target.write, FileTable.append_staged

    def append_and_pause(self: FileTable, mark: BatchMark, *files: Any) -> None:
        append(self, mark, *files)
        _pause_at(AFTER_ADMITTED, Path(self.location).parent, mark.batch)

    def write_and_pause(self: Target, rows: DataFrame, mark: BatchMark) -> None:
        write(self, rows, mark)
        if self.path is not None and Path(self.path).name == "admitted":
            _pause_at(AFTER_ADMITTED, Path(self.path).parent, mark.batch)

    def report_and_pause(directory: Any, batch: int, report: bytes) -> None:
        write_report(directory, batch, report)
        _pause_at(AFTER_FEEDBACK, _root_of(directory.location), batch)

    def keep_and_pause(control: Directory, batch: int, batch_ms: int, delivery: Delivery) -> None:
        root = _root_of(control.location)
        if not len(delivery.undelivered.names):
            write_delivery(control, batch, batch_ms, delivery)
            return
        _pause_at(BEFORE_KEPT, root, batch)
        is_to_be_torn = _stands_at(AMID_KEPT, root, batch)
        write_delivery(_TornDirectory(control.location) if is_to_be_torn else control, batch, batch_ms, delivery)
        _pause_at(AFTER_KEPT, root, batch)

    sinks: Any = batch_sink
    paced: Any = paced_sink
    FileTable.append_staged = append_and_pause  # type: ignore[assignment, method-assign]
    Target.write = write_and_pause  # type: ignore[method-assign]
    sinks.write_report = report_and_pause
    paced.write_delivery = keep_and_pause


def keep_journal() -> None:
    """Write a line for every attempt at a batch: what was decided, before any of it counts.

    Two attempts at one batch must decide the same rows with the same verdicts, and report the same usage.
    """
    take = StagedPayload.take

    def take_and_digest(self: StagedPayload, frames: DataFrame, batch: int) -> StagedRows:
        found = take(self, frames, batch)
        shown = [repr(row) for row in found.admitted(_SINK).collect()]
        if found.explained is not None:
            shown += [repr(row) for row in found.rejected().collect()]
        _write_line(_root_of(self.upkeep.control_path), batch, sorted([*shown, found.usage.hex()]))
        return found

    StagedPayload.take = take_and_digest  # type: ignore[method-assign]


def _armed() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get(_ARMED, "{}"))
    return found


def _stands_at(point: str, root: Path, batch: int) -> bool:
    return batch > 0 and _armed().get(str(root)) == point


def _pause_at(point: str, root: Path, batch: int) -> None:
    if _stands_at(point, root, batch):
        _pause(root)


def _pause(root: Path) -> None:
    """Say that the point is reached, and wait to be killed."""
    reached(root).touch()
    threading.Event().wait()


def _root_of(control_path: str) -> Path:
    """Return the directory of a query: the checkpoint stands in it, and the control directory in the checkpoint."""
    return Path(control_path).parents[1]


def _write_line(root: Path, batch: int, found: list[str]) -> None:
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    with (root / "journal").open("a") as journal:
        journal.write(json.dumps({"batch": batch, "digest": digest}) + "\n")


class _TornDirectory(Directory):
    """Writes a half of a file beside it, and pauses."""

    def write(self, name: str, content: bytes) -> None:
        super().write(f"{name}.half", content[: len(content) // 2])
        _pause(_root_of(self.location))
