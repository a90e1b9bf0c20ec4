"""The modules that a worker has loaded are set aside in Spark's workers, and nowhere else."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_throttle.spark.rows.worker_heap import set_loaded_aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many objects a task finds set aside."""
    list(batches)
    set_loaded_aside()
    yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})


@pytest.mark.slow
def test_heap_of_another_process_is_left_alone() -> None:
    before = gc.get_freeze_count()
    set_loaded_aside()
    assert gc.get_freeze_count() == before


@pytest.mark.jvm
def test_worker_of_sparks_sets_aside_what_it_has_loaded(spark: SparkSession) -> None:
    (found,) = spark.range(1, numPartitions=1).mapInArrow(counted, "objects long").collect()
    assert found["objects"] > 10_000
