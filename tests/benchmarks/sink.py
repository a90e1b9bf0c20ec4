"""What the way out costs: Parquet in, Delta out, by an unthrottled job, Spark's writer and the native writer, in turns.

Run as ``python -m tests.benchmarks.sink [narrow] [wide] [small] [--repeats N] [--out FILE]``. Each job has a shuffle;
nothing is held back, so that every row is written. One JVM runs them all, and each runs the small input before it
counts; what the first full run costs more is outvoted by the median. CPU seconds are those of the whole process tree,
Python's workers included; where others use the machine too, believe them rather than the wall's.

============  ==========================================================================================
``narrow``    3,000,000 rows of some 200 bytes in three batches
``wide``      1,500,000 rows of 18 columns in three batches
``small``     12 batches of 100 rows: the fixed cost of a batch
============  ==========================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_throttle.spark import Throttle
from tests.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAMESPACES = 10_000
SHARDS = 2
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PATIENCE_SECONDS = 600
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Workload:
    """What is read."""

    rows: int
    files: int
    files_a_batch: int
    numbers: int
    """Columns of numbers and of short words beside the id, the namespace and the value."""

    words: int
    value_bytes: int
    namespaces: int = NAMESPACES

    is_even: bool = False
    """Whether namespaces bring the same number of rows; by default a few bring most."""


WORKLOADS = {
    "narrow": Workload(3_000_000, 6, 2, numbers=0, words=0, value_bytes=170),
    "wide": Workload(1_500_000, 6, 2, numbers=10, words=5, value_bytes=40),
    "small": Workload(1_200, 12, 1, numbers=0, words=0, value_bytes=170),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a job cost."""

    cpu_seconds: float
    wall_seconds: float
    batch_ms: float
    """Median of the batches that had rows."""


def write_input(folder: Path, work: Workload) -> None:
    """Write the rows, which a seed determines."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    rows = work.rows // work.files
    names = pa.array([f"tenant{n % 100}/namespace{n}" for n in range(work.namespaces)])
    vocabulary = pa.array([f"word-{n}" for n in range(5_000)])
    for number in range(work.files):
        drawn = rng.integers(0, work.namespaces, rows) if work.is_even else rng.zipf(1.3, rows)
        columns = {
            "id": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "ns": names.take(pa.array(drawn % work.namespaces)),
        }
        for place in range(work.numbers):
            columns[f"n{place}"] = pa.array(rng.random(rows) if place % 2 else rng.integers(0, 10**9, rows))
        for place in range(work.words):
            columns[f"w{place}"] = vocabulary.take(pa.array(rng.integers(0, len(vocabulary), rows)))
        # Letters of 4 bits each: compresses as text does.
        letters = (rng.integers(0, 16, rows * work.value_bytes) + ord("a")).astype(np.uint8)
        offsets = np.arange(0, (rows + 1) * work.value_bytes, work.value_bytes, dtype=np.int32)
        columns["value"] = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
        path = folder / f"{number:04}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def unthrottled(events: DataFrame, place: Path) -> StreamingQuery:
    """Start Spark's own Delta sink behind a shuffle."""
    writer = events.repartition(SHARDS, "ns").writeStream.format("delta").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start(str(place / "out"))


def throttled(name: str) -> Callable[[DataFrame, Path], StreamingQuery]:
    """Return what starts a throttled query with a writer."""

    def start(events: DataFrame, place: Path) -> StreamingQuery:
        throttle = Throttle({}, namespace="ns", size="length(value)", order_by=["id"], shards=SHARDS)
        writer = throttle.write_stream(events).format("delta").option("throttle.writer", name)
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        return writer.start(str(place / "out"))

    return start


OPPONENTS = {"unthrottled": unthrottled, "throttled, Spark's writer": throttled("spark"),
             "throttled, native writer": throttled("native")}  # fmt: skip


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, or the time of Python's workers would be lost."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed; CPU time can only be counted on Linux")


def cpu_seconds() -> float:
    """Return the CPU time of this process and all below it, those that ended included (see `adopt_orphans`)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # pid (name) state parent …, from the 12th on: own user and system time, then those of ended children.
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(pid, 0) for pid in below) / _TICKS_PER_SECOND


def run(spark: SparkSession, source: Path, work: Workload, start: Callable[[DataFrame, Path], StreamingQuery]) -> Cost:
    """Run a job to its end, and check that it wrote every row."""
    schema = spark.read.parquet(str(source)).schema
    place = Path(tempfile.mkdtemp(dir=source.parent))
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", work.files_a_batch)
    cpu, wall = cpu_seconds(), time.perf_counter()
    query = start(reader.parquet(str(source)), place)
    if not query.awaitTermination(_PATIENCE_SECONDS):
        raise TimeoutError(f"the job did not end within {_PATIENCE_SECONDS} s: {query.status}")
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    found = DeltaTable(place / "out").count()
    if found != work.rows:
        raise AssertionError(f"{found} rows of {work.rows} were written")
    progress = query.recentProgress
    batches = [entry["durationMs"]["triggerExecution"] for entry in progress if entry["numInputRows"] > 1]
    shutil.rmtree(place)
    return Cost(cpu, wall, statistics.median(batches))


def compare(spark: SparkSession, root: Path, name: str, repeats: int) -> dict[str, list[Cost]]:
    """Return the costs of every opponent, in turns."""
    work, source = WORKLOADS[name], root / name
    write_input(source, work)
    costs: dict[str, list[Cost]] = {opponent: [] for opponent in OPPONENTS}
    for number in range(repeats):
        for opponent, start in OPPONENTS.items():
            cost = run(spark, source, work, start)
            sys.stderr.write(f"{name} round {number}: {opponent}: {cost}\n")
            sys.stderr.flush()
            costs[opponent].append(cost)
    shutil.rmtree(source)
    return costs


def table(name: str, costs: dict[str, list[Cost]]) -> str:
    """Return medians and ranges, and the ratio of the unthrottled job's CPU time to each."""
    work = WORKLOADS[name]
    lines = [f"{name}: {work.rows:,} rows in {work.files // work.files_a_batch} batches"]
    lines.append(f"{'':28}{'CPU s':>8}{'(range)':>16}{'wall s':>8}{'batch ms':>10}{'ratio':>7}")
    base = statistics.median(cost.cpu_seconds for cost in costs["unthrottled"])
    for opponent, found in costs.items():
        cpu = sorted(cost.cpu_seconds for cost in found)
        wall = statistics.median(cost.wall_seconds for cost in found)
        batch_ms = statistics.median(cost.batch_ms for cost in found)
        middle = statistics.median(cpu)
        span = f"({cpu[0]:.1f}-{cpu[-1]:.1f})"
        lines.append(f"{opponent:28}{middle:8.1f}{span:>16}{wall:8.1f}{batch_ms:10.0f}{base / middle:7.2f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session(Path(scratch) / "spark")
        compare(spark, Path(scratch), "small", 1)
        found = {name: compare(spark, Path(scratch), name, asked.repeats) for name in asked.workloads}
        spark.stop()
    for name, costs in found.items():
        sys.stdout.write(f"\n{table(name, costs)}")
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        numbers = {
            name: {who: [asdict(cost) for cost in costs] for who, costs in by.items()} for name, by in found.items()
        }
        asked.out.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
