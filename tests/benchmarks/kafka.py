"""What a contract costs a job that reads Kafka: a broker on loopback, a topic in, a topic or a Delta table out.

Run as ``python -m tests.benchmarks.kafka [kafka] [delta] [--repeats N] [--out FILE]`` (the jars come from
`make kafka-jars`). 2,000,000 messages of some 200 bytes, 10,000 keys in four partitions, in three batches; nothing is
held back. The job without a throttle runs with a shuffle by key and without one. CPU seconds are those of Spark and of
its Python processes. The broker's are left out: they are the same for all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.spark import Throttle
from tests.benchmarks.job_costs import TASKS, Cost, counted_session, cpu_seconds, table_of
from tests.benchmarks.results import save
from tests.kafka.broker import Broker, running_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SINKS: Final = ("kafka", "delta")
MESSAGES: Final = 2_000_000
BATCHES: Final = 3
_NAMESPACES: Final = 10_000
_VALUE_BYTES: Final = 170
_PARTITIONS: Final = 4
_PATIENCE_SECONDS: Final = 600
_SOURCE: Final = "events"
_MEASURED: Final = "throttled"

Start = Callable[["DataFrame", str, Path], "StreamingQuery"]
"""Starts a job over messages, with a topic and a folder of its own."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The broker, and the session that reads and writes its topics."""

    spark: SparkSession
    broker: Broker

    def fill(self) -> None:
        """Write the messages of the source."""
        self.broker.create_topic(_SOURCE, partitions=_PARTITIONS)
        drawn = F.expr("pmod(xxhash64(id), 1048576) / 1048576D")
        few_bring_most = (drawn * drawn * _NAMESPACES).cast("bigint")
        letters = F.concat(*(F.sha2(F.concat(F.col("id").cast("string"), F.lit(part)), 256) for part in "abc"))
        rows = self.spark.range(MESSAGES, numPartitions=TASKS).select(
            F.concat(F.lit("tenant"), few_bring_most % 100, F.lit("/namespace"), few_bring_most).alias("key"),
            F.substring(letters, 1, _VALUE_BYTES).alias("value"),
        )
        self.writer(rows.write.format("kafka"), _SOURCE).save()

    def writer(self, writer: Any, topic: str) -> Any:
        """Return a writer into a topic."""
        return writer.option("kafka.bootstrap.servers", self.broker.bootstrap).option("topic", topic)

    def stream(self) -> DataFrame:
        """Return the messages as a stream, with the columns that order them."""
        stream = self._reader(self.spark.readStream, _SOURCE).option("maxOffsetsPerTrigger", -(-MESSAGES // BATCHES))
        return stream.load().selectExpr("CAST(key AS STRING) AS key", "value", "topic", "partition", "offset")

    def count(self, topic: str) -> int:
        """Return the number of a topic's messages."""
        return self._reader(self.spark.read, topic).load().count()

    def _reader(self, reader: Any, topic: str) -> Any:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest")

    def opponents(self, sink: str) -> Mapping[str, Start]:
        """Return the jobs that are compared."""

        def started(writer: Any, topic: str, place: Path) -> StreamingQuery:
            writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
            if sink == "kafka":
                return self.writer(writer.format("kafka"), topic).start()
            return writer.format("delta").start(str(place / "out"))

        def out(events: DataFrame) -> DataFrame:
            return events.drop("topic", "partition", "offset") if sink == "kafka" else events

        def plain(events: DataFrame, topic: str, place: Path) -> StreamingQuery:
            return started(out(events).writeStream, topic, place)

        def shuffle(events: DataFrame, topic: str, place: Path) -> StreamingQuery:
            return started(out(events.repartition(TASKS, "key")).writeStream, topic, place)

        def throttled(events: DataFrame, topic: str, place: Path) -> StreamingQuery:
            size, order = "coalesce(octet_length(value), 0)", ["partition", "offset"]
            throttle = Throttle({}, namespace="key", size=size, order_by=order)
            return started(throttle.write_stream(events), topic, place)

        return {"plain": plain, "shuffle": shuffle, _MEASURED: throttled}


def run(topics: Topics, sink: str, start: Start, scratch: Path, number: int) -> Cost:
    """Run a job until it has read every message, and count what it wrote."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    topic = f"out-{number}"
    if sink == "kafka":
        topics.broker.create_topic(topic, partitions=_PARTITIONS)
    cpu, wall = _cpu_seconds_of_spark(), time.perf_counter()
    query = start(topics.stream(), topic, place)
    if not query.awaitTermination(_PATIENCE_SECONDS):
        raise TimeoutError(f"the job did not end within {_PATIENCE_SECONDS} s: {query.status}")
    cpu, wall = _cpu_seconds_of_spark() - cpu, time.perf_counter() - wall
    written = topics.count(topic) if sink == "kafka" else DeltaTable(place / "out").count()
    if written != MESSAGES:
        raise AssertionError(f"{written} messages of {MESSAGES} were written")
    batches_ms = sorted(entry["durationMs"]["triggerExecution"] for entry in query.recentProgress)
    return Cost(cpu, wall, batches_ms[len(batches_ms) // 2])


def _cpu_seconds_of_spark() -> float:
    """Return the CPU time of this process and all below it but the broker."""
    brokers = [each for each in psutil.Process().children() if "kafka.Kafka" in each.cmdline()]
    times = [each.cpu_times() for each in brokers]
    return cpu_seconds() - sum(each.user + each.system for each in times)


def compare(topics: Topics, sink: str, scratch: Path, repeats: int) -> dict[str, list[Cost]]:
    """Return the costs of every opponent, in turns; the round that warms up is left out."""
    costs: dict[str, list[Cost]] = {opponent: [] for opponent in topics.opponents(sink)}
    number = 0
    for at in range(repeats + 1):
        for opponent, start in topics.opponents(sink).items():
            number += 1
            cost = run(topics, sink, start, scratch, number)
            sys.stderr.write(f"{sink} round {at}: {opponent}: {cost}\n")
            sys.stderr.flush()
            if at:
                costs[opponent].append(cost)
    return costs


def main() -> None:
    """Compare the jobs for each sink, and show what they cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*SINKS, []], default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with counted_session(uses=("delta", "kafka-connector")) as (spark, scratch), running_broker(scratch) as broker:
        topics = Topics(spark, broker)
        topics.fill()
        found = {sink: compare(topics, sink, scratch, asked.repeats) for sink in asked.parts or SINKS}
    for sink, costs in found.items():
        heading = f"{MESSAGES:,} messages in {BATCHES} batches, to {sink}"
        sys.stdout.write(f"\n{table_of(heading, costs, _MEASURED)}")
    save({sink: {who: [asdict(one) for one in costs] for who, costs in by.items()} for sink, by in found.items()},
         asked.out)  # fmt: skip


if __name__ == "__main__":
    main()
