"""A program as a user writes it: `make wheel-test` checks its types against the installed wheel, and does not run it.

A line that asserts a type fails the check if the package gives another one, or none.
"""

from __future__ import annotations

from typing import Any, assert_type

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_throttle.errors import ThrottleError, UnknownVersionError
from spark_throttle.pace import Limit, Pacer
from spark_throttle.spark import DrainedQuery, Status, Throttle, ThrottledStreamWriter, drain
from spark_throttle.spark.paced import HttpSender
from spark_throttle.store import Author, PolicyService, load_policies, open_store
from spark_throttle.testing import SimulatedJob


def throttled(events: DataFrame, path: str) -> Status:
    """Start a query, and return its status."""
    throttle = Throttle("policies.yaml", "namespace", "1", order_by=["id"])
    writer = throttle.write_stream(events)
    assert_type(writer, ThrottledStreamWriter)
    query = writer.format("delta").option("checkpointLocation", f"{path}/checkpoint").start(f"{path}/admitted")
    assert_type(query, StreamingQuery)
    assert_type(throttle.progress(query), dict[str, Any] | None)
    return throttle.status(query)


def drained(spark: SparkSession, path: str) -> DrainedQuery | None:
    """Take out what waits, or return `None` if that cannot be."""
    try:
        return drain(spark, f"{path}/checkpoint", f"{path}/waiting", format="parquet")
    except UnknownVersionError as error:
        assert_type(error.found, int)
    except ThrottleError:
        pass
    return None


def served(path: str) -> tuple[PolicyService, HttpSender]:
    """Return a store that may be changed, and a sender."""
    service = PolicyService(open_store(path), clock_ms=lambda: 0)
    assert_type(service.apply(load_policies(path), Author("me")).revision, int)
    return service, HttpSender("https://api.example/rows")


def paced() -> int:
    """Call something ten times a second, and return what a simulated job admitted."""
    with Pacer() as pacer:
        producer = pacer.producer(pacer.level("api", Limit.of(10)))
        producer.acquire(1)
    job = SimulatedJob({"version": 1})
    job.offer([("acme/orders", 1)])
    job.trigger()
    return len(job.admitted)
