"""A job that sends at a pace to an HTTP server, for a test that kills it.

Run as ``python -m tests.recovery.paced_job DIRECTORY URL [POINT]``. It reads ``DIRECTORY/source`` and ends when all was
sent. With a point, the tenant a goes to a destination that may push back, and the run stops dead there, when a batch
leaves calls unsent, and makes ``DIRECTORY/reached``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_throttle.checkpoint.unsent import UnsentCalls, write_unsent
from spark_throttle.files.storage import Directory
from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender, paced_sink
from tests.recovery.faults import pause
from tests.sessions import brief_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICIES = "tenants: {a: {publish: {messages_per_second: 150, burst_seconds: 2}}}"
PUSHED_BACK = """
resource_groups:
  api: {publish: {messages_per_second: 150, burst_seconds: 2}, destination: {open_after_seconds: 2}}
tenants: {a: {resource_group: api}}
"""

NOWHERE, BEFORE_KEPT, AMID_KEPT, AFTER_KEPT = "nowhere", "before-kept", "amid-kept", "after-kept"


def write_source(root: Path, count: int) -> None:
    """Write the rows that the job reads, of three namespaces of each of two tenants."""
    source = root / "source"
    source.mkdir()
    rows = [{"id": number, "ns": f"{'ab'[number % 2]}/{number % 6}", "size": 10} for number in range(count)]
    pq.write_table(pa.Table.from_pylist(rows), source / "all.parquet")


def drain(spark: SparkSession, root: Path, url: str, policies: str = POLICIES) -> None:
    """Run the query until it ends by itself."""
    events = spark.readStream.schema("id long, ns string, size long").parquet(str(root / "source"))
    throttle = Throttle(policies, namespace="ns", size="size", order_by=["id"], shards=2)
    writer = throttle.write_stream(events).option("checkpointLocation", str(root / "checkpoint"))
    query = writer.trigger(availableNow=True).paced(HttpSender(url)).start()
    query.awaitTermination()


def arm(point: str, reached: Path) -> None:
    """Stop dead where the first calls are kept that a batch after the first leaves."""
    write = Directory.write

    def write_and_pause(control: Directory, batch: int, batch_ms: int, calls: UnsentCalls) -> None:
        is_meant = bool(calls.tables) and batch > 0
        if is_meant and point == BEFORE_KEPT:
            pause(reached)
        if is_meant and point == AMID_KEPT:
            Directory.write = half  # type: ignore[method-assign]
        write_unsent(control, batch, batch_ms, calls)
        if is_meant and point == AFTER_KEPT:
            pause(reached)

    def half(self: Directory, name: str, content: bytes) -> None:
        write(self, f"{name}.half", content[: len(content) // 2])
        pause(reached)

    sink: Any = paced_sink
    sink.write_unsent = write_and_pause


if __name__ == "__main__":
    place = Path(sys.argv[1])
    is_pushed_back = len(sys.argv) > 3
    if is_pushed_back:
        arm(sys.argv[3], place / "reached")
    with brief_session(place / "scratch") as session:
        drain(session, place, sys.argv[2], PUSHED_BACK if is_pushed_back else POLICIES)
