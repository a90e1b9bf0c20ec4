"""What integration tests share beside the session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.streams import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """Yield the directories of one test; what it left running is stopped."""
    yield Lake(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
