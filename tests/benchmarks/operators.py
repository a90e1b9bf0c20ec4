"""What throttling costs beside what people would run without it, or write by hand: Parquet in, nothing out, in turns.

Run as ``python -m tests.benchmarks.operators [narrow] [wide] [namespaces] [floor] [--repeats N] [--out FILE]``. Nothing
is held back. CPU seconds are those of the whole process tree; a run starts when the query does and ends when it has
read everything; each opponent runs once before it counts.

=================  =====================================================================================
``narrow``         3,000,000 rows of some 200 bytes in three batches
``wide``           1,500,000 rows of 18 columns in three batches
``namespaces``     one batch of 200,000 rows, of 10,000 and of 100,000 namespaces, against a textbook operator
``floor``          30 batches of 100 rows: the fixed cost of a batch
=================  =====================================================================================

The opponents: `shuffle`, the job without a throttle; `identity`, a stateful operator over plain columns that returns
what it is given, keyed by shard as ours; `namespace`, the textbook token bucket, keyed by namespace; `row_number`,
which throws away what is over the limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.spark import Throttle
from tests.benchmarks.sink import SHARDS, WORKLOADS, Cost, Workload, cpu_seconds, write_input
from tests.sessions import open_session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

Start = Callable[["DataFrame", Path], "StreamingQuery"]

_PATIENCE_SECONDS: Final = 1_200
_LIMIT_MESSAGES: Final = 1_000_000
"""Of a namespace and batch: more than there are, so that nothing is held back."""


def shuffle(events: DataFrame, place: Path) -> StreamingQuery:
    """Start the job without a throttle."""
    return _to_nothing(events.repartition(SHARDS, "ns"), place)


def identity(events: DataFrame, place: Path) -> StreamingQuery:
    """Start a stateful operator that returns what it is given, keyed by shard, over plain columns."""

    def run(_key: Any, pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        count = state.get[0] if state.exists else 0
        for piece in pieces:
            count += len(piece)
            yield piece.drop(columns="shard")
        state.update((count,))

    keyed = events.withColumn("shard", F.pmod(F.crc32(F.col("ns")), F.lit(SHARDS)))
    run_by_shard = keyed.groupBy("shard").applyInPandasWithState(
        run, events.schema, "count long", "append", "NoTimeout"
    )
    return _to_nothing(run_by_shard, place)


def by_namespace(events: DataFrame, place: Path) -> StreamingQuery:
    """Start the textbook operator: a token bucket a namespace, a call a namespace."""

    def run(_key: Any, pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        now_ms = state.getCurrentProcessingTimeMs()
        tokens, updated_ms = state.get if state.exists else (float(_LIMIT_MESSAGES), now_ms)
        tokens = min(_LIMIT_MESSAGES, tokens + (now_ms - updated_ms) * 100.0)
        for piece in pieces:
            admitted = piece.sort_values("id").head(int(tokens))
            tokens -= len(admitted)
            yield admitted
        state.update((tokens, now_ms))

    held = events.groupBy("ns").applyInPandasWithState(
        run, events.schema, "tokens double, updated_ms long", "append", "NoTimeout"
    )
    return _to_nothing(held, place)


def by_row_number(events: DataFrame, place: Path) -> StreamingQuery:
    """Start what people write by hand: what is over the limit is thrown away."""

    def write(rows: DataFrame, _batch: int) -> None:
        place_in_line = F.row_number().over(Window.partitionBy("ns").orderBy("id"))
        admitted = rows.withColumn("place", place_in_line).where(F.col("place") <= _LIMIT_MESSAGES).drop("place")
        admitted.write.format("noop").mode("overwrite").save()

    writer = events.writeStream.foreachBatch(write).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


def throttled(events: DataFrame, place: Path) -> StreamingQuery:
    """Start the throttled job."""
    throttle = Throttle({}, namespace="ns", size="length(value)", order_by=["id"], shards=SHARDS)
    writer = throttle.write_stream(events).format("noop").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


def _to_nothing(rows: DataFrame, place: Path) -> StreamingQuery:
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


ROW_BY_ROW: Final[dict[str, Start]] = {
    "throttled": throttled,
    "shuffle": shuffle,
    "identity": identity,
    "row_number": by_row_number,
}
PARTS: Final[dict[str, tuple[Workload, dict[str, Start]]]] = {
    "narrow": (WORKLOADS["narrow"], ROW_BY_ROW),
    "wide": (WORKLOADS["wide"], ROW_BY_ROW),
    "floor": (WORKLOADS["small"], {"throttled": throttled, "identity": identity}),
    **{
        f"namespaces-{count}": (
            replace(WORKLOADS["narrow"], rows=200_000, files=2, namespaces=count, is_even=True),
            {"throttled": throttled, "namespace": by_namespace},
        )
        for count in (10_000, 100_000)
    },
}


def run(spark: SparkSession, source: Path, work: Workload, start: Start) -> Cost:
    """Run a job until it has read everything, and check that it has."""
    schema = spark.read.parquet(str(source)).schema
    place = Path(tempfile.mkdtemp(dir=source.parent))
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", work.files_a_batch)
    cpu, wall = cpu_seconds(), time.perf_counter()
    query = start(reader.parquet(str(source)), place)
    if not query.awaitTermination(_PATIENCE_SECONDS):
        raise TimeoutError(f"the job did not end within {_PATIENCE_SECONDS} s: {query.status}")
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    batches = [entry for entry in query.recentProgress if entry["numInputRows"] > work.files_a_batch]
    shutil.rmtree(place)
    return Cost(cpu, wall, statistics.median(entry["durationMs"]["triggerExecution"] for entry in batches))


def compare(spark: SparkSession, root: Path, name: str, repeats: int) -> dict[str, list[Cost]]:
    """Return the costs of every opponent; the round that warms up is left out."""
    work, opponents = PARTS[name]
    source = root / name
    write_input(source, work)
    costs: dict[str, list[Cost]] = {opponent: [] for opponent in opponents}
    for number in range(repeats + 1):
        for opponent, start in opponents.items():
            cost = run(spark, source, work, start)
            sys.stderr.write(f"{name} round {number}: {opponent}: {cost}\n")
            if number:
                costs[opponent].append(cost)
    shutil.rmtree(source)
    return costs


def table(name: str, costs: dict[str, list[Cost]]) -> str:
    """Return medians and ranges, and how many rows the throttled job passes while another passes one."""
    work = PARTS[name][0]
    lines = [f"{name}: {work.rows:,} rows in {work.files // work.files_a_batch} batches"]
    lines.append(f"{'':14}{'CPU s':>8}{'(range)':>16}{'wall s':>8}{'(range)':>16}{'batch ms':>10}{'ratio':>7}")
    ours = statistics.median(cost.wall_seconds for cost in costs["throttled"])
    for opponent, found in costs.items():
        cpu, wall = ([getattr(cost, unit) for cost in found] for unit in ("cpu_seconds", "wall_seconds"))
        batch_ms = statistics.median(cost.batch_ms for cost in found)
        lines.append(
            f"{opponent:14}{statistics.median(cpu):8.1f}{_span(cpu):>16}{statistics.median(wall):8.1f}{_span(wall):>16}"
            f"{batch_ms:10.0f}{statistics.median(wall) / ours:7.2f}"
        )
    return "\n".join(lines) + "\n"


def _span(values: list[float]) -> str:
    return f"({min(values):.1f}-{max(values):.1f})"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session(Path(scratch) / "spark")
        found = {name: compare(spark, Path(scratch), name, asked.repeats) for name in asked.parts}
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
