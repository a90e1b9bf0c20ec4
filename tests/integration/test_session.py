"""The shared session is what the other integration tests take it for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    def interpreter(_: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"path": [sys.executable]})

    found = spark.range(1, numPartitions=1).mapInPandas(interpreter, "path string").first()
    assert found is not None
    assert Path(found.path).resolve() == Path(sys.executable).resolve()


def test_session_keeps_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
