"""The job that the crash program kills: Parquet files, or records of Kafka, through a throttle into a sink.

Run as ``python -m tests.crash.job DIRECTORY SINK [OPTION …]``, with options that `main` names.
It ends when everything that was there at its start has been admitted or rejected, so to run it again after a kill is to
finish it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import Backpressure
from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender
from tests.catalog_commits import bring_up_the_log, create_table
from tests.crash import points
from tests.crash.destination import ADDRESS, DRAINING, PACED, PUSHES_BACK
from tests.crash.iceberg import ADMITTED, ICEBERG, REJECTED, keep_files
from tests.crash.jvm import OF_QUERIES, attached_session
from tests.crash.merge import MERGE, Totals
from tests.crash.peer import exchange_of
from tests.crash.tables import COST
from tests.crash.topic import KAFKA, read_topic, with_records, write_topic
from tests.until_drained import run_until_drained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_throttle.spark import ThrottledStreamWriter
    from spark_throttle.spark.reference_stream import ReferenceStream

REFERENCES: Final = "references"
REFERENCES_DELTA: Final = "references-delta"
BY_REFERENCES: Final = (REFERENCES, REFERENCES_DELTA)
FILES: Final = "files"
SOURCES: Final = (FILES, KAFKA, *BY_REFERENCES)
DELTA: Final = "delta"
DELTA_PARTITIONED: Final = "delta-partitioned"
DELTA_CATALOG: Final = "delta-catalog"
TO_DELTA: Final = (DELTA, DELTA_PARTITIONED)
FILE_SINK: Final = "file-sink"
"""Spark's own streaming file sink, behind `Throttle.apply`."""

PARQUET: Final = "parquet"
"""Spark's own batch writer, which takes rows again that an earlier attempt at their batch wrote."""

FUNCTION: Final = "function"
"""The sink of a function, which is metered where quotas limit time; other sinks meter themselves."""

MESSAGES, TIME, COSTS, CONTRACTS = "messages", "time", "costs", "contracts"
"""What quotas limit; costs are known only when a row has come to the table, which is the stream that tells them.

Contracts are quotas on messages with guarantees and budgets.
"""

ESTIMATE: Final = 100
"""What every row is estimated to cost."""

_ROW_NS: Final = 100_000
_NS_PER_SECOND: Final = 1_000_000_000
_BUSY_SECONDS: Final = 2
"""Of every five."""

SCHEMA: Final = "id long, namespace string, size long, note string, part string"


def start_delta(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows, rejected rows and usage in Delta tables; whole files are committed as they were staged."""
    writer = throttle.write_stream(events).format("delta").rejected("delta", path=str(root / "rejected"))
    return started(writer.usage(str(root / "usage")).option("path", str(root / "admitted")), root)


def start_settled(throttle: Throttle, events: DataFrame, root: Path) -> StreamingQuery:
    """Do as `start_delta`, where the table that rows come to says what they really cost."""
    spark, table = events.sparkSession, str(root / "admitted")
    spark.createDataFrame([], SCHEMA).write.format("delta").mode("ignore").save(table)
    costs = spark.readStream.format("delta").load(table).select("id", F.expr(COST).alias("cost"))
    writer = throttle.write_stream(events).settled_by(costs, "id", "cost").format("delta")
    writer = writer.rejected("delta", path=str(root / "rejected")).usage(str(root / "usage"))
    return started(writer.option("path", table), root)


def start_delta_catalog(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows in a Delta table whose catalog commits, by Spark's writer."""
    create_table(SparkSession.active(), points.CATALOG_TABLE, SCHEMA, root / "admitted")
    writer = throttle.write_stream(events).option("checkpointLocation", str(root / "checkpoint"))
    return writer.trigger(availableNow=True).toTable(points.CATALOG_TABLE)


def start_delta_partitioned(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows in a Delta table that takes no files, rejected rows where they go if nothing is said."""
    writer = throttle.write_stream(events).format("delta").partitionBy("part")
    return started(writer.option("path", str(root / "admitted")), root)


def start_file_sink(throttle: Throttle, events: DataFrame, root: Path) -> StreamingQuery:
    """Decided rows through Spark's own streaming file sink, which a stream of Spark's feeds."""
    decided = throttle.apply(events, control_path=str(root / "checkpoint" / "throttle"))
    return (
        decided.writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "decided"))
    )


def start_parquet(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows by Spark's batch writer, which cannot know whether it wrote a batch before."""
    return started(throttle.write_stream(events).format("parquet").option("path", str(root / "admitted")), root)


def start_iceberg(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted and rejected rows in Iceberg tables, whose snapshots name the batch."""
    writer = throttle.write_stream(events).format("iceberg").rejected("iceberg", table=REJECTED)
    writer = writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True)
    return writer.toTable(ADMITTED)


def start_merge(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows merged into a Delta table by SQL, with the batch."""
    totals = StoppableTotals(SparkSession.active(), str(root / "admitted"))
    return started(throttle.write_stream(events).transactional(totals), root)


class StoppableTotals(Totals):
    """Can stop before a batch is merged and after it."""

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        points.stop_at(points.STATE_COMMITTED)
        super().commit(rows, query, mark)
        points.stop_at(points.ADMITTED_WRITTEN)


def start_kafka(throttle: Throttle, events: DataFrame, root: Path) -> StreamingQuery:
    """Admitted rows to a topic, which takes rows again that an earlier attempt at their batch wrote."""
    return started(write_topic(throttle.write_stream(with_records(events)), root), root)


def start_function(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows by a function that writes each batch into a folder of its own, over what was there.

    At times it takes no batch that it does not have, if it is to push back.
    """

    def write(rows: DataFrame, batch: int) -> None:
        is_new = not (root / "admitted" / f"batch={batch}" / "_SUCCESS").exists()
        may_push_back = (root / PUSHES_BACK).exists() and not (root / DRAINING).exists()
        if is_new and may_push_back and time.monotonic_ns() // _NS_PER_SECOND % 5 < _BUSY_SECONDS:
            raise Backpressure(0.5, problem="it is busy")
        rows.write.mode("overwrite").parquet(str(root / "admitted" / f"batch={batch}"))

    return started(throttle.write_stream(events).foreachBatch(write), root)


def start_metered(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Do as `start_function`, after work on each row; both are metered."""
    work = throttle.metered(spend)

    def write(rows: DataFrame, batch: int) -> None:
        worked = rows.mapInArrow(work, rows.schema)
        worked.write.mode("overwrite").parquet(str(root / "admitted" / f"batch={batch}"))

    return started(throttle.write_stream(events).foreachBatch(throttle.metered(write)), root)


def spend(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Use CPU time for each row."""
    for batch in batches:
        until_ns = time.thread_time_ns() + batch.num_rows * _ROW_NS
        while time.thread_time_ns() < until_ns:
            pass
        yield batch


def start_paced(throttle: Throttle, events: DataFrame | ReferenceStream, root: Path) -> StreamingQuery:
    """Admitted rows over HTTP, at a pace; until it is to drain, the query goes on for as long as it may."""
    trigger: dict[str, Any] = {"availableNow": True} if (root / DRAINING).exists() else {"processingTime": "1 second"}
    writer = throttle.write_stream(events).option("checkpointLocation", str(root / "checkpoint"))
    return writer.trigger(**trigger).paced(HttpSender((root / ADDRESS).read_text())).start()


def started(writer: ThrottledStreamWriter, root: Path) -> StreamingQuery:
    """Start a query that ends when all is drained."""
    return writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()


SINKS: Final[dict[str, Callable[[Throttle, Any, Path], StreamingQuery]]] = {
    DELTA: start_delta,
    DELTA_CATALOG: start_delta_catalog,
    DELTA_PARTITIONED: start_delta_partitioned,
    FILE_SINK: start_file_sink,
    PARQUET: start_parquet,
    ICEBERG: start_iceberg,
    MERGE: start_merge,
    KAFKA: start_kafka,
    FUNCTION: start_function,
    PACED: start_paced,
}


def start(
    spark: SparkSession, root: Path, sink: str, *, source: str, is_shared: bool, quotas: str = MESSAGES
) -> StreamingQuery:
    """Start the query; its quotas are shared with a peer, or its own."""
    throttle = Throttle(
        policies=root / "policies.yaml", namespace="namespace", size="size", order_by=["id"],
        exchange=exchange_of(root) if is_shared else None,
        units=str(ESTIMATE) if quotas == COSTS else None, reservation="id" if quotas == COSTS else None,
    )  # fmt: skip
    if source in BY_REFERENCES:
        reader = throttle.read_stream(spark).option("maxFilesPerTrigger", 1)
        reader = reader.schema(SCHEMA).format("parquet") if source == REFERENCES else reader.format("delta")
        return SINKS[sink](throttle, reader.load(str(root / "source")), root)
    if source == KAFKA:
        events = read_topic(spark, root)
    else:
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(root / "source"))
    if quotas == TIME and sink == FUNCTION:
        return start_metered(throttle, events, root)
    if quotas == COSTS:
        return start_settled(throttle, events, root)
    return SINKS[sink](throttle, events, root)


def drain(spark: SparkSession, root: Path, sink: str, *, source: str, is_shared: bool, quotas: str = MESSAGES) -> None:
    """Run in the caller's session until all is drained; its settings are put back."""
    before = {key: spark.conf.get(key, None) for key in OF_QUERIES}
    for key, value in OF_QUERIES.items():
        spark.conf.set(key, value)
    try:
        await_end(start(spark, root, sink, source=source, is_shared=is_shared, quotas=quotas), spark, root, sink)
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def await_end(query: StreamingQuery, spark: SparkSession, root: Path, sink: str) -> None:
    """Wait until all is drained, and have its tables say then what they have."""
    query.awaitTermination()
    if sink == DELTA_CATALOG:
        bring_up_the_log(spark, points.CATALOG_TABLE, root / "admitted")
    if sink == ICEBERG:
        keep_files(spark, root)


def main() -> None:
    """Run until all is drained."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("sink", choices=SINKS)
    parser.add_argument("--source", choices=SOURCES, default=FILES)
    parser.add_argument("--quotas", choices=(MESSAGES, TIME, COSTS, CONTRACTS), default=MESSAGES)
    parser.add_argument("--shared", action="store_true")
    asked = parser.parse_args()
    points.install(asked.root, str(asked.root / "admitted"), str(asked.root / "rejected"))
    spark = attached_session(asked.root)
    with pytest.MonkeyPatch.context() as patch:
        run_until_drained(patch, spark.version)
        query = start(spark, asked.root, asked.sink, source=asked.source, is_shared=asked.shared, quotas=asked.quotas)
        await_end(query, spark, asked.root, asked.sink)


if __name__ == "__main__":
    main()
