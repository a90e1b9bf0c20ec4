"""Rows of 2,000 columns and a row of 50 MB, some of which wait: as they went in, whatever way they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark import Throttle
from tests.integration.streams import Lake, finish, policies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY = 2_000
LARGE_BYTES = 50_000_000
POLICIES = policies(namespaces={"t/late": {"write_throttling": "1*delay*100"}})
"""Two of the three rows of t/late wait for a batch each."""

NAMES = ["t/now", "t/late", "t/late", "t/late", "t/now"]


def many_columns() -> pa.Table:
    columns = {f"c{place}" if place % 2 else f"c.{place}`ä'\"": [place, -place, None, 0, 1] for place in range(MANY)}
    return pa.table({"id": range(5), "ns": NAMES, "size": [1] * 5, **columns})


def large_rows() -> pa.Table:
    values = [None, b"x", b"yz" * (LARGE_BYTES // 2), b"", None]
    return pa.table({"id": range(5), "ns": NAMES, "size": [len(value or b"") for value in values], "value": values})


def run(lake: Lake, throttle: Throttle, way: str) -> DataFrame:
    """Run all rows to a table in a way, and return what is there."""
    source, place = lake.path("source"), lake.path(way)
    schema = lake.spark.read.parquet(source).schema
    reader = throttle.read_stream(lake.spark) if way == "references" else lake.spark.readStream
    writer = throttle.write_stream(reader.schema(schema).parquet(source))
    kind = "parquet" if way == "files" else "delta"
    if way in ("native", "spark"):
        writer = writer.option("throttle.writer", way)
    writer = writer.format(kind).option("checkpointLocation", lake.path(f"{way}-checkpoint"))
    query = finish(writer.trigger(availableNow=True).start(place))
    assert len(query.recentProgress) > 2, "nothing waited"
    return lake.spark.read.format(kind).load(place)


@pytest.mark.wide
@pytest.mark.parametrize("table", [many_columns(), large_rows()], ids=["2,000 columns", "50 MB"])
def test_wide_rows_pass_every_writer(lake: Lake, table: pa.Table) -> None:
    (lake.root / "source").mkdir()
    pq.write_table(table, lake.root / "source" / "a.parquet")
    for way in ("native", "spark", "files", "references"):
        came_out = run(lake, lake.throttle(POLICIES), way).toArrow().sort_by("id").select(table.column_names)
        assert came_out.cast(table.schema).equals(table), way
