"""A query decides on references where its rows can be read again: on rows where they lie, in the files of their source.

::

    ThrottleReferenceSource: digests of files -> groupBy(one key) -> Decider -> answer: rows of files that leave
                                                                                  |
                                  files ---- read by Spark, user's expressions ----> sink

Control rows and digests come from one source, so that one offset pins both. All else is as where rows are staged
(`pipeline`). Everything here runs on the driver, once per start.

References are for a stream of `Throttle.read_stream` whose expressions Spark can be asked again, and for every sink but
a Delta table, which takes staged files as they lie, and the paced sink, which may be given a row twice: its expressions
are computed once where it is staged. A checkpoint keeps the way with which it began, which its offsets have the form
of. Rows wait in the same way in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import Definition, digest
from spark_throttle.checkpoint.offset_log import read_offset_log, source_offsets
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import (
    as_column,
    check_columns,
    row_columns,
    staged_schema,
    stream_definition,
)
from spark_throttle.spark.move.decider import STATE_SCHEMA, DigestDecider
from spark_throttle.spark.move.queue_frames import INLINE_BYTES, QueueStorage
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.pipeline import (
    Pipeline,
    ThrottleSettings,
    control_options,
    kept_turns,
    queue_room,
    waiting_place,
)
from spark_throttle.spark.reference_stream import ReferenceStream
from spark_throttle.spark.references.extents import Extents
from spark_throttle.spark.references.reading import DecidingColumns, FirstReading, deciding_columns_of
from spark_throttle.spark.rows.frames import OUTPUT_SCHEMA
from spark_throttle.spark.sinks.payload import StagedPayload
from spark_throttle.spark.sinks.source_reader import Source
from spark_throttle.spark.sources.reference_source import REFERENCE_FORMAT, ThrottleReferenceSource
from spark_throttle.spark.start.executors import task_slots
from spark_throttle.spark.start.start_check import Sinks

_TIES = "places 1"
"""How rows that are equal in the order are told apart: by their places."""

REFERENCES: Final = "references"
STAGED: Final = "staged files"


@dataclass(frozen=True)
class ReferencePipeline:
    """A throttled query over a stream that can be read again; it has not been started."""

    settings: ThrottleSettings
    stream: ReferenceStream
    keeps_order: bool = False
    """Whether the sink may depend on the order of a namespace's rows."""

    @property
    def waiting_schema(self) -> StructType:
        """The columns with which rows leave that waited: those of the source, before any expression."""
        return staged_schema(self.stream.source_schema)

    @cached_property
    def events(self) -> DataFrame:
        """No rows, with the stream's columns."""
        return self.stream.empty()

    def problem(self, partition_columns: Sequence[str]) -> str | None:
        """Return why this query cannot decide on references; `None` if it can."""
        problem = self.stream.problem()
        if self.settings.rows.reservation is not None:
            problem = "rows are reserved by an identity that Spark computes"
        if problem is not None:
            return problem
        found = self._deciding(partition_columns)
        return found if isinstance(found, str) else None

    def definition(self, targets: Mapping[str, str], partition_columns: Sequence[str] = ()) -> Definition:
        """Return the query's definition: the expressions and settings that decide its rows, and the targets.

        Its columns are the source's: rows wait with these, and no other decides.
        """
        given = self.settings
        check_columns(self.events.schema)
        found = stream_definition(self.events, given.rows, (), targets, partition_columns)
        columns = tuple((field.name, field.dataType.simpleString()) for field in self.stream.source_schema)
        return replace(found, columns=columns, ties=digest(_TIES))

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
        reading = FirstReading(self.stream.root, found)
        slots = str(task_slots(spark))
        spark.dataSource.register(ThrottleReferenceSource)
        options = control_options(spark, given, control_path, sinks)
        rows = spark.readStream.format(REFERENCE_FORMAT).options(
            **options, feed=json.dumps(self.stream.feed().to_fields()), reading=reading.to_json(), tasks=slots
        )
        kept = kept_turns(spark)
        operator = DigestDecider(
            QueueStorage(control_path, kept, INLINE_BYTES),
            kept,
            self.keeps_order,
            room=queue_room(given.policies, spark),
            partition_columns=tuple(found.partition_columns),
            keeps_left=keeps_left,
        )
        return (
            rows.load()
            .groupBy("key")
            .applyInPandasWithState(operator, OUTPUT_SCHEMA, STATE_SCHEMA, "append", "NoTimeout")
        )

    def measured(self) -> tuple[Column, Column, Column | None]:
        """Return the expressions of a row's namespace, of its size and of its units."""
        given = self.settings.rows
        units = None if given.units is None else as_column(given.units)
        return as_column(given.namespace), row_columns(self.events.schema, given.size, ())[0], units

    def payload(self, control_path: str) -> StagedPayload:
        """Return how the rows of the query's batches are found."""
        stream, given = self.stream, self.settings.rows
        found, namespace = self._deciding(()), as_column(given.namespace)
        assert given.size is not None  # noqa: S101 - `problem` asks for it
        source = Source(
            control_path.rpartition("/")[0],
            Extents(Directory(control_path)),
            stream.root,
            stream.source_schema,
            stream.rows,
            stream.rows.of_decided(),
            namespace,
            as_column(given.size) if isinstance(found, DecidingColumns) and found.size.operation == "column" else None,
            drops_rows=stream.condition() is not None,
        )
        return StagedPayload(
            Upkeep(control_path, kept_turns(stream.spark)),
            stream.source_schema,
            namespace,
            waiting_place(control_path, self.waiting_schema),
            task_slots(stream.spark),
            source=source,
        )

    def staged(self) -> Pipeline:
        """Return the pipeline in which the rows of the same stream are staged."""
        return Pipeline(self.settings, self.stream.stream())

    def _deciding(self, partition_columns: Sequence[str]) -> DecidingColumns | str:
        given, stream = self.settings, self.stream
        known, condition = stream.known_columns(), stream.condition()
        if isinstance(condition, str):
            return condition
        return deciding_columns_of(stream.source_schema, known, given.rows, partition_columns, condition)


AnyPipeline: TypeAlias = Pipeline | ReferencePipeline


@dataclass(frozen=True, slots=True)
class PipelineChoice:
    """The pipeline of a query, and the reason for the choice."""

    pipeline: AnyPipeline
    why: str


def choose_pipeline(
    pipeline: AnyPipeline, control_path: str, partition_columns: Sequence[str], against: str | None
) -> PipelineChoice:
    """Return the pipeline of a query.

    Parameters
    ----------
    against
        Why a new query is not to decide on references, if anything of its sink says so.

    Raises
    ------
    ConfigurationError
        If the checkpoint began with references, and something stands against them.
    """
    begun = way_of(control_path)
    if isinstance(pipeline, Pipeline):
        if begun == REFERENCES:
            raise ConfigurationError(
                "the checkpoint began with references, and events is a stream of spark.readStream; read it with "
                "throttle.read_stream(spark), or start with a new checkpoint"
            )
        return PipelineChoice(pipeline, "the stream is one of spark.readStream")
    if begun == STAGED:
        return PipelineChoice(pipeline.staged(), "the checkpoint began with staged files")
    problem = pipeline.problem(partition_columns)
    if begun == REFERENCES and problem is not None:
        raise ConfigurationError(
            f"the checkpoint began with references, and {problem}; change that, or start with a new checkpoint"
        )
    if begun is None:
        problem = problem or against
    if problem is not None:
        return PipelineChoice(pipeline.staged(), problem)
    return PipelineChoice(pipeline, "its rows can be read again")


def way_of(control_path: str) -> str | None:
    """Return the way with which a checkpoint began; `None` if it is new, or if this process does not see it."""
    checkpoint = Directory(control_path.rpartition("/")[0])
    planned = read_offset_log(checkpoint).logged
    if planned < 0:
        return None
    return REFERENCES if any("extent" in each for each in source_offsets(checkpoint, planned)) else STAGED
