"""Recorded events are summed on Spark, by namespace and interval of event time, for a replay (`what_if`).

The sums are what leaves Spark: a day of 10,000 namespaces at intervals of 20 s is at most some 40 million of them,
usually far fewer, because most namespaces send now and then.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from spark_throttle.core.arithmetic.units import parse_duration_ms
from spark_throttle.core.batch.decisions import MAX_NAMESPACE_BYTES
from spark_throttle.core.quota import MAX_SIZE_BYTES, MAX_UNITS
from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.spark.columns.stream_plan import setting
from spark_throttle.what_if.traffic import Traffic, interval_for

_COMPRESSION: Final = "spark.sql.execution.arrow.compression.codec"

Duration: TypeAlias = str | int | float
"""A text such as ``24h``, or a number of seconds."""


def duration_ms(name: str, value: Duration, least_ms: int = 1) -> int:
    """Return a duration that an argument gives, in milliseconds."""
    try:
        found = parse_duration_ms(value)
    except PolicyError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if found < least_ms:
        raise ConfigurationError(f"{name}: {value!r} is less than {least_ms} ms; give more, such as 10s")
    return found


def summed(  # noqa: PLR0913 - all that is recorded of an event
    events: DataFrame,
    *,
    time: Column,
    namespace: Column,
    size: Column,
    messages: Column,
    units: Column | None = None,
    since_ms: int | None = None,
    interval_ms: int | None = None,
) -> Traffic:
    """Return the traffic of recorded events.

    Parameters
    ----------
    events
        Events that were recorded, no stream.
    time
        When each event was sent: a timestamp.
    size
        Its bytes.
    messages
        How many messages a row of `events` stands for; `size` is that of all of them, and `units` too.
    units
        Its units; `None` if it has none.
    since_ms
        How much time before the newest event is taken; by default all.
    interval_ms
        Intervals of so many milliseconds; by default `what_if.traffic.interval_for` chooses.

    Raises
    ------
    ConfigurationError
        If `events` is a stream, `time` is no timestamp, or there is no event.
    """
    if events.isStreaming:
        raise ConfigurationError("events is a stream; read what was recorded with spark.read")
    chosen = events.select(
        time.alias("time"), namespace.cast("string").alias("namespace"), size.try_cast("bigint").alias("size"),
        messages.cast("bigint").alias("messages"), _of(units).alias("units"),
    ).where(F.col("messages") > 0)  # fmt: skip
    kind = chosen.schema["time"].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType):
        raise ConfigurationError(
            f"time is {kind.simpleString()}, and no timestamp; give an expression such as timestamp_millis(ts)"
        )
    rows = chosen.withColumn("time", F.unix_millis(F.col("time").cast("timestamp")))
    if since_ms is not None or interval_ms is None:
        (first_ms, newest_ms), *_ = rows.agg(F.min("time"), F.max("time")).collect()
        first_ms, newest_ms = first_ms or 0, newest_ms or 0
        if since_ms is not None:
            first_ms = max(first_ms, newest_ms - since_ms + 1)
            rows = rows.where((F.col("time") >= first_ms) | F.col("time").isNull())
        interval_ms = interval_ms or interval_for(newest_ms - first_ms + 1)
    length = F.octet_length("namespace")
    is_usable = (
        (F.col("time") >= 0)
        & (length > 0) & (length <= MAX_NAMESPACE_BYTES)
        & (F.col("size") >= 0) & (F.col("size") <= MAX_SIZE_BYTES)
        & (F.col("units") >= 0) & (F.col("units") <= MAX_UNITS)
    )  # fmt: skip
    usable = F.coalesce(is_usable, F.lit(False))  # noqa: FBT003 - a value, no option
    keys = [
        F.when(usable, F.floor(F.col("time") / interval_ms)).cast("bigint").alias("interval"),
        F.when(usable, F.col("namespace")).alias("namespace"),
    ]
    amounts = {"size": "bytes"} if units is None else {"size": "bytes", "units": "units"}
    sums = rows.groupBy(*keys).agg(
        F.sum("messages").alias("messages"),
        *(F.sum(column).alias(name) for column, name in amounts.items()),
        *(
            F.max(F.ceil(F.col(column) / F.col("messages"))).alias(f"largest_{name}")
            for column, name in amounts.items()
        ),
    )
    # The driver holds all sums at once, and they are small numbers.
    with setting(events.sparkSession, _COMPRESSION, "zstd"):
        table = sums.toArrow()
    unusable = 0
    if table["interval"].null_count:
        unusable = sum(table.filter(table["interval"].is_null())["messages"].to_pylist())
        table = table.filter(table["interval"].is_valid())
    return Traffic.of(table, interval_ms=interval_ms, unusable_messages=unusable)


def _of(units: Column | None) -> Column:
    return F.lit(0).cast("bigint") if units is None else units.try_cast("bigint")
