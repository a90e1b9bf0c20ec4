"""The payload of a batch whose rows travel in frames: the frames are kept for the batch, and unpacked for each target.

The frames are persisted, because every action on the batch would run the decider again. They come from its one task. If
a target consists of files, frames are dealt out to as many tasks as their bytes justify: so a small batch makes few
files, and a large one is not written by one task. Other targets are given the rows in order, by one task.

Expressions are SQL text: PySpark makes several calls of the JVM for each function and operator of a `Column`, in every
batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.spark.columns.payload_columns import from_carried, leaving_schema
from spark_throttle.spark.rows.frames import FrameKind, FrameUnpacker
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target

_TASK_BYTES: Final = 4 << 20
"""Bytes of compressed frames per task; a task with fewer would take longer to start than to unpack them."""


@dataclass(frozen=True, slots=True)
class FramePayload:
    """The schemas of the rows in a query's frames."""

    schema: StructType
    """Schema of the user's rows."""

    row_schema: pa.Schema
    rejected_schema: pa.Schema
    verdict_type: StructType

    def take(self, frames: DataFrame, batch: int) -> KeptFrames:  # noqa: ARG002 - the same for every batch
        """Return the rows of a batch, after computing every partition of its frames once."""
        kept = frames.persist()
        try:
            usage = f"IF(kind = {int(FrameKind.USAGE)}, frame, NULL) AS usage"
            rows = kept.selectExpr("kind", "octet_length(frame) AS bytes", usage).collect()
        except BaseException:
            kept.unpersist()
            raise
        sizes_bytes = defaultdict[int, list[int]](list)
        for row in rows:
            sizes_bytes[row["kind"]].append(row["bytes"])
        return KeptFrames(self, kept, [bytes(row["usage"]) for row in rows if row["usage"] is not None], sizes_bytes)


@dataclass(frozen=True, slots=True)
class KeptFrames:
    """The computed frames of a batch."""

    payload: FramePayload
    frames: DataFrame
    usage: list[bytes]
    """The packed usage reports."""

    sizes_bytes: Mapping[int, list[int]]
    """Bytes of each frame, by kind."""

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target."""
        target.write(self.admitted(target), mark)

    def admitted(self, target: Target | BatchFunction) -> DataFrame:
        """Return the admitted rows."""
        carried = leaving_schema(self.payload.schema)
        wanted = self._of_kind(FrameKind.ADMITTED, target)
        return from_carried(wanted.mapInArrow(FrameUnpacker(self.payload.row_schema), carried), self.payload.schema)

    def rejected(self, target: Target) -> DataFrame:
        """Return the rejected rows, with the ``throttle`` column."""
        schema = StructType([*leaving_schema(self.payload.schema), *self.payload.verdict_type])
        wanted = self._of_kind(FrameKind.REJECTED, target)
        return from_carried(wanted.mapInArrow(FrameUnpacker(self.payload.rejected_schema), schema), self.payload.schema)

    def confirm(self) -> None:
        """Do nothing: the rows that were decided are those that were kept."""

    def close(self) -> None:
        """Drop the frames."""
        self.frames.unpersist()

    def _of_kind(self, kind: FrameKind, target: Target | BatchFunction) -> DataFrame:
        """Return the frames of a kind, in as many partitions as their bytes justify for their target."""
        found = self.frames.where(f"kind = {int(kind)}").select("frame")
        if not isinstance(target, Target) or not target.is_paid_by_bytes:
            return found
        sizes_bytes = self.sizes_bytes.get(kind, [])
        tasks = min(len(sizes_bytes), -(-sum(sizes_bytes) // _TASK_BYTES))
        return found.repartition(tasks) if tasks > 1 else found.coalesce(1)
