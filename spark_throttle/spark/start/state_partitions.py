"""How many state partitions a query has: one for each shard, whatever the session's other shuffles need.

A partition holds whole shards (`columns.partitioning`). One without a shard costs a task and a state file in every
batch all the same, and Spark's default is 200. A checkpoint keeps the number with which it began.

Spark takes the number from ``spark.sql.shuffle.partitions``, which serves every shuffle of the session. Since 4.1 it
has a setting for stateful operators alone, which falls back on the other (`STATE_PARTITIONS`). Spark calls it internal:
a test holds what it does. A Spark that does not know it ignores it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from spark_throttle.checkpoint.offset_log import pinned_setting, read_offset_log
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
STATE_PARTITIONS: Final = "spark.sql.streaming.internal.stateStore.partitions"

logger = logging.getLogger(__name__)

_starts = threading.Lock()
"""Held while a query starts: two that start in one session would take each other's number."""


@contextmanager
def one_for_each_shard(spark: SparkSession, checkpoint: str, shards: int) -> Iterator[None]:
    """Give a query that starts inside, for the first time, a state partition for each shard.

    It has fewer, of several shards each, if ``spark.sql.shuffle.partitions`` is fewer. Stateful operators before the
    throttle have the same number. A query whose checkpoint has more partitions than shards keeps them, and a warning
    says so. A session that has a number of state partitions of its own keeps it.

    Parameters
    ----------
    checkpoint
        The query's checkpoint, as Spark resolves it. One that this process cannot read is taken as new: Spark gives the
        query what it finds there.
    """
    kept = partitions_of(checkpoint)
    if kept is not None and kept > shards:
        logger.warning(
            "the checkpoint %s began with %d state partitions, and the query has %s: %d are empty, and each costs a "
            "task and a state file in every batch; to have fewer, start with a new checkpoint",
            checkpoint, kept, "one shard" if shards == 1 else f"{shards} shards", kept - shards,
        )  # fmt: skip
    with _starts:
        if kept is not None or spark.conf.get(STATE_PARTITIONS, None) is not None:
            yield
            return
        most = partitions_in(spark.conf.get(SHUFFLE_PARTITIONS, None)) or shards
        spark.conf.set(STATE_PARTITIONS, min(shards, most))
        try:
            yield
        finally:
            spark.conf.unset(STATE_PARTITIONS)


def partitions_of(checkpoint: str) -> int | None:
    """Return the number of state partitions that a checkpoint keeps; `None` where no batch was planned."""
    try:
        directory = Directory(checkpoint)
        # Under this name in the log, whichever setting it came from.
        return partitions_in(pinned_setting(directory, read_offset_log(directory).logged, SHUFFLE_PARTITIONS))
    except (ConfigurationError, OSError):
        return None  # the executors may see what this process does not


def partitions_in(setting: str | None) -> int | None:
    """Return the number that a session's setting names; `None` for a word, such as Databricks' ``auto``.

    Examples
    --------
    >>> partitions_in("8"), partitions_in("auto"), partitions_in(None)
    (8, None, None)
    """
    return int(setting) if setting is not None and setting.isdecimal() else None
