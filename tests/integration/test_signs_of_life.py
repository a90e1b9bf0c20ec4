"""A real query says that it lives while it is idle, and that it has ended once it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_throttle.control.notes import SignOfLife, read_sign_of_life
from spark_throttle.files.storage import Directory
from spark_throttle.status.status import StatusReader
from tests.integration.streams import Lake, policies

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def sign_that(directory: Directory, is_wanted: Callable[[SignOfLife], bool]) -> SignOfLife:
    """Wait for a sign of life of some kind; the test's timeout bounds the wait."""
    pause = threading.Event()
    while True:
        sign = read_sign_of_life(directory)
        if sign is not None and is_wanted(sign):
            return sign
        pause.wait(0.05)


def test_idle_query_gives_signs_of_life_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.offer([(1, "a/x", 10)])
    throttle = lake.throttle(policies(namespaces={"a/x": {}}))
    query = lake.writer(throttle).trigger(processingTime="200 milliseconds").foreachBatch(lake.keep).start()
    try:
        query.processAllAvailable()
        directory, batch = Directory(str(lake.control)), lake.last_batch()
        before = sign_that(directory, lambda _: True)
        idle = sign_that(directory, lambda sign: sign.number > before.number)
        assert (idle.run, lake.last_batch()) == (before.run, batch)
        assert idle.steady_ms - before.steady_ms >= idle.interval_ms
        assert idle.cores == 2, "those of the master of the tests"
        assert idle.asked_ms < idle.interval_ms, "Spark asks an idle query for batches too"
        found = throttle.status(query)
        assert found.life is not None
        assert found.life.state == "reporting"
    finally:
        query.stop()
    assert sign_that(directory, lambda sign: sign.has_ended).run == before.run
    life = StatusReader(str(lake.control)).read().life
    assert life is not None
    assert life.state == "ended"
