"""The decided rows of `Throttle.apply`, for users who keep their own sink; executors write the usage reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.checkpoint.open_batch import begin
from spark_throttle.control.feedback import write_reports
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json
from spark_throttle.spark.metering.running_task import batch_of_task
from spark_throttle.spark.rows.frames import FrameKind, FrameUnpacker
from spark_throttle.spark.rows.worker_heap import set_loaded_aside


@dataclass(frozen=True, slots=True)
class DecisionUnpacker:
    """A function from frames of all kinds to rows; `mapInArrow` runs it on the executors, once per task.

    Before the first row passes, the batch is recorded as begun, with the definition that decided it. Each usage report
    is written to the control directory. A task that runs again writes the same bytes under the same name, and
    the control plane reads them only when the batch is committed.
    """

    schema: pa.Schema
    control_path: str
    definition: str = ""
    """The query's definition, as JSON."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decided rows."""
        set_loaded_aside()
        unpack = FrameUnpacker(self.schema)
        has_begun = not self.definition
        for batch in batches:
            if not has_begun:
                self._begin()
                has_begun = True
            for kind, frame in zip(batch.column("kind").to_pylist(), batch.column("frame"), strict=True):
                if kind == FrameKind.USAGE:
                    self._report(frame.as_py())
                else:
                    yield from unpack.rows(frame.as_buffer())

    def _begin(self) -> None:
        """Refuse a batch that an earlier attempt began with another definition: the sink may have part of it."""
        begin(
            Directory(self.control_path),
            batch_of_task(),
            of_json(Definition, self.definition, "the definition"),
            lambda *_: True,
        )

    def _report(self, block: bytes) -> None:
        write_reports(Directory(self.control_path), batch_of_task(), [block])
