"""The main job against a real broker: 200,000 messages of 300 keys in, the admitted ones in a second topic.

A message's number is in its value, so what comes out is compared with what went in message by message, and the key of a
number is a whole-number formula that Spark and Python both compute, so the expected counts do not come from Spark.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.window import Window

from demos.tables import read_paying_times_ms
from jobs import throttle_stream
from tests.ledger import excess, read_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.kafka.broker import Broker

MESSAGES = 200_000
KEYS = 300
PARTITIONS = 4

# Offered: about 71,000 messages to the slow group, 41,000 to the overloaded one.
SLOW_PER_SECOND, SLOW_BURST_SECONDS = 6_000, 3
OVERLOADED_PER_SECOND, OVERLOADED_BURST_SECONDS = 500, 2


def key_of(number: int, keys: int = KEYS) -> str:
    """Return the key of a message: `tenant-<t>/<k>`, ten tenants, low numbers of k far more often than high ones."""
    spread = number * 2_654_435_761 % 2**32 // 2**16
    k = keys * spread * spread // 2**32
    return f"tenant-{k % 10}/{k}"


def expected_counts(messages: int = MESSAGES, keys: int = KEYS) -> dict[str, int]:
    """Return how many messages `produce` writes for each key."""
    return dict(Counter(key_of(number, keys) for number in range(messages)))


def produce(spark: SparkSession, bootstrap: str, topic: str, *, messages: int = MESSAGES, keys: int = KEYS) -> None:
    """Write messages 0 … `messages` - 1 to a topic: key as `key_of`, value the number and 0 to 99 bytes of filling.

    One task writes them all, so the numbers of a key, which stands in one partition, rise with the offset.
    """
    numbered = (
        spark.range(messages, numPartitions=1)
        .withColumn("spread", F.expr("id * 2654435761 % 4294967296 div 65536"))
        .withColumn("k", F.expr(f"{keys} * spread * spread div 4294967296"))
    )
    rows = numbered.select(
        F.expr("concat('tenant-', k % 10, '/', k)").alias("key"),
        F.expr("concat(id, ' ', repeat('x', cast(id % 100 as int)))").alias("value"),
    )
    rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def read_topic(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return what a topic holds, as `messages_of`."""
    raw = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    return messages_of(raw)


def messages_of(raw: DataFrame) -> DataFrame:
    """Return what is in rows of a Kafka source: key, number, size_bytes (of the value), partition, offset."""
    return raw.select(
        F.col("key").cast("string").alias("key"),
        F.expr("cast(split_part(cast(value as string), ' ', 1) as bigint)").alias("number"),
        F.length("value").alias("size_bytes"),
        "partition",
        "offset",
    )


def count_per_key(topic_rows: DataFrame) -> dict[str, int]:
    """Return how many messages each key has."""
    return {row["key"]: row["count"] for row in topic_rows.groupBy("key").count().collect()}


def count_doubled(topic_rows: DataFrame) -> int:
    """Return how many messages stand there once more than they should."""
    total, distinct = topic_rows.agg(F.count("*"), F.countDistinct("number")).collect()[0]
    return int(total - distinct)


def count_out_of_order(topic_rows: DataFrame) -> int:
    """Return how many messages have a lower number than the one of their key before them in their partition."""
    before = F.lag("number").over(Window.partitionBy("key", "partition").orderBy("offset"))
    return topic_rows.withColumn("before", before).filter("number < before").count()


SETTINGS = """\
source:
  format: kafka
  options:
    kafka.bootstrap.servers: {bootstrap}
    subscribe: {in_topic}
    startingOffsets: earliest
    maxOffsetsPerTrigger: 40000
# A Kafka sink takes the columns key and value, and partition where there is one. All of the source's columns are kept:
# so a message goes into the partition that it came from, and rows are ordered by the source's partition and offset.
throttle:
  policies: {policies}
  namespace: CAST(key AS STRING)
  size: octet_length(value)
sink:
  format: kafka
  options:
    kafka.bootstrap.servers: {bootstrap}
    topic: {out_topic}
rejected: {{format: delta, path: {out}/rejected}}
usage: {out}/usage
checkpoint: {out}/checkpoint
trigger: {{processing_time: null, available_now: true}}
spark: {{conf: {{spark.sql.streaming.minBatchesToRetain: 10000}}}} # the test reads the time of every batch
"""

POLICIES = f"""\
resource_groups:
  slow: # three tenants of ten at this together: what is too much waits
    publish: {{messages_per_second: {SLOW_PER_SECOND}, burst_seconds: {SLOW_BURST_SECONDS}}}
  overloaded: # two more: what is too much is rejected
    publish:
      messages_per_second: {OVERLOADED_PER_SECOND}
      burst_seconds: {OVERLOADED_BURST_SECONDS}
      on_excess: reject
tenants:
  tenant-0: {{resource_group: slow}}
  tenant-1: {{resource_group: slow}}
  tenant-2: {{resource_group: slow}}
  tenant-3: {{resource_group: overloaded}}
  tenant-4: {{resource_group: overloaded}}
"""


def run_throttled(bootstrap: str, in_topic: str, out_topic: str, out: Path) -> None:
    """Run the main job, which takes the session that is there, from one topic to another until the input is drained."""
    policies, settings = out / "policies.yaml", out / "settings.yaml"
    policies.write_text(POLICIES)
    settings.write_text(
        SETTINGS.format(bootstrap=bootstrap, in_topic=in_topic, out_topic=out_topic, out=out, policies=policies)
    )
    assert throttle_stream.main(["--conf", str(settings)]) == 0


def group_of(key: str) -> str:
    """Return the resource group of a key, by `POLICIES`."""
    tenant = key.partition("/")[0]
    if tenant in ("tenant-0", "tenant-1", "tenant-2"):
        return "slow"
    return "overloaded" if tenant in ("tenant-3", "tenant-4") else "none"


def count_per_group(per_key: dict[str, int]) -> dict[str, int]:
    """Return how many messages each group has."""
    found: Counter[str] = Counter()
    for key, count in per_key.items():
        found[group_of(key)] += count
    return dict(found)


def test_broker_takes_and_returns_every_message(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("all", partitions=PARTITIONS)
    produce(spark, broker.bootstrap, "all")
    rows = read_topic(spark, broker.bootstrap, "all").cache()
    counts = count_per_key(rows)
    assert len(counts) == KEYS
    assert counts == expected_counts()
    assert count_doubled(rows) == 0
    assert count_out_of_order(rows) == 0


def test_throttled_job_moves_every_message_once_or_rejects_it(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("in", partitions=PARTITIONS)
    broker.create_topic("out", partitions=PARTITIONS)
    produce(spark, broker.bootstrap, "in")
    run_throttled(broker.bootstrap, "in", "out", tmp_path)
    admitted = read_topic(spark, broker.bootstrap, "out").cache()
    rejected = messages_of(spark.read.format("delta").load(str(tmp_path / "rejected"))).cache()

    # Once each: in the second topic or in the dead letters.
    numbers = [row["number"] for row in admitted.select("number").union(rejected.select("number")).collect()]
    assert sorted(numbers) == list(range(MESSAGES))
    both = Counter(count_per_key(admitted)) + Counter(count_per_key(rejected))
    assert dict(both) == expected_counts()

    # In order, and in the partition that it came from.
    assert count_out_of_order(admitted) == 0
    came_from = read_topic(spark, broker.bootstrap, "in").select("number", "partition")
    assert admitted.join(came_from, ["number", "partition"]).count() == admitted.count()

    # Only the group that rejects has dead letters, each with its reason.
    admitted_of, rejected_of = count_per_group(count_per_key(admitted)), count_per_group(count_per_key(rejected))
    offered_of = count_per_group(expected_counts())
    assert admitted_of["slow"] == offered_of["slow"]
    assert admitted_of["none"] == offered_of["none"]
    assert rejected_of == {"overloaded": offered_of["overloaded"] - admitted_of["overloaded"]}
    assert rejected_of["overloaded"] > 0
    reasons = spark.read.format("delta").load(str(tmp_path / "rejected")).select("throttle.*")
    assert reasons.drop("throttle_time_ms", "delayed_ms").distinct().collect() == [
        ("REJECT", "quota", "resource_group", "messages", "overloaded")
    ]

    # Within the limits: what the usage table says of each batch adds up to what is in the topic.
    usage = read_table(tmp_path / "usage")
    times_ms = read_paying_times_ms(tmp_path / "checkpoint")
    for group, per_second, burst_seconds in (
        ("slow", SLOW_PER_SECOND, SLOW_BURST_SECONDS),
        ("overloaded", OVERLOADED_PER_SECOND, OVERLOADED_BURST_SECONDS),
    ):
        of_group = usage[(usage["level"] == "resource_group") & (usage["scope"] == group)]
        by_batch = of_group.set_index("batch_id")["admitted_messages"]
        assert by_batch.sum() == admitted_of[group]
        assert excess(by_batch, times_ms, per_second=per_second, burst=per_second * burst_seconds) <= 1
