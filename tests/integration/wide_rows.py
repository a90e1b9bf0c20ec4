"""Rows of 2,000 columns and a row of 50 MB, some of which wait, and the ways that they take, for any session of Spark.

Run as a program on a cluster, ``python -m tests.integration.wide_rows PLACE``, with the cluster's settings in
`PYSPARK_SUBMIT_ARGS`, it sends them all ways and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_throttle.spark import Throttle
from tests.integration.streams import policies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY: Final = 2_000
LARGE_BYTES: Final = 50_000_000
POLICIES: Final = policies(namespaces={"t/late": {"write_throttling": "1*delay*100"}})
"""Two of the three rows of t/late wait for later batches."""

NAMES: Final = ["t/now", "t/late", "t/late", "t/late", "t/now"]
WAYS: Final = ("delta", "partitioned", "files", "references")


def many_columns() -> pa.Table:
    columns = {f"c{place}" if place % 2 else f"c.{place}`ä'\"": [place, -place, None, 0, 1] for place in range(MANY)}
    return pa.table({"id": range(5), "ns": NAMES, "size": [1] * 5, **columns})


def large_rows() -> pa.Table:
    values = [None, b"x", b"yz" * (LARGE_BYTES // 2), b"", None]
    return pa.table({"id": range(5), "ns": NAMES, "size": [len(value or b"") for value in values], "value": values})


TABLES: Final[Mapping[str, Callable[[], pa.Table]]] = {"2,000 columns": many_columns, "50 MB": large_rows}


def run(spark: SparkSession, way: str, place: str) -> DataFrame:
    """Send all rows of the folder `source` a way, and return what comes out."""
    throttle = Throttle(POLICIES, namespace="ns", size="size", order_by=["id"])
    schema = spark.read.parquet(f"{place}/source").schema
    reader = throttle.read_stream(spark) if way == "references" else spark.readStream
    writer = throttle.write_stream(reader.schema(schema).parquet(f"{place}/source"))
    kind = "parquet" if way in ("files", "references") else "delta"
    writer = writer.partitionBy(*(("ns",) if way == "partitioned" else ()))
    writer = writer.format(kind).option("checkpointLocation", f"{place}/{way}-checkpoint").usage(f"{place}/{way}-usage")
    query = writer.trigger(availableNow=True).start(f"{place}/{way}")
    query.awaitTermination()
    of_late = spark.read.format("delta").load(f"{place}/{way}-usage").where("scope = 't/late'")
    assert of_late.where("delayed_ms > 0").count(), "nothing waited"
    return spark.read.format(kind).load(f"{place}/{way}")


def came_unharmed(spark: SparkSession, table: pa.Table, place: str) -> dict[str, bool]:
    """Return for each way whether the rows of a table came out as they went in; all is below a new place."""
    spark.createDataFrame(table).coalesce(1).write.parquet(f"{place}/source")
    told = {}
    for way in WAYS:
        came_out = run(spark, way, place).toArrow().sort_by("id").select(table.column_names)
        told[way] = came_out.cast(table.schema).equals(table)
    return told


def run_all(spark: SparkSession, place: str) -> dict[str, dict[str, bool]]:
    """Send the rows of all tables every way."""
    return {
        name: came_unharmed(spark, table(), f"{place}/{number}") for number, (name, table) in enumerate(TABLES.items())
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_all(SparkSession.builder.getOrCreate(), sys.argv[1])) + "\n")
