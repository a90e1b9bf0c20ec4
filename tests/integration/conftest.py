"""What integration tests share beside the session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_throttle.control.clock import Clock
from tests.integration.connect_server import ConnectServer, connect_server
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


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Yield the server of all tests over Spark Connect."""
    with connect_server(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tool come when a query that Spark killed before its last sign of life counts as silent."""
    clock = Clock.system()
    monkeypatch.setattr(Clock, "system", lambda: Clock(clock.wall_ms, lambda: clock.steady_ms() + 60_000, clock.boot))
