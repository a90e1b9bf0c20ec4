"""The assembly of a query whose rows are staged in files and decided on by one decider.

::

    events -> Stager: files of rows ---digests---.
                                                 +-> groupBy(one key) -> Decider -> answer: rows of files that leave
    ThrottleControlSource -----------------------'                                    |
                                                            files ---- as they lie, or read by Spark ----> sink

Policies and shares arrive as rows of a second source, so that Spark's offset log pins them. Everything here runs on the
driver, once per start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.control.epochs import BATCHES_RETAINED
from spark_throttle.core.quota import QueueBounds
from spark_throttle.errors import ConfigurationError, StoreUnavailableError
from spark_throttle.policy.compile import queue_bounds
from spark_throttle.policy.model import Direction
from spark_throttle.record import to_json
from spark_throttle.sharing.settings import ExchangeOptions
from spark_throttle.spark.columns.late_costs import CostStream
from spark_throttle.spark.columns.payload_columns import (
    RowExpressions,
    as_column,
    check_columns,
    deciding_columns,
    derived_columns,
    from_staged,
    half_hashed_columns,
    row_columns,
    staged_schema,
    stream_definition,
    with_helpers,
)
from spark_throttle.spark.columns.stream_plan import volatile_columns
from spark_throttle.spark.delta.table_files import FileForm, IndexedColumns
from spark_throttle.spark.move.decider import STATE_SCHEMA, DigestDecider
from spark_throttle.spark.move.decider_batch import VERDICT_TYPE
from spark_throttle.spark.move.queue_frames import INLINE_BYTES, SLACK_EPOCHS, QueueStorage
from spark_throttle.spark.move.stager import STAGED, Stager, StagingPlace, nullable
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.move.waiting_files import columns_in_footer
from spark_throttle.spark.rows.frames import FRAME_DDL, OUTPUT_SCHEMA, THROTTLE
from spark_throttle.spark.sinks.decided_stream import DecidedRows
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.payload import StagedPayload
from spark_throttle.spark.sources.control_source import CONTROL_FORMAT, ThrottleControlSource
from spark_throttle.spark.spark_version import from_arrow, to_arrow
from spark_throttle.spark.start.executors import cluster_cores, is_served, task_slots
from spark_throttle.spark.start.start_check import Sinks
from spark_throttle.store.policy_location import PolicyLocation

_BATCHES_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
_COMPRESSION: Final = "zstd"


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """The arguments of a throttle; `throttle.Throttle` documents each of them."""

    policies: PolicyLocation
    rows: RowExpressions
    direction: Direction
    exchange: ExchangeOptions | None
    run: str = ""
    """The run of a writer, by which its sink knows the control directory as its own."""


@dataclass(frozen=True)
class Pipeline:
    """A throttled query over `events` that has not been started."""

    settings: ThrottleSettings
    events: DataFrame
    table: FileTable | None = None
    """The sink's table, if it takes files as they lie."""

    keeps_order: bool = False
    """Whether the sink may depend on the order of a namespace's rows."""

    is_inline: bool = False
    """Whether the executors cannot write to the control directory, so that files travel with their digests."""

    costs: CostStream | None = None
    """What rows really cost, if a stream tells it."""

    @cached_property
    def waiting_schema(self) -> StructType:
        """The user's columns in the types in which they are staged, wait and leave."""
        return staged_schema(self.events.schema)

    def definition(self, targets: Mapping[str, str], partition_columns: Sequence[str] = ()) -> Definition:
        """Return the query's definition: the expressions and settings that decide its rows, and the targets.

        Raises
        ------
        ConfigurationError
            If an expression may have another value when a batch is run again.
        """
        given = self.settings
        found = stream_definition(self.events, given.rows, self._volatile, targets, partition_columns)
        told = {} if self.costs is None else self.costs.printed()
        return replace(found, expressions={**found.expressions, **told})

    def frames(
        self,
        *,
        control_path: str,
        is_explained: bool = False,
        partition_columns: tuple[str, ...] = (),
        sinks: Sinks | None = None,
        keeps_left: bool = False,
        may_begin_anew: bool = False,
    ) -> DataFrame:
        """Return what is decided as frames: the answer, the places of rejected rows, and usage.

        If the sink depends on the order of rows, the places of admitted rows too: explained, with the ``throttle``
        column. If the sink is partitioned by `partition_columns`, rows that have no partition folder are rejected. If
        `sinks` are given, the control source checks them when the query starts (`start_check`). With `keeps_left` rows
        that leave for a destination may come back, because the sink says which it did not deliver.
        """
        events, given = self.events, self.settings
        spark = events.sparkSession
        derived = derived_columns(events.schema, given.rows)
        helped = with_helpers(events, given.rows, derived.helpers, self._volatile)
        numbered = helped.toDF(*(f"c{number}" for number in range(len(helped.columns))))
        waiting = waiting_place(control_path, self.waiting_schema, is_inline=self.is_inline)
        place = waiting if self.table is None else StagingPlace(self.table.location, self.table.form(), in_table=True)
        stage = Stager(
            tuple(helped.columns), derived, place, waiting, control_path,
            half_hashed_columns(events.schema, self._volatile), partition_columns,
        )  # fmt: skip
        together = numbered.mapInArrow(stage, FRAME_DDL).unionByName(
            self._control(control_path, sinks, may_begin_anew=may_begin_anew)
        )
        if self.costs is not None:
            together = together.unionByName(self.costs.frames())
        decide = DigestDecider(
            QueueStorage(control_path, self._kept_turns, None if self.is_inline else INLINE_BYTES),
            self._kept_turns,
            self.keeps_order,
            waiting if self.is_inline else None,
            queue_room(given.policies, spark),
            partition_columns,
            is_explained,
            keeps_left,
        )
        return together.groupBy("key").applyInPandasWithState(
            decide, OUTPUT_SCHEMA, STATE_SCHEMA, "append", "NoTimeout"
        )

    def decided(self, control_path: str, definition: Definition, *, may_begin_anew: bool = False) -> DataFrame:
        """Return the decided rows: the user's columns and the ``throttle`` column.

        With `may_begin_anew`, a query that begins deletes what an earlier one left in the control directory.
        """
        assert self.keeps_order and self.table is None  # noqa: S101, PT018 - a task reads them from their places
        frames = self.frames(control_path=control_path, is_explained=True, may_begin_anew=may_begin_anew)
        schema = StructType([*self.waiting_schema, *from_arrow(pa.schema([(THROTTLE, VERDICT_TYPE)]))])
        rows = DecidedRows(
            to_arrow(schema),
            Upkeep(control_path, self._kept_turns),
            waiting_place(control_path, self.waiting_schema, is_inline=self.is_inline),
            to_json(definition).decode(),
        )
        return from_staged(frames.mapInArrow(rows, schema), self.events.schema)

    def measured(self) -> tuple[Column, Column, Column | None]:
        """Return the expressions of a row's namespace, of its size and of its units."""
        given = self.settings.rows
        units = None if given.units is None else as_column(given.units)
        return as_column(given.namespace), row_columns(self.events.schema, given.size, self._volatile)[0], units

    def payload(self, control_path: str) -> StagedPayload:
        """Return how the rows of the query's batches are found."""
        return StagedPayload(
            Upkeep(control_path, self._kept_turns, "" if self.table is None else self.table.location),
            self.events.schema,
            as_column(self.settings.rows.namespace),
            waiting_place(control_path, self.waiting_schema, is_inline=self.is_inline),
            task_slots(self.events.sparkSession),
            self.table,
        )

    @property
    def _kept_turns(self) -> int:
        return kept_turns(self.events.sparkSession)

    @cached_property
    def _volatile(self) -> frozenset[str]:
        """The columns that may have another value when a batch is run again."""
        schema = self.events.schema
        check_columns(schema)
        return volatile_columns(self.events, deciding_columns(schema, self.settings.rows))

    def _control(self, control_path: str, sinks: Sinks | None, *, may_begin_anew: bool) -> DataFrame:
        spark = self.events.sparkSession
        spark.dataSource.register(ThrottleControlSource)
        options = control_options(spark, self.settings, control_path, sinks)
        if may_begin_anew:
            options["mayBeginAnew"] = "true"
        return spark.readStream.format(CONTROL_FORMAT).options(**options).load()


def control_options(
    spark: SparkSession, given: ThrottleSettings, control_path: str, sinks: Sinks | None
) -> dict[str, str]:
    """Return the options with which a source opens the control plane."""
    options = {
        **given.policies.to_options(),
        "controlPath": control_path,
        "direction": given.direction,
        "batchesRetained": str(batches_retained(spark)),
        "cores": str(cluster_cores(spark)),
    }
    if given.rows.units is not None:
        options["statesUnits"] = "true"
    if given.rows.reservation is not None:
        options["takesCosts"] = "true"
    if given.run:
        options["run"] = given.run
    if given.exchange is not None:
        options["exchange"] = given.exchange.to_json()
    if sinks is not None:
        options["sinks"] = sinks.to_json()
    return options


def batches_retained(spark: SparkSession) -> int:
    """Return the number of batches by which a checkpoint can be put back."""
    return int(str(spark.conf.get(_BATCHES_RETAINED, str(BATCHES_RETAINED))))


def kept_turns(spark: SparkSession) -> int:
    """Return for how many batches a file is kept of which no row waits any more."""
    return batches_retained(spark) + SLACK_EPOCHS


def waiting_place(control_path: str, carried: StructType, *, is_inline: bool = False) -> StagingPlace:
    """Return where rows lie that wait, and in which form."""
    # Spark cannot tell the calendar of dates without its version.
    footer = {"org.apache.spark.version": pyspark.__version__, **columns_in_footer(carried)}
    schema = nullable(to_arrow(carried))
    form = FileForm(schema, footer, (), _COMPRESSION, IndexedColumns(first=0))
    return StagingPlace(f"{control_path}/{STAGED}", form, in_table=False, is_inline=is_inline)


def queue_room(policies: PolicyLocation, spark: SparkSession) -> QueueBounds | None:
    """Return the queue's bounds in the current policies; `None` if this process cannot read the policies.

    Raises
    ------
    ThrottleError
        If the policies cannot be applied; also if they cannot be read, unless the session uses Spark Connect.
    """
    try:
        return queue_bounds(policies.queue())
    except (ConfigurationError, StoreUnavailableError):
        if is_served(spark):
            return None
        raise
