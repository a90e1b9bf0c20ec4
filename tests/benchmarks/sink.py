"""What the way out costs: Parquet in, Delta out, by an unthrottled job, as files lie and by Spark's writer, in turns.

Run as ``python -m tests.benchmarks.sink [narrow] [wide] [small] [--repeats N] [--out FILE]``. Each job has a shuffle;
nothing is held back, so that every row is written. `job_costs` says what is measured.

============  ==========================================================================================
``narrow``    3,000,000 rows of some 200 bytes in three batches
``wide``      1,500,000 rows of 18 columns in three batches
``small``     12 batches of 100 rows: the fixed cost of a batch
============  ==========================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tests.benchmarks.job_costs import TASKS, WORKLOADS, Part, Start, Workload, main, throttle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def unthrottled(events: DataFrame, place: Path) -> StreamingQuery:
    """Start Spark's own Delta sink behind a shuffle."""
    writer = events.repartition(TASKS, "ns").writeStream.format("delta").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start(str(place / "out"))


def throttled(**options: str) -> Start:
    """Return what starts a throttled query; a table with an option is written by Spark's writer."""

    def start(events: DataFrame, place: Path) -> StreamingQuery:
        writer = throttle(events.sparkSession, {}).write_stream(events).format("delta").options(**options)
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        return writer.start(str(place / "out"))

    return start


OPPONENTS = {
    "unthrottled": unthrottled,
    "throttled, Spark's writer": throttled(mergeSchema="true"),
    "throttled": throttled(),
}


def check_rows(place: Path, work: Workload) -> None:
    """Raise if not every row was written."""
    found = DeltaTable(place / "out").count()
    if found != work.rows:
        raise AssertionError(f"{found} rows of {work.rows} were written")


PARTS = {name: Part(WORKLOADS[name], OPPONENTS, "throttled", check_rows) for name in ("narrow", "wide", "small")}

if __name__ == "__main__":
    main(PARTS, __doc__ or "")
