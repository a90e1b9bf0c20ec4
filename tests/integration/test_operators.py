"""What may stand before and behind the throttle: each line of docs/streams.md works, or is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_throttle.errors import ConfigurationError
from tests.integration.streams import Lake, finish, policies
from tests.integration.test_state_stores import ROCKSDB, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFERED = [(row_id, f"t/{row_id % 3}", 1) for row_id in range(30)]


def counting(key: tuple[Any, ...], pieces: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"ns": [key[0]]})


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield pd.DataFrame({"ns": [key[0]]})

    def close(self) -> None:
        self.handle = None


def started(lake: Lake, events: DataFrame, **settings: Any) -> Any:
    writer = lake.throttle(policies(), **settings).write_stream(events).format("parquet")
    writer = writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True)
    return writer.start(lake.path("admitted"))


def test_operators_that_cannot_stand_before_the_throttle_are_refused_in_one_sentence(lake: Lake) -> None:
    lake.offer(OFFERED)
    events = lake.events()
    timed = events.withColumn("at", F.expr("timestamp_seconds(id)")).withWatermark("at", "1 second")
    static = lake.spark.read.parquet(lake.path("events"))
    decided = lake.throttle(policies()).apply(events, control_path=lake.path("first"))
    stateful = events.groupBy("ns").applyInPandasWithState(counting, "ns string", "n int", "append", "NoTimeout")
    transformed = events.groupBy("ns").transformWithStateInPandas(Counting(), "ns string", "append", "none")
    cases = [
        (decided.drop("throttle"), "another throttle before the throttle, .*: write what it admits to a table, and"),
        (events.groupBy("ns").count(), "an aggregation before the throttle, .*: write its result to a table, and"),
        (timed.groupBy(F.window("at", "5 seconds"), "ns").count(), "an aggregation before the throttle"),
        (stateful, "a stateful function before the throttle, .*: write its result to a table, and throttle"),
        (transformed, "a transformWithState before the throttle, .* on RocksDB only: begin with spark"),
        (events.orderBy("id"), "an orderBy before the throttle, .* as order_by"),
        (events.selectExpr("*", "row_number() OVER (PARTITION BY ns ORDER BY id) AS n"), "a window function before"),
        (events.exceptAll(static), "an except or an intersect before the throttle, .*left_anti"),
        (events.intersect(static), "an except or an intersect before the throttle, .*left_semi"),
        (static.select("id").join(events, "id", "left"), "Spark refuses the query: LeftOuter join with a streaming"),
    ]
    for stream, words in cases:
        with pytest.raises(ConfigurationError, match=words) as refused:
            started(lake, stream, size="1", order_by=None, namespace="'t/n'")
        assert "\n" not in str(refused.value)
        assert "docs/streams.md" in str(refused.value)
    with pytest.raises(ConfigurationError, match="another throttle before the throttle"):
        lake.throttle(policies()).apply(decided.drop("throttle"), control_path=lake.path("second"))
    assert not (lake.root / "admitted").exists()
    with settings(lake.spark, ROCKSDB):
        finish(started(lake, transformed, size="1", order_by=None))
        assert sorted(row["ns"] for row in lake.spark.read.parquet(lake.path("admitted")).collect()) == [
            "t/0",
            "t/1",
            "t/2",
        ]


def test_stateless_and_chaining_operators_before_the_throttle_and_merge_behind_it_keep_every_row(lake: Lake) -> None:
    """One query has them all: a union, a watermark, no duplicates, a static join with an aggregate, an outer join."""
    lake.offer([*OFFERED, *OFFERED[:5]])
    spark, events = lake.spark, lake.events()
    totals = spark.read.parquet(lake.path("events")).groupBy("ns").agg(F.count("*").alias("total"))
    timed = events.union(events).withColumn("at", F.expr("timestamp_seconds(id + 100)")).withWatermark("at", "1 second")
    others = lake.events().select(F.col("id").alias("other"), F.expr("timestamp_seconds(id + 100)").alias("seen"))
    others = others.withWatermark("seen", "1 second").where("other <> 3").dropDuplicatesWithinWatermark(["other"])
    alone = timed.dropDuplicates(["id", "at"]).join(totals, "ns")
    stream = alone.join(others, F.expr("id = other AND at = seen"), "leftOuter")  # 3 leaves once no partner may come
    lake.spark.createDataFrame([], "id long, ns string, total long, other long").write.format("delta").save(
        lake.path("merged")
    )
    target = f"delta.`{lake.path('merged')}`"

    def merge(rows: DataFrame, batch: int) -> None:
        rows.createOrReplaceTempView("admitted_rows")
        condition = f"MERGE INTO {target} t USING admitted_rows s ON t.id = s.id"
        rows.sparkSession.sql(f"{condition} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")

    writer = (
        lake.throttle(policies()).write_stream(stream.select("id", "ns", "size", "total", "other")).foreachBatch(merge)
    )
    finish(writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True).start())
    merged = DeltaTable(lake.path("merged")).to_pyarrow_table().sort_by("id").to_pylist()
    partners = [(row_id, ns, None if row_id == 3 else row_id) for row_id, ns, _ in OFFERED]
    assert [(row["id"], row["ns"], row["other"]) for row in merged] == partners


@pytest.mark.thorough
def test_publish_then_dispatch_through_a_feed_of_changes_into_a_table_with_identity_check_and_mapping(
    lake: Lake,
) -> None:
    """A chain of two throttles: a partitioned table with deletion vectors and a change data feed lies between them."""
    lake.offer(OFFERED)
    spark = lake.spark
    spark.sql(
        "CREATE OR REPLACE TABLE chain_lake (id LONG, ns STRING, size LONG) USING delta PARTITIONED BY (ns) "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(
        "CREATE OR REPLACE TABLE chain_out (number LONG GENERATED ALWAYS AS IDENTITY, id LONG, ns STRING) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql("ALTER TABLE chain_out ADD CONSTRAINT small CHECK (id < 29)")
    try:
        published = lake.writer(lake.throttle(policies()))
        finish(published.toTable("chain_lake"))
        spark.sql("DELETE FROM chain_lake WHERE id = 7")
        feed = spark.readStream.option("readChangeFeed", "true").option("startingVersion", 0).table("chain_lake")
        inserted = feed.where("_change_type = 'insert'").select("id", "ns")
        throttle = lake.throttle(policies(), direction="dispatch", size="1")
        writer = throttle.write_stream(inserted).option("checkpointLocation", lake.path("second"))
        with pytest.raises(StreamingQueryException, match="CHECK constraint small"):
            finish(writer.trigger(availableNow=True).toTable("chain_out"))
        assert spark.table("chain_out").count() == 0
        spark.sql("ALTER TABLE chain_out DROP CONSTRAINT small")
        spark.sql("ALTER TABLE chain_out ADD CONSTRAINT small CHECK (id < 30)")
        finish(writer.trigger(availableNow=True).toTable("chain_out"))
        rows = spark.table("chain_out").orderBy("id").collect()
        assert [(row["id"], row["ns"]) for row in rows] == [(row_id, ns) for row_id, ns, _ in OFFERED]
        assert len({row["number"] for row in rows}) == len(rows)
    finally:
        spark.sql("DROP TABLE chain_lake")
        spark.sql("DROP TABLE chain_out")
