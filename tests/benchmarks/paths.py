"""What a contract costs a job, on each path that rows take: the throttled job beside the same job without a throttle.

Run as ``python -m tests.benchmarks.paths [PATH]... [--repeats N] [--out FILE]``. 1,200,000 rows of some 200 bytes, of
10,000 namespaces, in three batches; `job_costs` says what is measured.

====================  ==================================================================================
``parquet_delta``     nothing is short
``parquet_delta_cut`` a tenth of the namespaces, which have a tenth of the rows, may send nothing: it waits
``kafka_delta``       a broker on loopback, four partitions
``kafka_kafka``       the same, into a topic, in order
``parquet_parquet``   files
``parquet_function``  a function for `foreachBatch` that counts the rows
``parquet_nothing``   Spark's sink that takes rows and keeps none
``floor``             30 batches of 100 rows: the fixed cost of a batch
====================  ==================================================================================

The opponents: `staged`, the throttled job that stages its rows; `references`, which decides on what lies in the
source's files; `shuffle`, the job without a throttle that shuffles its rows by namespace; `plain`, the job without
either; `identity`, a stateful operator over plain columns that returns what it is given, in two tasks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import dataset
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.spark import Throttle
from tests.benchmarks.job_costs import (
    SIZE,
    TASKS,
    Part,
    Start,
    Workload,
    arguments,
    compare,
    counted_session,
    give_partitions,
    show,
    throttle,
    write_input,
)
from tests.kafka.broker import Broker, running_broker

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

ROWS: Final = Workload(1_200_000, 6, 2, numbers=0, words=0, value_bytes=170, has_size=True)
EVEN: Final = replace(ROWS, is_even=True)
SMALL: Final = Workload(3_000, 30, 1, numbers=0, words=0, value_bytes=170, has_size=True)
HELD: Final = {"tenants": {f"tenant{number}": {"publish": {"messages_per_second": 0}} for number in range(0, 100, 10)}}
"""A policy under which a tenth of the tenants may send nothing."""

_BATCHES: Final = 3
_PARTITIONS: Final = 4
_SOURCE: Final = "events"


def throttled(sink: Sink, policies: Mapping[str, Any]) -> Start:
    """Return what starts the throttled job that stages its rows."""
    return lambda events, place: sink.start(
        throttle(events.sparkSession, policies, size=SIZE).write_stream(events), place
    )


def by_references(sink: Sink, part: str, work: Workload) -> Start:
    """Return what starts the throttled job that decides on references; it reads the part's folder."""

    def start(events: DataFrame, place: Path) -> StreamingQuery:
        spark = events.sparkSession
        limiter = throttle(spark, {}, size=SIZE)
        reader = limiter.read_stream(spark).schema(events.schema).option("maxFilesPerTrigger", work.files_a_batch)
        return sink.start(limiter.write_stream(reader.parquet(str(place.parent / part))), place)

    return start


def shuffle(sink: Sink) -> Start:
    """Return what starts the job without a throttle, with a shuffle."""
    return lambda events, place: sink.start(events.repartition(TASKS, sink.key).writeStream, place)


def plain(sink: Sink) -> Start:
    """Return what starts the job without a throttle or a shuffle."""
    return lambda events, place: sink.start(events.writeStream, place)


def identity(events: DataFrame, place: Path) -> StreamingQuery:
    """Start a stateful operator that returns what it is given, over plain columns, with a key for each task."""
    give_partitions(events.sparkSession, TASKS)

    def run(_key: Any, pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        count = state.get[0] if state.exists else 0
        for piece in pieces:
            count += len(piece)
            yield piece.drop(columns="key")
        state.update((count,))

    keyed = events.withColumn("key", F.pmod(F.crc32(F.col("ns")), F.lit(TASKS)))
    returned = keyed.groupBy("key").applyInPandasWithState(run, events.schema, "count long", "append", "NoTimeout")
    return Sink("nothing").start(returned.writeStream, place)


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a job's rows go."""

    kind: str
    key: str = "ns"
    """The column of the namespace."""

    broker: Broker | None = None

    def start(self, writer: Any, place: Path) -> StreamingQuery:
        """Start a query into the sink, in a directory of its own, until it has read everything."""
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        match self.kind:
            case "function":
                return writer.foreachBatch(count).start()
            case "nothing":
                return writer.format("noop").start()
            case "kafka":
                assert self.broker is not None
                self.broker.create_topic(place.name, partitions=_PARTITIONS)
                writer = writer.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
                return writer.option("topic", place.name).start()
            case kind:
                return writer.format(kind).start(str(place / "out"))


def count(rows: DataFrame, _batch: int) -> None:
    """Count the rows of a batch."""
    rows.count()


def files(name: str, sink: str, ours: Iterable[str], work: Workload = ROWS, **policies: Any) -> Part:
    """Return the opponents that read files."""
    into = Sink(sink)
    ways = {"staged": throttled(into, policies), "references": by_references(into, name, work)}

    def check(place: Path, opponent: str) -> None:
        if sink in ("delta", "parquet"):
            out = place / "out"
            count = DeltaTable(out).count if sink == "delta" else dataset.dataset([*out.glob("*.parquet")]).count_rows
            expect(count(), work.rows - (held_rows(place.parent / name) if opponent == "staged" and policies else 0))

    first, *others = ours
    opponents = {first: ways[first]} | {other: ways[other] for other in others}
    return Part(work, {**opponents, "shuffle": shuffle(into), "plain": plain(into)}, first, check)


def held_rows(source: Path) -> int:
    """Return how many rows `HELD` holds back."""
    return dataset.dataset(source).count_rows(filter=pc.match_substring_regex(pc.field("ns"), "^tenant[0-9]*0/"))


def expect(found: int, rows: int) -> None:
    """Raise if a sink has other rows than it should."""
    if found != rows:
        raise AssertionError(f"{found} rows were written, and not {rows}")


@dataclass(frozen=True, slots=True)
class Topics:
    """A broker, and the session that reads and writes its topics."""

    spark: SparkSession
    broker: Broker

    def fill(self, scratch: Path) -> None:
        """Write the rows of `ROWS` into the source's topic."""
        self.broker.create_topic(_SOURCE, partitions=_PARTITIONS)
        write_input(scratch / _SOURCE, ROWS)
        rows = self.spark.read.parquet(str(scratch / _SOURCE)).selectExpr("ns AS key", "value")
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        writer.option("topic", _SOURCE).save()

    def stream(self) -> DataFrame:
        """Return the messages as a stream."""
        stream = self._reader(self.spark.readStream, _SOURCE).option("maxOffsetsPerTrigger", -(-ROWS.rows // _BATCHES))
        return stream.load().selectExpr("CAST(key AS STRING) AS key", "value", "partition", "offset")

    def part(self, sink: str) -> Part:
        """Return the opponents that read the topic."""
        into = Sink(sink, "key", self.broker)

        def staged(events: DataFrame, place: Path) -> StreamingQuery:
            size, order = "coalesce(octet_length(value), 0)", ["partition", "offset"]
            give_partitions(self.spark, TASKS)
            return into.start(Throttle({}, namespace="key", size=size, order_by=order).write_stream(events), place)

        def check(place: Path, _opponent: str) -> None:
            written = (
                self._reader(self.spark.read, place.name).load().count()
                if sink == "kafka"
                else DeltaTable(place / "out").count()
            )
            expect(written, ROWS.rows)

        opponents = {"staged": staged, "shuffle": self._out(shuffle(into), sink), "plain": self._out(plain(into), sink)}
        return Part(replace(ROWS, files=_BATCHES, files_a_batch=1), opponents, "staged", check, self.stream)

    def _reader(self, reader: Any, topic: str) -> Any:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest")

    def _out(self, start: Start, sink: str) -> Start:
        """Return what starts a job without the columns that only order needs, which a topic does not take."""
        if sink != "kafka":
            return start
        return lambda events, place: start(events.select("key", "value"), place)


KAFKA: Final = {"kafka_delta": "delta", "kafka_kafka": "kafka"}
FILES: Final = {
    "parquet_delta": files("parquet_delta", "delta", ["staged"]),
    "parquet_delta_cut": files("parquet_delta_cut", "delta", ["staged"], EVEN, **HELD),
    "parquet_parquet": files("parquet_parquet", "parquet", ["staged", "references"]),
    "parquet_function": files("parquet_function", "function", ["staged", "references"]),
    "parquet_nothing": files("parquet_nothing", "nothing", ["references", "staged"]),
    "floor": Part(
        SMALL,
        {
            "staged": throttled(Sink("nothing"), {}),
            "references": by_references(Sink("nothing"), "floor", SMALL),
            "identity": identity,
        },
        "staged",
    ),
}


def main() -> None:
    """Compare the opponents on the paths that the command line asks for, and show what they cost."""
    asked = arguments([*FILES, *KAFKA], __doc__ or "")
    names = asked.parts or [*FILES, *KAFKA]
    parts = {name: FILES[name] for name in FILES if name in names}
    uses = ("delta", "kafka-connector") if set(names) & set(KAFKA) else ("delta",)
    with counted_session(uses) as (spark, scratch), contextlib.ExitStack() as stack:
        if len(uses) > 1:
            topics = Topics(spark, stack.enter_context(running_broker(scratch)))
            topics.fill(scratch)
            parts |= {name: topics.part(KAFKA[name]) for name in KAFKA if name in names}
        found = {name: compare(spark, scratch / name, part, asked.repeats) for name, part in parts.items()}
    show(parts, found, asked.out)


if __name__ == "__main__":
    main()
