"""The assembly of a query that decides on references.

::

    ThrottleReferenceSource -> groupBy(one key) -> Decider -> frames: places of rows that leave, usage
                                                                    |
    files ---- Spark's reader, joined with the places, user's expressions ----> sink

Control rows and references come from one source, so that one offset pins both. Everything here runs on the driver, once
per start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

from pyspark.sql import Column, DataFrame

from spark_throttle.checkpoint.definition import Definition, digest
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.record import to_json
from spark_throttle.spark.columns.payload_columns import as_column, check_columns, row_columns
from spark_throttle.spark.columns.stream_definition import stream_definition
from spark_throttle.spark.decider.operator import STATE_SCHEMA, Decider
from spark_throttle.spark.pipeline import (
    Pipeline,
    ThrottleSettings,
    batches_retained,
    control_options,
    queue_room,
    queue_storage,
)
from spark_throttle.spark.reference_stream import ReferenceStream
from spark_throttle.spark.references.deciding_columns import DecidingColumns, deciding_columns_of
from spark_throttle.spark.references.extents import Extents
from spark_throttle.spark.references.reading import FirstReading
from spark_throttle.spark.references.reading_sums import packed_sums
from spark_throttle.spark.rows.frames import OUTPUT_SCHEMA
from spark_throttle.spark.sinks.batch_sink import BatchSink, Target
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.payload_reader import PayloadSource
from spark_throttle.spark.sinks.reference_payload import ReferencePayload
from spark_throttle.spark.sources.reference_source import REFERENCE_FORMAT, ThrottleReferenceSource
from spark_throttle.spark.start.start_check import Sinks
from spark_throttle.spark.start.task_slots import task_slots
from spark_throttle.spark.state_reader import is_readable, waiting_places

_TIES = "places 1"
"""How rows that are equal in the order are told apart: by their places."""


@dataclass(frozen=True)
class ReferencePipeline:
    """A throttled query over a stream that can be read again; it has not been started."""

    settings: ThrottleSettings
    stream: ReferenceStream

    waiting_schema: ClassVar[None] = None
    """No columns: rows that waited are read again, and get the columns that the stream has when they leave."""

    @cached_property
    def events(self) -> DataFrame:
        """No rows, with the stream's columns."""
        return self.stream.empty()

    @property
    def has_shares(self) -> bool:
        """Whether the job shares its quotas with other jobs."""
        return self.settings.exchange is not None

    def problem(self, partition_columns: Sequence[str]) -> str | None:
        """Return why this query cannot decide on references; `None` if it can."""
        problem = self.stream.problem()
        if problem is not None:
            return problem
        found = self._deciding(partition_columns)
        return found if isinstance(found, str) else None

    def definition(self, targets: Mapping[str, str], partition_columns: Sequence[str] = ()) -> Definition:
        """Return the query's definition: the expressions and settings that decide its rows, and the targets."""
        given = self.settings
        check_columns(self.events.schema)
        found = stream_definition(
            self.events, given.namespace, given.size, given.order_by, (), targets, partition_columns
        )
        return replace(found, ties=digest(_TIES))

    def frames(
        self,
        *,
        control_path: str,
        partition_columns: tuple[str, ...] = (),
        sinks: Sinks | None = None,
        keeps_left: bool = False,
    ) -> DataFrame:
        """Return the decided stream as frames of places, each with its kind; `Pipeline.frames` says more."""
        spark, given, found = self.stream.spark, self.settings, self._deciding(partition_columns)
        if isinstance(found, str):
            raise ConfigurationError(f"the query cannot decide on references: {found}")
        reading = FirstReading(
            self.stream.root, found.types, found.namespace, found.size, found.order, found.partition_columns,
            found.condition,
        )  # fmt: skip
        slots = str(task_slots(spark))
        spark.dataSource.register(ThrottleReferenceSource)
        options = control_options(spark, given, control_path, sinks)
        rows = spark.readStream.format(REFERENCE_FORMAT).options(
            **options, feed=json.dumps(self.stream.feed().to_fields()), reading=reading.to_json(), tasks=slots
        )
        operator = Decider(
            queue_room(given.policies, spark),
            partition_columns=tuple(found.partition_columns),
            sums_of=packed_sums,
            queue=queue_storage(spark, control_path),
            keeps_left=keeps_left,
        )
        return (
            rows.load()
            .groupBy("key")
            .applyInPandasWithState(operator, OUTPUT_SCHEMA, STATE_SCHEMA, "append", "NoTimeout")
        )

    def measured(self) -> tuple[Column, Column]:
        """Return the expressions of a row's namespace and of its size."""
        given = self.settings
        return as_column(given.namespace), row_columns(self.events.schema, given.size, ())[0]

    def batch_sink(
        self,
        control_path: str,
        admitted: Target | Callable[[DataFrame, int], None],
        rejected: Target,
        usage: Target | FileTable | None,
        definition: Definition,
    ) -> BatchSink:
        """Return the `foreachBatch` function that writes each batch."""
        stream, given = self.stream, self.settings
        checkpoint = control_path.rpartition("/")[0]
        found = self._deciding(())
        assert given.size is not None  # noqa: S101 - `problem` asks for it
        extents = Extents(Directory(control_path))
        source = PayloadSource(control_path, checkpoint, extents, stream.root, stream.source_schema)
        waiting_after = partial(waiting_places, checkpoint=checkpoint, control_path=control_path)
        keeps_order = isinstance(admitted, Target) and not admitted.is_paid_by_bytes
        payload = ReferencePayload(
            source,
            stream.rows,
            stream.rows.of_decided(),
            as_column(given.namespace),
            as_column(given.size) if isinstance(found, DecidingColumns) and found.size.operation == "column" else None,
            tuple(as_column(column) for column in given.order_by or ()),
            waiting_after if is_readable(checkpoint) else None,
            batches_retained(stream.spark),
            drops_rows=stream.condition() is not None,
            fewest_tasks=task_slots(stream.spark) if keeps_order else None,
        )
        return BatchSink(control_path, payload, admitted, rejected, usage, to_json(definition).decode())

    def staged(self) -> Pipeline:
        """Return the pipeline in which the rows of the same stream are staged."""
        return Pipeline(self.settings, self.stream.stream())

    def _deciding(self, partition_columns: Sequence[str]) -> DecidingColumns | str:
        given, stream = self.settings, self.stream
        known, condition = stream.known_columns(), stream.condition()
        if isinstance(condition, str):
            return condition
        return deciding_columns_of(
            stream.source_schema, known, given.namespace, given.size, given.order_by, partition_columns, condition
        )
