"""A quota on processing time, with real CPU work: two tenants with the same rows, one of them ten times as dear.

    python -m tests.benchmarks.time_quota [--seconds N] [--interval N] [--percent N] [--out FILE]

The dear tenant wants twice the time of its quota: by default a whole core, of which it may have half. Its work and the
other's are done in tasks of their own, on two cores. The workers count what they use by their threads' clocks:

- `dear_percent`: the core time that the dear tenant's rows took in the measured time, in percent of one core;
- `cheap_latency`: how old the other tenant's rows were when they had been worked on; and `cheap_latency_equal`, the
  same of a query with the same rows, in which those of the dear tenant are as cheap. Spark's rate source hands out
  whole seconds since its own start, so at a trigger its newest row is up to a second old, in each query by another part
  of a second: this part (`lag_ms`) is taken off;
- `dear_of_quota` and `latency_of_equal`: the two claims, as quotients that should be near 1;
- `load` and `load_equal`: the machine's load average at the end, which tells what else it had to do.

Half of the trigger's interval must be enough for all that a batch does beside the dear tenant's work, or batches are
late and so are all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_throttle.spark import Throttle
from tests.benchmarks.results import save
from tests.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_throttle.spark.metering.meter import Meter

ROWS_PER_SECOND: Final = 200
TIMES_AS_DEAR: Final = 10
CHEAP, DEAR = "cheap/a", "dear/a1"
WARM_UP_SECONDS: Final = 60
_FEWEST_BATCHES: Final = 5


@dataclass(frozen=True, slots=True)
class Worker:
    """The work on rows: it takes a fixed time per row of a tenant, and notes when, for whom and how old."""

    notes: str
    row_ns: dict[str, int]
    """The CPU time of a row, by namespace."""

    def __call__(self, batches: Iterator[pa.RecordBatch], meter: Meter) -> Iterator[pa.RecordBatch]:
        """Work on each batch, one tenant after the other."""
        for batch in batches:
            names = batch.column("ns")
            for name in names.unique().to_pylist():
                own = batch.filter(pa.compute.equal(names, name))
                with meter.charging(name):
                    began_ns = time.thread_time_ns()
                    until_ns = began_ns + own.num_rows * self.row_ns[name]
                    while time.thread_time_ns() < until_ns:
                        pass
                    used_ns = time.thread_time_ns() - began_ns
                now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - to be compared with the rows' times
                ages_ms = [now_ms - at for at in own.column("at_ms").to_pylist()]
                note = {"name": name, "at_ms": now_ms, "used_ns": used_ns, "ages_ms": ages_ms}
                with Path(self.notes).open("a") as file:
                    file.write(json.dumps(note) + "\n")
            yield batch


def main() -> None:
    """Run both queries, measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60, help="of measuring, after a warm-up")
    parser.add_argument("--interval", type=int, default=5, help="the trigger's, in seconds")
    parser.add_argument("--percent", type=int, default=50, help="the dear tenant's quota")
    parser.add_argument("--burst", type=int, default=20, help="seconds of the quota, longer than a batch takes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    numbers: dict[str, Any] = {"seconds": given.seconds, "interval": given.interval, "quota_percent": given.percent}
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session(Path(scratch))
        try:
            for case, times_as_dear in (("equal", 1), ("dear", TIMES_AS_DEAR)):
                folder = Path(scratch) / case
                folder.mkdir()
                run(spark, folder, given, times_as_dear)
                numbers |= measured(folder / "notes", given.seconds, given.interval * 1000, case)
                numbers["load" if case == "dear" else f"load_{case}"] = round(os.getloadavg()[0], 1)
        finally:
            spark.stop()
    numbers["dear_of_quota"] = round(numbers["dear_percent"] / given.percent, 3)
    numbers["latency_of_equal"] = round(numbers["cheap_latency_p50_ms"] / numbers["cheap_latency_equal_p50_ms"], 3)
    save(numbers, given.out)
    print(json.dumps(numbers))


def run(spark: SparkSession, folder: Path, given: argparse.Namespace, times_as_dear: int) -> None:
    """Run a query for the measured time."""
    policies = {
        "version": 1,
        "tenants": {"dear": {"publish": {"request_percentage": given.percent, "burst_seconds": given.burst}}},
        "queue": {"messages": 1_000_000},
    }
    events = spark.readStream.format("rate").option("rowsPerSecond", 2 * ROWS_PER_SECOND).load()
    events = events.selectExpr(
        "value AS id", "unix_millis(timestamp) AS at_ms",
        f"IF(value % 2 = 0, '{CHEAP}', '{DEAR}') AS ns",
    )  # fmt: skip
    throttle = Throttle(json.dumps(policies), namespace="ns", size="8", order_by=["id"])
    cheap_ns = 2 * given.percent * 10_000_000 // ROWS_PER_SECOND // TIMES_AS_DEAR
    work = throttle.metered(Worker(str(folder / "notes"), {CHEAP: cheap_ns, DEAR: cheap_ns * times_as_dear}))
    writer = throttle.write_stream(events).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime=f"{given.interval} seconds").foreachBatch(to_the_end(work)).start()
    try:
        threading.Event().wait(WARM_UP_SECONDS + given.seconds + 2 * given.interval)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
    finally:
        query.stop()


def to_the_end(work: Callable[..., Any]) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that has each batch worked on."""

    def run_batch(rows: DataFrame, batch: int) -> None:
        rows.repartitionByRange(2, "ns").mapInArrow(work, rows.schema).write.format("noop").mode("overwrite").save()

    return run_batch


def measured(notes: Path, seconds: int, interval_ms: int, case: str) -> dict[str, Any]:
    """Return the figures of a query."""
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    first_ms = min(note["at_ms"] for note in found) + WARM_UP_SECONDS * 1000
    kept = [note for note in found if first_ms <= note["at_ms"] < first_ms + seconds * 1000]
    own = [note for note in kept if note["name"] == CHEAP]
    lag_ms = statistics.median(newest_at_trigger_ms(note, interval_ms) for note in own)
    ages_ms = [age - lag_ms for note in own for age in note["ages_ms"]]
    latency = {
        "lag_ms": lag_ms,
        "p50_ms": statistics.median(ages_ms),
        "p95_ms": statistics.quantiles(ages_ms, n=20)[-1],
    }
    if case == "equal":
        return {f"cheap_latency_equal_{name}": value for name, value in latency.items()}
    return {
        **{f"cheap_latency_{name}": value for name, value in latency.items()},
        **{f"{name.partition('/')[0]}_percent": percent_of(name, kept) for name in (CHEAP, DEAR)},
    }


def newest_at_trigger_ms(note: dict[str, Any], interval_ms: int) -> int:
    """Return how old the newest row of some was when Spark began the batch, at a multiple of the interval."""
    return min(note["ages_ms"]) - note["at_ms"] % interval_ms


def percent_of(name: str, notes: list[dict[str, Any]]) -> float:
    """Return the core time that a tenant's rows took from the first of some batches to the last, in percent of a core.

    What a batch may use was earned before it, so the first one does not count.
    """
    own = sorted((note["at_ms"], note["used_ns"]) for note in notes if note["name"] == name)
    if len(own) < _FEWEST_BATCHES:
        raise SystemExit(
            f"only {len(own)} batches had rows of {name} in the measured time: the machine has too much else to do"
        )
    return round(sum(used_ns for _, used_ns in own[1:]) / (own[-1][0] - own[0][0]) / 10_000, 2)


if __name__ == "__main__":
    main()
