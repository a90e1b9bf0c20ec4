"""How the cost of a job grows with rows, namespaces and partitions of its source: Parquet in, nothing out.

Run as ``python -m tests.benchmarks.growth [PART]... [--repeats N] [--out FILE]``. `job_costs` says what is measured.
The opponents: `shuffle`, the job without a throttle; `throttled`, with nothing held back; `quotas`, with a quota of its
own for each namespace.

=================  =====================================================================================
``rows-…``         100,000 to 3,000,000 rows of 10,000 namespaces
``namespaces-…``   600,000 rows of 1,000 to 1,000,000 namespaces, evenly
``partitions-…``   600,000 rows of 10,000 namespaces, evenly, of 1 to 512 files a batch, a partition each
=================  =====================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.benchmarks.job_costs import Part, Start, Workload, arguments, compare, counted_session, show
from tests.benchmarks.paths import Sink, shuffle, throttled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS: Final = (100_000, 300_000, 1_000_000, 3_000_000)
NAMESPACES: Final = (1_000, 10_000, 100_000, 1_000_000)
PARTITION_COUNTS: Final = (1, 8, 64, 512)
_ROWS: Final = 600_000
_NOTHING: Final = Sink("nothing")
_COST_OF_A_FILE: Final = "spark.sql.files.openCostInBytes"
_QUOTAS: Final = {"defaults": {"publish": {"messages_per_second": 1_000_000, "bytes_per_second": "1GiB"}}}


def part(rows: int, namespaces: int = 10_000, partitions: int | None = None) -> Part:
    """Return the opponents over so many rows of so many namespaces; by default Spark packs files into partitions."""
    opponents = {
        "throttled": throttled(_NOTHING, {}),
        "quotas": throttled(_NOTHING, _QUOTAS),
        "shuffle": shuffle(_NOTHING),
    }
    if partitions is not None:
        opponents = {name: _a_partition_a_file(start) for name, start in opponents.items()}
    files = 1 if partitions is None else partitions
    work = Workload(
        rows, 2 * files, files, numbers=0, words=0, value_bytes=170, namespaces=namespaces, is_even=True, has_size=True
    )
    return Part(work, opponents, "throttled")


def _a_partition_a_file(start: Start) -> Start:
    """Return what starts a query whose every file is a partition of its own."""

    def begin(events: DataFrame, place: Path) -> StreamingQuery:
        conf = events.sparkSession.conf
        conf.set(_COST_OF_A_FILE, "1g")
        try:
            return start(events, place)
        finally:
            conf.unset(_COST_OF_A_FILE)  # the query keeps the settings that it began with

    return begin


PARTS: Final = {
    **{f"rows-{rows}": part(rows) for rows in ROWS},
    **{f"namespaces-{count}": part(_ROWS, namespaces=count) for count in NAMESPACES},
    **{f"partitions-{count}": part(_ROWS, partitions=count) for count in PARTITION_COUNTS},
}


def main() -> None:
    """Measure the parts that the command line asks for, and show what they cost."""
    asked = arguments(PARTS, __doc__ or "")
    parts = {name: PARTS[name] for name in asked.parts or PARTS}
    with counted_session() as (spark, scratch):
        found = {name: compare(spark, scratch / name, part, asked.repeats) for name, part in parts.items()}
    show(parts, found, asked.out)


if __name__ == "__main__":
    main()
