"""The number of cores that a session works on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from spark_throttle.spark.start.executor_sight import cluster_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("master", "cpus", "cores"),
    [("local", "1", 1), ("local[4]", "1", 4), ("local[2, 8]", "2", 2), ("local[*]", "1", 6), ("spark://x", "2", 12)],
)
def test_cores_are_those_that_the_master_names_or_those_of_the_task_slots(
    monkeypatch: pytest.MonkeyPatch, master: str, cpus: str, cores: int
) -> None:
    conf = {"spark.master": master, "spark.task.cpus": cpus}
    monkeypatch.setattr("spark_throttle.spark.start.executor_sight.task_slots", lambda _: 6)
    assert cluster_cores(cast("SparkSession", SimpleNamespace(conf=conf))) == cores
