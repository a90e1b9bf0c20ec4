"""The assembly of a query whose rows are staged in files and decided on by one decider.

::

    events -> Stager: files of rows ---digests---.
                                                 +-> groupBy(one key) -> Decider -> answer: rows of files that leave
    ThrottleControlSource -----------------------'                                    |
                                                            files ---- as they lie, or read by Spark ----> sink

Everything here runs on the driver, once per start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.record import to_json
from spark_throttle.spark.columns.payload_columns import (
    as_column,
    derived_columns,
    from_staged,
    half_hashed_columns,
    staged_schema,
    with_helpers,
)
from spark_throttle.spark.decider.queue_folder import INLINE_BYTES, SLACK_EPOCHS, QueueStorage
from spark_throttle.spark.delta.file_stats import IndexedColumns
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move.decider import STATE_SCHEMA, DigestDecider
from spark_throttle.spark.move.former_files import columns_in_footer
from spark_throttle.spark.move.nullability import nullable
from spark_throttle.spark.move.stager import STAGED, Stager, StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.pipeline import VERDICT_SCHEMA, Pipeline, batches_retained, queue_room
from spark_throttle.spark.rows.frames import FRAME_DDL, OUTPUT_SCHEMA
from spark_throttle.spark.sinks.batch_sink import BatchSink, Target
from spark_throttle.spark.sinks.destination import Destination, SinkPlan
from spark_throttle.spark.sinks.staged.decided_stream import DecidedRows
from spark_throttle.spark.sinks.staged.payload import StagedPayload
from spark_throttle.spark.start.start_check import Sinks
from spark_throttle.spark.start.task_slots import task_slots

_COMPRESSION = "zstd"


@dataclass(frozen=True)
class StagedPipeline(Pipeline):
    """A throttled query over `events` that stages their rows; it has not been started."""

    table: Destination | None = None
    """The sink's table, if it takes files as they lie."""

    keeps_order: bool = False
    """Whether the sink may depend on the order of a namespace's rows."""

    @property
    def waiting_schema(self) -> StructType:
        """The columns with which rows leave that waited."""
        return self.carried

    @cached_property
    def carried(self) -> StructType:
        """The user's columns in the types in which they are staged."""
        return staged_schema(self.events.schema)

    def frames(
        self,
        *,
        control_path: str,
        is_explained: bool,
        plan: SinkPlan | None = None,
        partition_columns: tuple[str, ...] = (),
        sinks: Sinks | None = None,
    ) -> DataFrame:
        """Return what is decided as frames: the answer, the places of rejected rows, and usage.

        If the sink depends on the order of rows, the places of admitted rows too: explained, with the ``throttle``
        column.
        """
        assert plan is None  # noqa: S101 - rows are not here
        events, given = self.events, self.settings
        spark = events.sparkSession
        derived = derived_columns(events.schema, given.namespace, given.size, given.order_by)
        helped = with_helpers(events, given.namespace, given.size, given.order_by, derived.helpers, self._volatile)
        numbered = helped.toDF(*(f"c{number}" for number in range(len(helped.columns))))
        waiting = self._waiting_place(control_path)
        place = waiting if self.table is None else StagingPlace(self.table.location, self.table.form(), in_table=True)
        stage = Stager(
            tuple(helped.columns), derived, place, waiting, control_path,
            half_hashed_columns(events.schema, self._volatile), partition_columns,
        )  # fmt: skip
        together = numbered.mapInArrow(stage, FRAME_DDL).unionByName(self._control(control_path, sinks))
        kept_turns = batches_retained(spark) + SLACK_EPOCHS
        decide = DigestDecider(
            QueueStorage(control_path, kept_turns, INLINE_BYTES),
            kept_turns,
            self.keeps_order,
            queue_room(given.policies, spark),
            partition_columns,
            is_explained,
        )
        return together.groupBy("key").applyInPandasWithState(
            decide, OUTPUT_SCHEMA, STATE_SCHEMA, "append", "NoTimeout"
        )

    def decided(self, control_path: str, definition: Definition) -> DataFrame:
        """Return the decided rows: the user's columns and the ``throttle`` column."""
        assert self.keeps_order and self.table is None  # noqa: S101, PT018 - a task reads them from their places
        frames = self.frames(control_path=control_path, is_explained=True)
        schema = StructType([*self.carried, *from_arrow_schema(VERDICT_SCHEMA)])
        rows = DecidedRows(
            to_arrow_schema(schema, timezone="UTC"),
            Upkeep(control_path, batches_retained(self.events.sparkSession) + SLACK_EPOCHS),
            self._waiting_place(control_path),
            to_json(definition).decode(),
        )
        return from_staged(frames.mapInArrow(rows, schema), self.events.schema)

    def batch_sink(
        self,
        control_path: str,
        admitted: Target | Callable[[DataFrame, int], None],
        rejected: Target,
        usage: Target | Destination | None,
        definition: Definition,
    ) -> BatchSink:
        """Return the `foreachBatch` function that gives each batch to its sinks."""
        spark = self.events.sparkSession
        payload = StagedPayload(
            control_path,
            self.events.schema,
            self.carried,
            as_column(self.settings.namespace),
            self._waiting_place(control_path),
            batches_retained(spark) + SLACK_EPOCHS,
            task_slots(spark),
            self.table,
            self.keeps_order,
        )
        return BatchSink(control_path, payload, admitted, rejected, usage, to_json(definition).decode())

    def _waiting_place(self, control_path: str) -> StagingPlace:
        # Spark cannot tell the calendar of dates without its version.
        footer = {"org.apache.spark.version": pyspark.__version__, **columns_in_footer(self.carried)}
        schema = nullable(to_arrow_schema(self.carried, timezone="UTC"))
        form = FileForm(schema, footer, (), _COMPRESSION, IndexedColumns(first=0))
        return StagingPlace(f"{control_path}/{STAGED}", form, in_table=False)


def staged(pipeline: Pipeline, *, keeps_order: bool) -> StagedPipeline:
    """Return a pipeline that stages the rows of another one's stream; its sink takes no files as they lie."""
    return StagedPipeline(pipeline.settings, pipeline.events, None, keeps_order)
