"""What jobs cost side by side: the workloads they read, one run of a job, and opponents in turns.

CPU seconds are those of the whole process tree, Python's workers included; a run starts when its query does and ends
when it has read everything. Each opponent runs once before it counts. A ratio is an
opponent's time over that of the job that is measured: how many rows that job passes while the opponent passes one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from spark_throttle.spark import Throttle
from tests.benchmarks.results import save
from tests.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Start = Callable[["DataFrame", Path], "StreamingQuery"]
"""Starts a job over a stream, with a directory of its own."""

NAMESPACES = 10_000
SIZE = "size_bytes"
"""The column of a row's size, where a workload has one."""

TASKS = 2
"""Of a shuffle."""

_MOST_CONTROL_ROWS = 64
"""A control row, of which a batch has one, is a row too."""

_PATIENCE_SECONDS = 1_200
_MEMORY = "6g"
"""The state of a query that ended stays in the heap for a while, and that of a million waiting rows is large."""

_PR_SET_CHILD_SUBREAPER = 36
_BROKER = "kafka.Kafka"


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

    more_at_first: int = 0
    """Rows that the first file has beyond its part of `rows`."""

    has_size: bool = False
    """Whether a row's size is in a column."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a job cost."""

    cpu_seconds: float
    wall_seconds: float
    batch_ms: float
    """Median of the batches that had rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """Opponents over one workload."""

    work: Workload
    opponents: Mapping[str, Start]

    measured: str
    """The opponent that the others are compared with."""

    check: Callable[[Path, str], None] | None = None
    """Raises if a run of an opponent left something else in its directory than it should."""

    read: Callable[[], DataFrame] | None = None
    """Returns the stream; by default that of the rows that `write_input` writes."""


def write_input(folder: Path, work: Workload) -> None:
    """Write the rows, which a seed determines."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    first = 0
    names = pa.array([f"tenant{n % 100}/namespace{n}" for n in range(work.namespaces)])
    vocabulary = pa.array([f"word-{n}" for n in range(5_000)])
    for number in range(work.files):
        rows = work.rows // work.files + (0 if number else work.more_at_first)
        drawn = rng.integers(0, work.namespaces, rows) if work.is_even else rng.zipf(1.3, rows)
        columns = {
            "id": pa.array(np.arange(first, first + rows)),
            "ns": names.take(pa.array(drawn % work.namespaces)),
        }
        for place in range(work.numbers):
            columns[f"n{place}"] = pa.array(rng.random(rows) if place % 2 else rng.integers(0, 10**9, rows))
        for place in range(work.words):
            columns[f"w{place}"] = vocabulary.take(pa.array(rng.integers(0, len(vocabulary), rows)))
        # Letters of 4 bits each: compresses as text does.
        letters = (rng.integers(0, 16, rows * work.value_bytes) + ord("a")).astype(np.uint8)
        offsets = np.arange(0, (rows + 1) * work.value_bytes, work.value_bytes, dtype=np.int32)
        if work.has_size:
            columns[SIZE] = pa.array(np.full(rows, work.value_bytes, dtype=np.int32))
        columns["value"] = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
        path = folder / f"{number:04}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
        first += rows


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, or the time of Python's workers would be lost."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed; CPU time can only be counted on Linux")


def cpu_seconds() -> float:
    """Return the CPU time of this process and all below it, those that ended included (see `adopt_orphans`).

    That of a Kafka broker is left out: it is the same for all opponents.
    """
    found = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, and is in its parent's
            if _BROKER in process.cmdline():
                continue
            times = process.cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


@contextlib.contextmanager
def counted_session(uses: tuple[str, ...] = ("delta",), memory: str = _MEMORY) -> Iterator[tuple[SparkSession, Path]]:
    """Open a session whose processes are all counted, and a folder; both are gone behind it."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session(Path(scratch) / "spark", uses=uses, memory=memory, jvm_options="")
        yield spark, Path(scratch)
        spark.stop()


def read_stream(spark: SparkSession, source: Path, *, files_a_batch: int) -> DataFrame:
    """Return what `write_input` wrote, as a stream."""
    schema = spark.read.parquet(str(source)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_a_batch).parquet(str(source))


def give_partitions(spark: SparkSession, partitions: int) -> None:
    """Give the shuffles of queries that start next so many partitions; a query notes the number at its start."""
    spark.conf.set("spark.sql.shuffle.partitions", partitions)


def throttle(spark: SparkSession, policies: Mapping[str, Any], size: str = "length(value)") -> Throttle:
    """Return a throttle of what `write_input` wrote."""
    give_partitions(spark, TASKS)
    return Throttle(policies, namespace="ns", size=size, order_by=["id"])


def run(spark: SparkSession, source: Path, part: Part, opponent: str) -> Cost:
    """Run a job until it has read everything, and check what it left."""
    events = read_stream(spark, source, files_a_batch=part.work.files_a_batch) if part.read is None else part.read()
    place = Path(tempfile.mkdtemp(dir=source.parent))
    cpu, wall = cpu_seconds(), time.perf_counter()
    query = part.opponents[opponent](events, place)
    if not query.awaitTermination(_PATIENCE_SECONDS):
        raise TimeoutError(f"the job did not end within {_PATIENCE_SECONDS} s: {query.status}")
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    if part.check is not None:
        part.check(place, opponent)
    progress = list(query.recentProgress)
    # A job that decides on references reads frames of many rows each.
    batches = [entry for entry in progress if entry["numInputRows"] > _MOST_CONTROL_ROWS] or progress
    shutil.rmtree(place)
    return Cost(cpu, wall, statistics.median(entry["durationMs"]["triggerExecution"] for entry in batches))


def compare(spark: SparkSession, source: Path, part: Part, repeats: int) -> dict[str, list[Cost]]:
    """Return the costs of every opponent, in turns; the round that warms up is left out."""
    if part.read is None:
        write_input(source, part.work)
    costs: dict[str, list[Cost]] = {opponent: [] for opponent in part.opponents}
    for number in range(repeats + 1):
        for opponent in part.opponents:
            cost = run(spark, source, part, opponent)
            sys.stderr.write(f"{source.name} round {number}: {opponent}: {cost}\n")
            sys.stderr.flush()
            if number:
                costs[opponent].append(cost)
    shutil.rmtree(source, ignore_errors=True)
    return costs


def table(name: str, part: Part, costs: Mapping[str, list[Cost]]) -> str:
    """Return medians, ranges and ratios of a part."""
    work = part.work
    return table_of(f"{name}: {work.rows:,} rows in {work.files // work.files_a_batch} batches", costs, part.measured)


def table_of(heading: str, costs: Mapping[str, list[Cost]], measured: str) -> str:
    """Return medians, ranges, and ratios to the opponent that is measured, below a heading."""
    lines = [heading]
    head = f"{'CPU s':>8}{'(range)':>16}{'ratio':>7}{'wall s':>8}{'(range)':>16}{'ratio':>7}{'batch ms':>10}"
    lines.append(f"{'':28}{head}")
    for opponent, found in costs.items():
        shown = ""
        for unit in ("cpu_seconds", "wall_seconds"):
            ours = statistics.median(getattr(cost, unit) for cost in costs[measured])
            values = [getattr(cost, unit) for cost in found]
            middle, span = statistics.median(values), f"({min(values):.1f}-{max(values):.1f})"
            shown += f"{middle:8.1f}{span:>16}{middle / ours:7.2f}"
        lines.append(f"{opponent:28}{shown}{statistics.median(cost.batch_ms for cost in found):10.0f}")
    return "\n".join(lines) + "\n"


def show(parts: Mapping[str, Part], found: Mapping[str, dict[str, list[Cost]]], out: Path | None) -> None:
    """Write what the opponents of parts cost, as tables and as JSON."""
    for name, costs in found.items():
        sys.stdout.write(f"\n{table(name, parts[name], costs)}")
    numbers = {name: {who: [asdict(cost) for cost in costs] for who, costs in by.items()} for name, by in found.items()}
    save(numbers, out)


def arguments(names: Iterable[str], summary: str) -> argparse.Namespace:
    """Return the command line: which parts are asked for, how often they run, and where their costs go."""
    parser = argparse.ArgumentParser(description=summary.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()
