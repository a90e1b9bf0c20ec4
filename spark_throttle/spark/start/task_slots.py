"""How many tasks the cluster runs at the same time, asked without a `sparkContext`, which Spark Connect has not."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

_PROBE_ROWS: Final = 1 << 20
"""More rows than a cluster has slots: a shorter range would have fewer partitions."""


def task_slots(spark: SparkSession) -> int:
    """Return the number of tasks at the same time: Spark's own number of partitions of a range; runs a small job."""
    return int(spark.range(_PROBE_ROWS).select(F.spark_partition_id()).distinct().count())
