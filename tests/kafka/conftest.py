"""A broker and a session with Spark's Kafka connector, shared by the tests of `make kafka-test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.broker import Broker, running_broker
from tests.sessions import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a broker that lives as long as the run."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session that also reads and writes Kafka."""
    session = open_session(tmp_path_factory.mktemp("spark"), uses=("delta", "kafka-connector"))
    yield session
    session.stop()
