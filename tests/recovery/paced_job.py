"""A query that sends at a pace to an HTTP server, in a job that a test kills (`tests.recovery.killed_job`).

It reads ``ROOT/source`` and ends when all was sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLICIES = "tenants: {a: {publish: {messages_per_second: 150, burst_seconds: 2}}}"
PUSHED_BACK = """
resource_groups:
  api: {publish: {messages_per_second: 150, burst_seconds: 2}, destination: {open_after_seconds: 2}}
tenants: {a: {resource_group: api}}
"""
"""The tenant a goes to a destination that may push back."""

_PATIENCE_SECONDS = 120.0
"""An answer is held back until the job is killed."""


def write_source(root: Path, count: int) -> None:
    """Write the rows that the query reads, of three namespaces of each of two tenants."""
    source = root / "source"
    source.mkdir(parents=True)
    rows = [{"id": number, "ns": f"{'ab'[number % 2]}/{number % 6}", "size": 10} for number in range(count)]
    pq.write_table(pa.Table.from_pylist(rows), source / "all.parquet")


def start(spark: SparkSession, root: Path, url: str, policies: str) -> StreamingQuery:
    """Start the query, which ends by itself."""
    events = spark.readStream.schema("id long, ns string, size long").parquet(str(root / "source"))
    throttle = Throttle(policies, namespace="ns", size="size", order_by=["id"])
    writer = throttle.write_stream(events).option("checkpointLocation", str(root / "checkpoint"))
    return writer.trigger(availableNow=True).paced(HttpSender(url, timeout_seconds=_PATIENCE_SECONDS)).start()
