"""What throttling costs beside what people would run without it, or write by hand: Parquet in, nothing out, in turns.

Run as ``python -m tests.benchmarks.operators [PART]... [--repeats N] [--out FILE]``. Nothing is held back. `job_costs`
says what is measured.

=================  =====================================================================================
``narrow``         3,000,000 rows of some 200 bytes in three batches
``wide``           1,500,000 rows of 18 columns in three batches
``namespaces-…``   three batches of 200,000 rows, of 10,000 and of 100,000 namespaces, against a textbook operator
``floor``          30 batches of 100 rows: the fixed cost of a batch
=================  =====================================================================================

The opponents: `shuffle`, the job without a throttle; `identity`, a stateful operator over plain columns that returns
what it is given, in two tasks; `namespace`, the textbook token bucket, keyed by namespace; `row_number`,
which throws away what is over the limit. `throttled` stages its rows. In the parts of namespaces and in ``floor`` a
row's size is in a column, and `references` decides on references.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tests.benchmarks.job_costs import TASKS, WORKLOADS, Part, Start, Workload, give_partitions, main, throttle
from tests.benchmarks.references import by_references

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.state import GroupState

    from spark_throttle.spark.writer import ThrottledStreamWriter

_LIMIT_MESSAGES: Final = 1_000_000
"""Of a namespace and batch: more than there are, so that nothing is held back."""


def shuffle() -> Start:
    """Return what starts the job without a throttle."""
    return lambda events, place: to_nothing(events.repartition(TASKS, "ns").writeStream, place)


def identity(events: DataFrame, place: Path) -> StreamingQuery:
    """Start a stateful operator that returns what it is given, over plain columns, with a key for each task."""
    give_partitions(events.sparkSession, TASKS)

    def run(_key: Any, pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        count = state.get[0] if state.exists else 0
        for piece in pieces:
            count += len(piece)
            yield piece.drop(columns="key")
        state.update((count,))

    keyed = events.withColumn("key", F.pmod(F.crc32(F.col("ns")), F.lit(TASKS)))
    run_by_key = keyed.groupBy("key").applyInPandasWithState(run, events.schema, "count long", "append", "NoTimeout")
    return to_nothing(run_by_key.writeStream, place)


def by_namespace(events: DataFrame, place: Path) -> StreamingQuery:
    """Start the textbook operator: a token bucket a namespace, a call a namespace."""
    give_partitions(events.sparkSession, TASKS)

    def run(_key: Any, pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        now_ms = state.getCurrentProcessingTimeMs()
        tokens, updated_ms = state.get if state.exists else (float(_LIMIT_MESSAGES), now_ms)
        tokens = min(float(_LIMIT_MESSAGES), tokens + (now_ms - updated_ms) * 100.0)
        for piece in pieces:
            admitted = piece.sort_values("id").head(int(tokens))
            tokens -= len(admitted)
            yield admitted
        state.update((tokens, now_ms))

    held = events.groupBy("ns").applyInPandasWithState(
        run, events.schema, "tokens double, updated_ms long", "append", "NoTimeout"
    )
    return to_nothing(held.writeStream, place)


def by_row_number(events: DataFrame, place: Path) -> StreamingQuery:
    """Start what people write by hand: what is over the limit is thrown away."""

    def write(rows: DataFrame, _batch: int) -> None:
        place_in_line = F.row_number().over(Window.partitionBy("ns").orderBy("id"))
        admitted = rows.withColumn("place", place_in_line).where(F.col("place") <= _LIMIT_MESSAGES).drop("place")
        admitted.write.format("noop").mode("overwrite").save()

    writer = events.writeStream.foreachBatch(write).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


def throttled(policies: Mapping[str, Any]) -> Start:
    """Return what starts the throttled job."""
    return lambda events, place: to_nothing(throttle(events.sparkSession, policies).write_stream(events), place)


def to_nothing(writer: DataStreamWriter | ThrottledStreamWriter, place: Path) -> StreamingQuery:
    """Start a query whose rows go nowhere."""
    writer = writer.format("noop").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


ROW_BY_ROW: Final[dict[str, Start]] = {
    "throttled": throttled({}),
    "shuffle": shuffle(),
    "identity": identity,
    "row_number": by_row_number,
}


def both_ways(part: str, work: Workload, opponents: Mapping[str, Start], most_rounds: int | None = None) -> Part:
    """Return a part in which the job stages its rows and decides on references; rows are as in `sized`."""
    work = replace(work, has_size=True)
    ours = {"throttled": throttled({}), "references": by_references("nothing", part, work)}
    return Part(work, {**ours, **opponents}, "throttled", most_rounds=most_rounds)


PARTS: Final = {
    "narrow": Part(WORKLOADS["narrow"], ROW_BY_ROW, "throttled"),
    "wide": Part(WORKLOADS["wide"], ROW_BY_ROW, "throttled"),
    "floor": both_ways("floor", WORKLOADS["small"], {"identity": identity}),
    **{
        name: both_ways(
            name,
            replace(WORKLOADS["narrow"], rows=600_000, namespaces=namespaces, is_even=True),
            {"namespace": by_namespace},
            most_rounds,
        )
        for name, namespaces, most_rounds in (("namespaces-10000", 10_000, None), ("namespaces-100000", 100_000, 2))
    },
}

if __name__ == "__main__":
    main(PARTS, __doc__ or "")
