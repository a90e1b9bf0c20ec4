"""The one Spark session that the integration tests share: a session start costs some eight seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sessions import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the shared session: local[2], UTC, Delta, everything written below a temporary directory."""
    session = open_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
