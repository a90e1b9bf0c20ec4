"""What waiting rows cost: the time of a batch that admits 10,000 rows, with more and more rows waiting.

Run as ``python -m tests.benchmarks.overload [--way WAY]... [--waiting N]... [--repeats N] [--out FILE]``. The job
decides on staged files or on references. One resource group, whose bucket holds 10,000 messages and
is full again within 0.1 s, so that a batch admits 10,000 rows. The first file leaves `waiting` rows in the queue; then
as many arrive in each batch as leave, so that the queue stays as long. Every run is a query of its own, and its time is
the median of its batches behind the first.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobs.wiring import stop_between_batches
from spark_throttle.spark.state_reader import read_queued
from tests.benchmarks.job_costs import SIZE, Workload, counted_session, cpu_seconds, read_stream, throttle, write_input
from tests.benchmarks.results import save

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAYS: Final = ("staged", "references")
ADMITTED: Final = 10_000
WAITING: Final = (0, 100_000, 1_000_000, 5_000_000)
MEMORY: Final = "2g"
"""A heap in which 5,000,000 waiting rows of 200 bytes have no room."""

BATCHES: Final = 10
"""The first of them fills the queue."""

_SPARE_FILES: Final = 3
"""So that the queue does not drain before the query is stopped."""

_PATIENCE_SECONDS: Final = 600
_POLICIES: Final = {
    "resource_groups": {"all": {"publish": {"messages_per_second": 10 * ADMITTED, "burst_seconds": 0.1}}},
    "defaults": {"resource_group": "all"},
    "queue": {"messages": 10_000_000, "bytes": "4GiB"},
}


@dataclass(frozen=True, slots=True)
class Backlog:
    """One run behind a backlog."""

    way: str
    """What the job decided on."""

    waiting: int
    left_waiting: int
    """When the run ended."""

    batch_ms: float
    cpu_ms: float
    """CPU time of the whole process tree for one batch."""


def run(spark: SparkSession, source: Path, way: str, waiting: int) -> Backlog:
    """Run a query over the files until it has read them, and stop it."""
    place = Path(tempfile.mkdtemp(dir=source.parent))
    checkpoint = str(place / "checkpoint")
    events = read_stream(spark, source, files_a_batch=1)
    if way == "references":
        limiter = throttle(spark, _POLICIES, size=SIZE)
        reader = limiter.read_stream(spark).schema(events.schema).option("maxFilesPerTrigger", 1)
        writer = limiter.write_stream(reader.parquet(str(source)))
    else:
        writer = throttle(spark, _POLICIES).write_stream(events)
    query = writer.format("noop").trigger(processingTime="0 seconds").option("checkpointLocation", checkpoint).start()
    _await_batch(query, 1)
    cpu = cpu_seconds()
    _await_batch(query, BATCHES)
    cpu = cpu_seconds() - cpu
    stop_between_batches(query)
    times = [
        entry["durationMs"]["triggerExecution"] for entry in query.recentProgress if 1 <= entry["batchId"] < BATCHES
    ]
    left = read_queued(spark, checkpoint).count()
    shutil.rmtree(place)
    return Backlog(way, waiting, left, statistics.median(times), 1000 * cpu / (BATCHES - 1))


def _await_batch(query: StreamingQuery, count: int) -> None:
    """Wait until so many batches are done."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while query.lastProgress is None or query.lastProgress["batchId"] < count - 1:
        query.awaitTermination(0.02)  # type: ignore[arg-type] # a float will do
        if time.monotonic() > deadline:
            raise TimeoutError(f"batch {count} was not done within {_PATIENCE_SECONDS} s: {query.status}")


def measure(
    spark: SparkSession, scratch: Path, ways: Sequence[str], waiting: Sequence[int], repeats: int
) -> list[Backlog]:
    """Return runs behind every backlog, in turns; the round that warms up is left out."""
    files = BATCHES + _SPARE_FILES
    for rows in waiting:
        work = Workload(files * ADMITTED, files, 1, numbers=0, words=0, value_bytes=170, more_at_first=rows)
        write_input(scratch / str(rows), replace(work, has_size=True))
    found = []
    for number in range(repeats + 1):
        for way, rows in product(ways, waiting):
            one = run(spark, scratch / str(rows), way, rows)
            sys.stderr.write(f"round {number}: {one}\n")
            sys.stderr.flush()
            if number:
                found.append(one)
    return found


def table(found: Sequence[Backlog]) -> str:
    """Return medians and ranges, and how many times as long a batch takes as without a backlog."""
    return "\n".join(_table_of(way, [one for one in found if one.way == way]) for way in WAYS)


def _table_of(way: str, found: Sequence[Backlog]) -> str:
    lines = [way, f"{'waiting':>10}{'batch ms':>10}{'(range)':>16}{'ratio':>7}{'CPU ms':>9}{'ratio':>7}{'left':>11}"]
    bare: tuple[float, float] | None = None
    for waiting in sorted({one.waiting for one in found}):
        runs = [one for one in found if one.waiting == waiting]
        times = [one.batch_ms for one in runs]
        each = statistics.median(times), statistics.median(one.cpu_ms for one in runs)
        bare = bare or each
        span = f"({min(times):.0f}-{max(times):.0f})"
        left = statistics.median(one.left_waiting for one in runs)
        ratios = each[0] / bare[0], each[1] / bare[1]
        lines.append(
            f"{waiting:10,}{each[0]:10.0f}{span:>16}{ratios[0]:7.2f}{each[1]:9.0f}{ratios[1]:7.2f}{left:11,.0f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with counted_session(memory=MEMORY) as (spark, scratch):
        found = measure(spark, scratch, asked.way, asked.waiting, asked.repeats)
    sys.stdout.write(table(found))
    save([asdict(one) for one in found], asked.out)


if __name__ == "__main__":
    main()
