"""Tests on Spark 4.1, whose ``availableNow`` does not wait for rows: a query runs on until its rows have left.

A test asks for ``availableNow``, and for the end of its query. Here the query has Spark's usual trigger instead, with
as many batches, and is stopped when no row waits any more that will leave by itself.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_throttle.control.reports import newest_batch, report_of
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.files.storage import Directory
from spark_throttle.spark.spark_version import ends_when_drained

if TYPE_CHECKING:
    import pytest

_BETWEEN_LOOKS_SECONDS: Final = 0.05
_MARK: Final = "until_drained"


def run_until_drained(patch: pytest.MonkeyPatch, version: str) -> None:
    """Have queries with ``availableNow`` run until their rows have left, where Spark itself does not."""
    if ends_when_drained(version):
        return
    trigger, start, wait = DataStreamWriter.trigger, DataStreamWriter.start, StreamingQuery.awaitTermination

    def other_trigger(writer: DataStreamWriter, **given: Any) -> DataStreamWriter:
        vars(writer)[_MARK] = "availableNow" in given
        return trigger(writer, **({"processingTime": "0 seconds"} if vars(writer)[_MARK] else given))

    def marked(writer: DataStreamWriter, *given: Any, **named: Any) -> StreamingQuery:
        query = start(writer, *given, **named)
        vars(query)[_MARK] = vars(writer).get(_MARK, False)
        return query

    def drained(query: StreamingQuery, timeout: int | None = None) -> bool | None:
        if not vars(query).get(_MARK):
            return wait(query, timeout)
        end = time.monotonic() + (timeout or float("inf"))
        while query.isActive and _waits(query):
            if time.monotonic() > end:
                return False
            threading.Event().wait(_BETWEEN_LOOKS_SECONDS)
        query.stop()
        return wait(query, timeout)

    patch.setattr(DataStreamWriter, "trigger", other_trigger)
    patch.setattr(DataStreamWriter, "start", marked)
    patch.setattr(StreamingQuery, "awaitTermination", drained)


def _waits(query: StreamingQuery) -> bool:
    """Return whether a row waits that will leave by itself, after all batches that are due have run."""
    query.processAllAvailable()
    control = Directory(f"{query._jsq.streamingQuery().resolvedCheckpointRoot()}/throttle")
    newest = newest_batch(control)
    report = report_of(control, newest) if newest >= 0 else None
    return report is not None and report.due_ms < NEVER_MS
