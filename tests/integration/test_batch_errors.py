"""Spark finds out whether a batch failed, or was interrupted by the end of its query, whatever its error's length."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from spark_throttle.spark.spark_errors import readable
from tests.integration.streams import Lake, finish, policies, publish

ANY = policies(tenants={"a": publish(messages_per_second=1_000)})
CALLED = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect.\n: "
STACK = "\tat org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1042)\n" * 2_000


def test_spark_reads_an_interruption_and_a_failure_of_any_length(lake: Lake) -> None:
    jvm: Any = lake.spark._jvm
    streams, context = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution, lake.spark._jsc.sc()
    for name, is_interruption in (("java.lang.InterruptedException", True), ("java.io.IOException", False)):
        text = readable(f"Traceback (most recent call last):\n{CALLED}{name}\n{STACK}")
        assert streams.isInterruptionException(jvm.py4j.Py4JException(text), context) == is_interruption


class Fails:
    """Fails in Java, at once or when it is interrupted, with a long text."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.has_begun = threading.Event()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        jvm: Any = rows.sparkSession._jvm
        self.has_begun.set()
        try:
            jvm.java.lang.Thread.sleep(120_000 if self.waits else 0)
            jvm.java.lang.Integer.parseInt("seven")
        except Exception as error:
            raise RuntimeError("x" * 50_000) from error


def test_query_whose_batch_fails_in_java_has_failed(lake: Lake) -> None:
    lake.offer([(1, "a/b", 10)])
    with pytest.raises(StreamingQueryException, match="NumberFormatException"):
        finish(lake.writer(lake.throttle(ANY)).foreachBatch(Fails(waits=False)).start())


def test_query_that_is_stopped_in_a_batch_has_not_failed(lake: Lake) -> None:
    lake.offer([(1, "a/b", 10)])
    function = Fails(waits=True)
    query = lake.writer(lake.throttle(ANY)).foreachBatch(function).start()
    assert function.has_begun.wait(60), query.status
    query.stop()
    assert query.exception() is None
