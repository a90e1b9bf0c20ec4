"""A job that sends at a pace to an HTTP server, for a test that kills it.

Run as ``python -m tests.recovery.paced_job DIRECTORY URL``. It reads ``DIRECTORY/source`` and ends when all was sent.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender
from tests.sessions import brief_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICIES = "tenants: {a: {publish: {messages_per_second: 150, burst_seconds: 2}}}"


def drain(spark: SparkSession, root: Path, url: str) -> None:
    """Run the query until it ends by itself."""
    events = spark.readStream.schema("id long, ns string, size long").parquet(str(root / "source"))
    throttle = Throttle(POLICIES, namespace="ns", size="size", order_by=["id"], shards=2)
    writer = throttle.write_stream(events).option("checkpointLocation", str(root / "checkpoint"))
    query = writer.trigger(availableNow=True).paced(HttpSender(url)).start()
    query.awaitTermination()


if __name__ == "__main__":
    with brief_session(Path(sys.argv[1]) / "scratch") as session:
        drain(session, Path(sys.argv[1]), sys.argv[2])
