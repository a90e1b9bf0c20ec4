"""Named points at which a run of the job stops dead, so that it can be killed exactly there.

The library has no hook for this: what writes is wrapped in place, here, before the query starts. A run stops at a point
when the file `arm` in its directory names the point; it then makes the file `reached`, with the number of its process,
and waits while `arm` names the point. The control source and Python's workers are processes of their own: they find the
directory in the environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control.reports import write_report
from spark_throttle.files.storage import Directory
from spark_throttle.spark import pipeline, reference_pipeline
from spark_throttle.spark.delta.table_files import TableFileWriter, WrittenFile
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.move.cutting import Cut, RowsOfFile, SourceRests
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.stager import Stager
from spark_throttle.spark.sinks import batch_sink
from spark_throttle.spark.sinks import payload as staged_payload
from spark_throttle.spark.sinks.decided_stream import DecidedRows
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.targets import Target
from spark_throttle.spark.sinks.transactional import IcebergTable
from spark_throttle.spark.sources.control_source import ThrottleControlReader, ThrottleControlSource
from spark_throttle.spark.sources.reference_source import (
    FilePartition,
    ThrottleReferenceReader,
    ThrottleReferenceSource,
)
from tests.crash import iceberg
from tests.crash.topic import ADMITTED

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

EPOCH_HALF_WRITTEN: Final = "epoch-half-written"
EPOCH_WRITTEN: Final = "epoch-written"
"""An epoch is written, and the offset that names it is not yet logged."""

EXTENT_HALF_WRITTEN: Final = "extent-half-written"
"""The list of a batch's files is half written; only a job that decides on references writes one."""

QUEUE_HALF_WRITTEN: Final = "queue-half-written"
"""The decider has begun a file of waiting rows."""

ROWS_PACKED: Final = "rows-packed"
"""A task has sent some of the frames that it packs."""

DECIDED: Final = "decided"
"""The decider has sent some of its frames; its state is not committed."""

STATE_COMMITTED: Final = "state-committed"
"""The decider's state of the batch is committed; the sink has nothing of it."""

ADMITTED_WRITTEN: Final = "admitted-written"
"""Admitted rows are committed; rejected rows and usage are not."""

REJECTED_WRITTEN: Final = "rejected-written"
"""Admitted and rejected rows are committed; usage is not."""

FEEDBACK_HALF_WRITTEN: Final = "feedback-half-written"
DELIVERY_HALF_WRITTEN: Final = "delivery-half-written"
"""The record of what a batch delivered is half written; only a job that sends at a pace has any."""

REPORTED: Final = "reported"
"""All of a batch is written, its feedback too; its commit is not yet logged."""

FILE_HALF_WRITTEN: Final = "file-half-written"
"""A task has begun a file of rows: as they came, or of a batch's file that it cuts."""

FILES_CUT: Final = "files-cut"
"""A task has cut some of the files of a batch of which some rows leave and others wait, or has copied what waits."""

ROWS_LEFT: Final = "rows-left"
"""A task has given some of the rows that leave to Spark's sink."""

OF_STAGED_ROWS: Final = (FILE_HALF_WRITTEN, FILES_CUT)
OF_EVERY_SINK: Final = (
    EPOCH_HALF_WRITTEN, EPOCH_WRITTEN, ROWS_PACKED, QUEUE_HALF_WRITTEN, DECIDED, FEEDBACK_HALF_WRITTEN,
)  # fmt: skip
OF_A_DECIDED_STREAM: Final = (*OF_EVERY_SINK, ROWS_LEFT, REPORTED)
OF_A_PACED_SINK: Final = (*OF_EVERY_SINK, DELIVERY_HALF_WRITTEN, REPORTED)
OF_A_BATCH_SINK: Final = (*OF_EVERY_SINK, STATE_COMMITTED, ADMITTED_WRITTEN, REPORTED)
OF_AN_EPOCH: Final = (EPOCH_HALF_WRITTEN, EPOCH_WRITTEN)
"""Where no row waits, only a change of policy makes a running job write an epoch."""

NOT_OF_EVERY_BATCH: Final = (QUEUE_HALF_WRITTEN, DELIVERY_HALF_WRITTEN, FILES_CUT)

_HALF_WRITTEN: Final = {
    "/epochs/": EPOCH_HALF_WRITTEN,
    "/extents/": EXTENT_HALF_WRITTEN,
    ".report.": FEEDBACK_HALF_WRITTEN,
    "/queue/": QUEUE_HALF_WRITTEN,
    ".delivery.": DELIVERY_HALF_WRITTEN,
}
_INLINE_BYTES: Final = 500
"""Bytes of waiting rows that the decider keeps in its state: few, so that most batches write them to a file."""

CATALOG_TABLE: Final = "admitted"
"""The table of admitted rows, if its catalog commits."""

DIRECTORY: Final = "TEST_CRASH_DIRECTORY"
"""The variable of the environment that names the run's directory."""

_LOOK_SECONDS: Final = 0.05


def install(root: Path, admitted: str, rejected: str) -> None:
    """Wrap what writes, in this process and in those that Spark starts for it."""
    os.environ[DIRECTORY] = str(root)
    pipeline.INLINE_BYTES = _INLINE_BYTES  # type: ignore[attr-defined]
    pipeline.ThrottleControlSource = StoppableControlSource  # type: ignore[attr-defined]
    reference_pipeline.ThrottleReferenceSource = StoppableReferenceSource  # type: ignore[attr-defined]
    reference_pipeline.DigestDecider = StoppableDigestDecider  # type: ignore[attr-defined]
    reference_pipeline.INLINE_BYTES = _INLINE_BYTES  # type: ignore[attr-defined]
    pipeline.Stager = StoppableStager  # type: ignore[attr-defined]
    pipeline.DigestDecider = StoppableDigestDecider  # type: ignore[attr-defined]
    staged_payload.Cut = StoppableCut  # type: ignore[attr-defined]
    staged_payload.SourceRests = StoppableSourceRests  # type: ignore[attr-defined]

    append_staged = FileTable.append_staged

    def stoppable_append(
        self: FileTable, mark: BatchMark, files: Sequence[FileAnswer], cut: Sequence[WrittenFile]
    ) -> None:
        stop_at(STATE_COMMITTED)
        append_staged(self, mark, files, cut)
        stop_at(ADMITTED_WRITTEN)

    FileTable.append_staged = stoppable_append  # type: ignore[method-assign]
    pipeline.DecidedRows = StoppableDecidedRows  # type: ignore[attr-defined]
    _make_files_stoppable()
    write = Target.write

    def stoppable_target_write(self: Target, rows: DataFrame, mark: BatchMark) -> None:
        is_admitted = self.path == admitted or self.table in (iceberg.ADMITTED, CATALOG_TABLE)
        is_admitted |= self.options.get("topic") == ADMITTED
        if is_admitted and self.table != iceberg.ADMITTED:
            stop_at(STATE_COMMITTED)
        write(self, rows, mark)
        if is_admitted or self.path == rejected or self.table == iceberg.REJECTED:
            stop_at(ADMITTED_WRITTEN if is_admitted else REJECTED_WRITTEN)

    Target.write = stoppable_target_write  # type: ignore[method-assign]
    commit = IcebergTable.commit

    def stoppable_commit(self: IcebergTable, rows: DataFrame, query: str, mark: str) -> None:
        if self.table == iceberg.ADMITTED:
            stop_at(STATE_COMMITTED)  # it was asked for its mark
        commit(self, rows, query, mark)

    IcebergTable.commit = stoppable_commit  # type: ignore[method-assign]

    def stoppable_write_report(directory: Any, batch: int, report: bytes) -> None:
        write_report(directory, batch, report)
        stop_at(REPORTED)

    batch_sink.write_report = stoppable_write_report  # type: ignore[attr-defined]


def stop_at(point: str) -> None:
    """Wait to be killed for as long as this point is armed."""
    root = Path(os.environ[DIRECTORY])
    arm = root / "arm"
    if not _is_armed(arm, point):
        return
    told = root / f"reached.{os.getpid()}"
    told.write_text(str(os.getpid()))
    told.rename(root / "reached")
    while _is_armed(arm, point):
        threading.Event().wait(_LOOK_SECONDS)


def _is_armed(arm: Path, point: str) -> bool:
    try:
        return arm.read_text() == point
    except FileNotFoundError:
        return False


def _make_files_stoppable() -> None:
    """Let this process stop in a file of the control directory or of rows; a second call changes nothing."""
    write, open_file = Directory._write, TableFileWriter._open
    if write.__module__ == __name__:
        return

    def in_two_halves(self: Directory, path: str, content: bytes) -> None:
        point = next((point for part, point in _HALF_WRITTEN.items() if part in path), None)
        if point is None:
            write(self, path, content)
            return
        half = len(content) // 2
        with self._files.open_output_stream(path) as stream:
            stream.write(content[:half])
            stop_at(point)  # on an object store nothing is there yet
            stream.write(content[half:])

    def begun(self: TableFileWriter, target: str) -> Any:
        stream = open_file(self, target)
        stop_at(FILE_HALF_WRITTEN)
        return stream

    Directory._write = in_two_halves  # type: ignore[method-assign]
    TableFileWriter._open = begun  # type: ignore[method-assign]


class StoppableControlReader(ThrottleControlReader):
    """Can write an epoch and not return its offset."""

    def latestOffset(self, start: Any = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802 - Spark's
        _make_files_stoppable()
        offset = super().latestOffset(start, limit)
        if offset != start:
            stop_at(EPOCH_WRITTEN)
        return offset


class StoppableControlSource(ThrottleControlSource):
    """A control source whose reader can stop."""

    def streamReader(self, schema: StructType) -> ThrottleControlReader:  # noqa: N802 - Spark's name
        return StoppableControlReader(dict(self.options))


class StoppableReferenceReader(ThrottleReferenceReader):
    """Can write an epoch or an extent and not return its offset, and can stop after its first frames of rows."""

    def latestOffset(self, start: Any = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802 - Spark's
        _make_files_stoppable()
        offset = super().latestOffset(start, limit)
        if offset != start:
            stop_at(EPOCH_WRITTEN)
        return offset

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for frames in super().read(partition):
            yield frames
            if isinstance(partition, FilePartition):
                stop_at(ROWS_PACKED)


class StoppableReferenceSource(ThrottleReferenceSource):
    """A source of references whose reader can stop."""

    def streamReader(self, schema: StructType) -> ThrottleReferenceReader:  # noqa: N802 - Spark's name
        return StoppableReferenceReader(dict(self.options))


class StoppableDecidedRows(DecidedRows):
    """Can stop after copies, after the first rows, in the feedback, and when all of a batch is done.

    What a driver does for other sinks, a decided stream does on the executors.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _make_files_stoppable()
        for rows in super().__call__(batches):
            yield rows
            stop_at(ROWS_LEFT)
        stop_at(REPORTED)

    def cut(self, rows: Sequence[RowsOfFile]) -> None:
        super().cut(rows)
        if rows:
            stop_at(FILES_CUT)


class StoppableStager(Stager):
    """Can stop in a file, and after it has staged one."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _make_files_stoppable()
        for digests in super().__call__(batches):
            yield digests
            stop_at(ROWS_PACKED)


class StoppableDigestDecider(DigestDecider):
    """Can stop in a file of places, and after its first frame."""

    def __call__(
        self, key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        _make_files_stoppable()
        for frames in super().__call__(key, pieces, state):
            yield frames
            stop_at(DECIDED)


class StoppableCut(Cut):
    """Can stop in a file, and after it has cut files."""

    def cut(self, group: Sequence[RowsOfFile]) -> list[WrittenFile]:
        _make_files_stoppable()
        found = super().cut(group)
        stop_at(FILES_CUT)
        return found


class StoppableSourceRests(SourceRests):
    """Can stop when it has copied the rows that wait of some files of a source."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for copies in super().__call__(batches):
            yield copies
            stop_at(FILES_CUT)
