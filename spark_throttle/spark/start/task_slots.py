"""How many tasks the cluster runs at the same time, asked without a `sparkContext`, which Spark Connect has not."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

_PROBE_ROWS: Final = 1 << 20
"""More rows than a cluster has slots: a shorter range would have fewer partitions."""

_ONE_MACHINE: Final = re.compile(r"local(?:\[(\d+)(?:,\s*\d+)?\])?")


def task_slots(spark: SparkSession) -> int:
    """Return the number of tasks at the same time: Spark's own number of partitions of a range; runs a small job."""
    return int(spark.range(_PROBE_ROWS).select(F.spark_partition_id()).distinct().count())


def cluster_cores(spark: SparkSession) -> int:
    """Return the number of cores on which the session's tasks run now; runs a small job unless the master names it."""
    master = _ONE_MACHINE.fullmatch(str(spark.conf.get("spark.master", "") or ""))
    if master is not None:
        return max(1, int(master[1] or 1))
    return max(1, task_slots(spark)) * int(str(spark.conf.get("spark.task.cpus", "1")))
