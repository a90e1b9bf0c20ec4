"""What a contract costs if a job decides on references: Parquet in, three sinks, beside the job without a throttle.

Run as ``python -m tests.benchmarks.references [PART]... [--repeats N] [--out FILE]``. 3,000,000 rows of some 200 bytes
in three batches, nothing held back; a row's size is in a column. `job_costs` says what is measured.

==============  ========================================================================================
``nothing``     Spark's sink that takes rows and keeps none
``parquet``     files
``function``    a function for `foreachBatch` that counts the rows
``computed``    files; the size is computed from the payload, so that both readings need whole rows
==============  ========================================================================================

The opponents: `references`; `staged`, the throttled job that stages its rows; `shuffle`, the job without a
throttle that shuffles its rows by namespace; `plain`, the job without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.job_costs import SIZE, TASKS, WORKLOADS, Part, Start, Workload, main, throttle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SINKS: Final = ("nothing", "parquet", "function", "computed")
_COMPUTED: Final = "computed"
_FORMATS: Final[Mapping[str, str]] = {"nothing": "noop", "parquet": "parquet", "computed": "parquet"}


def start(writer: Any, sink: str, place: Path) -> StreamingQuery:
    """Start a query into a sink."""
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    if sink == "function":
        return writer.foreachBatch(count).start()
    return writer.format(_FORMATS[sink]).start(str(place / "out"))


def count(rows: DataFrame, _batch: int) -> None:
    """Count the rows of a batch."""
    rows.count()


def unthrottled(sink: str, *, has_shuffle: bool) -> Start:
    """Return what starts the job without a throttle."""
    return lambda events, place: start(
        (events.repartition(TASKS, "ns") if has_shuffle else events).writeStream, sink, place
    )


def staged(sink: str) -> Start:
    """Return what starts the throttled job that stages its rows."""
    return lambda events, place: start(
        throttle(events.sparkSession, {}, size=_size(sink)).write_stream(events), sink, place
    )


def by_references(sink: str, part: str, work: Workload) -> Start:
    """Return what starts the throttled job that decides on references; it reads the part's folder."""

    def begin(events: DataFrame, place: Path) -> StreamingQuery:
        spark = events.sparkSession
        limiter = throttle(spark, {}, size=_size(sink))
        reader = limiter.read_stream(spark).schema(events.schema).option("maxFilesPerTrigger", work.files_a_batch)
        writer = limiter.write_stream(reader.parquet(str(place.parent / part)))
        return start(writer, sink, place)

    return begin


def _size(sink: str) -> str:
    return "length(value)" if sink == _COMPUTED else SIZE


def check_rows(place: Path, work: Workload) -> None:
    """Raise if files do not have every row."""
    from pyarrow import dataset

    if (place / "out").exists():
        found = sum(dataset.dataset(path).count_rows() for path in (place / "out").glob("*.parquet"))
        if found != work.rows:
            raise AssertionError(f"{found} rows of {work.rows} were written")


PARTS: Final = {
    sink: Part(
        WORKLOADS["sized"],
        {
            "references": by_references(sink, sink, WORKLOADS["sized"]),
            "staged": staged(sink),
            "shuffle": unthrottled(sink, has_shuffle=True),
            "plain": unthrottled(sink, has_shuffle=False),
        },
        "references",
        check_rows,
    )
    for sink in SINKS
}

if __name__ == "__main__":
    main(PARTS, __doc__ or "")
