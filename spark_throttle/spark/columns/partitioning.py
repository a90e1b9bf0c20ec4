"""Grouping keys that spread shards evenly: one per state partition if there are as many partitions as shards."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

_TRIES_A_SHARD = 64


def shard_keys(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """Return the grouping key of every shard.

    Spark puts key ``k`` into partition ``pmod(hash(k), partitions)``. Shard numbers used as keys would collide. These
    keys do not collide if there are as many state partitions as shards. They depend on `shards` alone, because
    state is stored under them. Runs one small Spark job.
    """
    key = F.col("id").cast("int")
    partition = F.pmod(F.hash(key), F.lit(shards))
    tried = spark.range(_TRIES_A_SHARD * shards).select(key.alias("key"), partition.alias("partition")).collect()
    first: dict[int, int] = {}
    for row in sorted(tried):
        first.setdefault(row["partition"], row["key"])
    return tuple(first[shard] for shard in range(shards))
