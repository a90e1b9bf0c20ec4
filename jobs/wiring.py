"""The wiring from settings to a running query: session, source, throttle and sinks. It makes no decisions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.settings import ExchangeSettings, JobSettings, StreamSettings, ThrottleSettings
from spark_throttle.errors import ConfigurationError
from spark_throttle.load.source import ThrottleLoadSource
from spark_throttle.spark import Throttle
from spark_throttle.spark.reference_stream import ReferenceStream
from spark_throttle.spark.spark_errors import missing_in, spark_line


def open_session(settings: JobSettings) -> SparkSession:
    """Return the session, started if there is none; `spark` in the settings overrides spark-submit."""
    # Otherwise the workers would start whatever python3 the machine has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(settings.spark.app_name)
    if settings.spark.master is not None:
        builder = builder.master(settings.spark.master)
    for name, value in ({"spark.sql.session.timeZone": "UTC"} | settings.spark.conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def reading(section: str, source: StreamSettings) -> Iterator[None]:
    """Tell in one line that Spark cannot read a stream of the settings, and which.

    Raises
    ------
    ConfigurationError
        In place of Spark's refusal.
    """
    try:
        yield
    except AnalysisException as error:
        of = source.format if source.path is None else f"{source.format} at {source.path}"
        raise missing_in(str(error)) or ConfigurationError(
            f"{section}: Spark does not read {of} ({spark_line(error)}); correct its path, format or select"
        ) from error


def read_events(spark: SparkSession, source: StreamSettings) -> DataFrame:
    """Return the source's stream with its `select` applied."""
    if source.format == ThrottleLoadSource.name():
        spark.dataSource.register(ThrottleLoadSource)
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.schema_ddl is not None:
        reader = reader.schema(source.schema_ddl)
    events = reader.load() if source.path is None else reader.load(source.path)
    return events.selectExpr(*source.select) if source.select else events


def read_stream(throttle: Throttle, spark: SparkSession, settings: JobSettings) -> DataFrame | ReferenceStream:
    """Return the source's stream as the throttle reads it, which may decide on references, or as Spark does."""
    source = settings.source
    if not settings.may_be_referred_to:
        return read_events(spark, source)
    reader = throttle.read_stream(spark).format(source.format).options(**source.options)
    if source.schema_ddl is not None:
        reader = reader.schema(source.schema_ddl)
    events = reader.load(source.path)
    return events.selectExpr(*source.select) if source.select else events


def make_throttle(settings: ThrottleSettings, exchange: ExchangeSettings | None = None) -> Throttle:
    """Return the throttle that the settings describe."""
    return Throttle(
        policies=settings.policies,
        namespace=settings.namespace,
        size=settings.size,
        units=settings.units,
        reservation=settings.reservation,
        order_by=settings.order_by or None,
        direction=settings.direction,
        exchange=None if exchange is None or exchange.path is None else exchange.model_dump(),
    )


def start_query(
    throttle: Throttle, events: DataFrame | ReferenceStream, settings: JobSettings, costs: DataFrame | None = None
) -> StreamingQuery:
    """Start the throttled query, whose rows a stream of late costs may settle."""
    sink, trigger = settings.sink, settings.trigger
    kind: dict[str, Any] = (
        {"availableNow": True} if trigger.available_now else {"processingTime": trigger.processing_time}
    )
    writer = (
        throttle.write_stream(events)
        .format(sink.format)
        .options(**sink.options)
        .option("checkpointLocation", settings.checkpoint)
        .queryName(settings.query_name)
        .trigger(**kind)
    )
    if settings.costs is not None and costs is not None:
        writer = writer.settled_by(costs, settings.costs.identity, settings.costs.units)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if settings.rejected is not None:
        rejected = settings.rejected
        where = {} if rejected.path is None else {"path": rejected.path}
        writer = writer.rejected(rejected.format, **where, **rejected.options)
    if settings.usage is not None:
        writer = writer.usage(settings.usage)
    if sink.table is not None:
        return writer.toTable(sink.table)
    return writer.start() if sink.path is None else writer.start(sink.path)


def stop_between_batches(query: StreamingQuery, patience_seconds: int = 30) -> None:
    """Stop a query when it is idle or has just finished a batch, or after `patience_seconds`.

    Where one batch follows another, the next may have begun. An interrupted batch loses nothing, but its log looks like
    a failure.
    """
    before = _batches_done(query)
    for _ in range(20 * patience_seconds):
        status = query.status
        rests = not status["isTriggerActive"] and not status["message"].startswith("Initializing")
        if not query.isActive or rests or _batches_done(query) != before:
            break
        wait_for_end(query, 0.05)
    query.stop()


def _batches_done(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


def wait_for_end(query: StreamingQuery, seconds: float) -> bool:
    """Return whether the query ended within `seconds`; a failed query raises."""
    return bool(query.awaitTermination(seconds))  # type: ignore[arg-type] # a float works too
