"""The paced sink on the driver: for each batch, how fast its namespaces may go, and until when they have time.

How fast is a function of the batch's reports and of its epoch, which Spark's offset log names: so it is the same when
the batch is run again. Until when is read from the wall clock, by which Spark starts batches at multiples of the
trigger's interval. No key and no call depends on it.

The batch ends when all its rows were sent. Then the dead letters, the usage and the feedback are written, and Spark
commits it: a crash before that sends the batch again, with the same keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.control.epochs import EpochName, Epochs
from spark_throttle.core.quota import Dimension
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.metering.sink_meter import charge_sink, is_metered
from spark_throttle.spark.paced.paced_task import SENT_DDL, PacedTask, SendOptions
from spark_throttle.spark.paced.row_costs import RowCost, row_costs
from spark_throttle.spark.paced.sending import BatchName, OpenedPerTask, Send
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE

_NS_PER_MS = 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // _NS_PER_MS  # noqa: TID251 - Spark's triggers go by it, and no decision does


@dataclass(frozen=True, slots=True)
class PacedSink:
    """What sends the admitted rows of each batch."""

    send: Send | OpenedPerTask
    options: SendOptions
    namespace: Column
    size: Column
    interval_ms: int | None
    """The trigger's interval; `None` if batches follow one another without one."""

    tasks: int
    """The number of tasks that send at the same time."""

    epochs: Epochs
    """The query's epochs. The control plane has its own, in another process."""

    clock_ms: Callable[[], int] = _wall_ms

    def write(self, rows: DataFrame, directory: Directory, mark: BatchMark, reports: Sequence[UsageReport]) -> None:
        """Send the admitted rows of a batch.

        Raises
        ------
        SourceChangedError
            If other rows were sent than the batch admitted.
        """
        costs = costs_of(directory, self.epochs, mark.batch, reports)
        helpers = [self.namespace.cast("string").alias(NAMESPACE)]
        if any(cost.byte_ps for cost in costs.values()):
            helpers.append(F.coalesce(self.size.try_cast("bigint"), F.lit(0)).alias(SIZE))
        task = PacedTask(
            self.send, BatchName(mark.query, mark.batch, mark.identity), costs, self._window_ns(), self.options
        )
        chosen = rows.select(*to_carried(rows.schema), *helpers).coalesce(self.tasks)
        done = chosen.mapInArrow(task, SENT_DDL).collect()
        sent = sum(row["sent"] for row in done)
        admitted = sum(int(report.admitted[:, Dimension.MESSAGES].sum()) for report in reports)
        if sent != admitted:
            raise SourceChangedError(
                f"the admitted rows of batch {mark.batch}",
                f"{admitted} rows were admitted, and {sent} were sent",
                "start again: the batch is sent again, with the same keys",
            )
        if is_metered(directory, reports):
            charge_sink(directory, mark.batch, reports, sum(row["used_ns"] for row in done))

    def _window_ns(self) -> int:
        """Return the time until the next batch: Spark starts one at each multiple of the interval."""
        if self.interval_ms is None:
            return 0
        return (self.interval_ms - self.clock_ms() % self.interval_ms) * _NS_PER_MS


def costs_of(directory: Directory, epochs: Epochs, batch: int, reports: Sequence[UsageReport]) -> dict[str, RowCost]:
    """Return the cost of a row of each namespace of a batch, by the epoch that the batch's offsets name.

    Raises
    ------
    EpochMissingError
        If the offsets or the epoch are gone.
    """
    checkpoint = Directory(directory.location.rstrip("/").rpartition("/")[0])
    epoch = epochs.load(_epoch_of(checkpoint, batch))
    moved = [report.admitted[:, Dimension.MESSAGES] > 0 for report in reports]
    names = pa.chunked_array(
        [report.names.filter(pa.array(is_moved)) for report, is_moved in zip(reports, moved, strict=True)], pa.string()
    ).combine_chunks()
    admitted = np.concatenate([report.admitted[is_moved] for report, is_moved in zip(reports, moved, strict=True)])
    return row_costs(names, admitted, epochs.policy(epoch), epoch.share_micro_per_ms)


def _epoch_of(checkpoint: Directory, batch: int) -> EpochName:
    for offset in source_offsets(checkpoint, batch):
        control = offset.get("control", offset)  # a query that decides on references has both in one offset
        if "epoch" in control:
            return EpochName.of(control)
    raise EpochMissingError(-1, checkpoint.path(f"offsets/{batch}"))
