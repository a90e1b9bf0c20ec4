"""A definition that changes over a batch which stands in a sink, and is not committed, is refused; elsewhere it may."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.control.reports import write_report
from spark_throttle.errors import DefinitionChangedError
from spark_throttle.spark.sinks import batch_sink
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.spark_version import ends_when_drained
from spark_throttle.spark.state_reader import read_queued
from tests.effort import thorough_after
from tests.integration.streams import Lake, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_throttle.spark import ThrottledStreamWriter

THREE = policies(
    namespaces={
        "t/n": publish(messages_per_second=0.002, burst_seconds=1000),
        "bad/n": publish(messages_per_second=0, on_excess="reject"),
    }
)
"""Three messages at once of the one (two, and one into debt), and hours for the rest; the other is rejected."""

FAIL = "fail"


def _fail(control_path: str) -> None:
    mark = Path(control_path) / FAIL
    if mark.exists():
        mark.unlink()
        raise OSError("the disk is full")


def _report_and_fail(directory: Any, batch: int, report: bytes) -> None:
    write_report(directory, batch, report)
    _fail(directory.location)


@pytest.fixture
def failing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake whose next batch fails when it is written and not committed."""
    monkeypatch.setattr(batch_sink, "write_report", _report_and_fail)
    lake.control.mkdir(parents=True)
    (lake.control / FAIL).touch()
    lake.offer([*((row_id, "t/n", 10) for row_id in range(12)), (100, "bad/n", 10)])
    return lake


def into(lake: Lake, name: str = "admitted", events: DataFrame | None = None, **settings: Any) -> ThrottledStreamWriter:
    """Return a writer of the events into a Delta table."""
    throttled = lake.throttle(THREE, **settings).write_stream(lake.events() if events is None else events)
    return throttled.format("delta").option("checkpointLocation", lake.checkpoint).option("path", lake.path(name))


def attempt(stream: Any) -> None:
    """Run a query until nothing more happens, or it fails."""
    query = stream.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def fail_once(stream: Any) -> None:
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        attempt(stream)


def ids(lake: Lake, name: str = "admitted") -> list[int]:
    return sorted(row["id"] for row in DeltaTable(lake.path(name)).to_pyarrow_table().to_pylist())


def waiting(lake: Lake) -> list[int]:
    queued = read_queued(lake.spark, lake.checkpoint)
    return sorted(row["id"] for row in queued.collect()) if "id" in queued.columns else []


@pytest.mark.thorough
def test_turned_order_and_other_namespaces_are_refused_over_an_uncommitted_batch(failing: Lake) -> None:
    """The other namespaces come under the same definition: the column that it names is made otherwise."""
    lake = failing
    fail_once(into(lake))
    assert ids(lake) == [0, 1, 2]
    turned: dict[str, Any] = {"order_by": ["-id"]}
    with pytest.raises(
        DefinitionChangedError,
        match=r"batch 0 is not committed, .*: order_by\[0\] was `id` and is `\(- id\)`; start once with the old",
    ):
        into(lake, **turned).start()
    other = lake.events().withColumn("ns", F.expr("concat('t/', id % 6)"))
    with pytest.raises(StreamingQueryException, match=r"DefinitionChangedError: .* digest of each namespace's rows"):
        attempt(into(lake, events=other))
    attempt(into(lake))
    assert ids(lake) == [0, 1, 2]
    assert waiting(lake) == list(range(3, 12))
    lake.offer([(12, "t/n", 10)])
    attempt(into(lake, **turned))
    assert ids(lake) == [0, 1, 2]
    assert waiting(lake) == list(range(3, 13))


def test_whatever_decides_is_refused_over_an_uncommitted_batch_and_the_old_definition_is_not(failing: Lake) -> None:
    lake = failing
    by_hash: dict[str, Any] = {"order_by": None, "size": None}
    fail_once(into(lake, **by_hash))
    events = lake.events()
    narrow, turned = events.withColumn("id", F.expr("int(id)")), events.select("size", "ns", "id")
    letters = lake.path("letters")
    changes: list[tuple[str, ThrottledStreamWriter]] = [
        (r"namespace was `ns` and is `lower\(ns\)`", into(lake, **by_hash, namespace=F.lower("ns").alias("n"))),
        (r"size was `the length of the row as JSON` and is `size`", into(lake, order_by=None)),
        (r"column x was `not there` and is `int`", into(lake, events=events.withColumn("x", F.lit(1)), **by_hash)),
        (r"column id was `bigint` and is `int`", into(lake, events=narrow, **by_hash)),
        (r"the order of the columns was `id, ns, size`", into(lake, events=turned, **by_hash)),
        (r"partitionBy was `not there` and is `ns`", into(lake, **by_hash).partitionBy("ns")),
        (r"the sink was `Delta .*/admitted` and is `Delta .*/other`", into(lake, "other", **by_hash)),
        (r"the dead letters was `folders in .*", into(lake, **by_hash).rejected("delta", path=letters)),
    ]
    for words, changed in changes:
        with pytest.raises(DefinitionChangedError, match=words):
            changed.start()
    lake.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with pytest.raises(DefinitionChangedError, match="timeZone was `UTC` and is `Asia/Tokyo`"):
            into(lake, **by_hash).start()
    finally:
        lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    before = ids(lake)
    attempt(into(lake, **by_hash, namespace=F.col("ns")))
    assert ids(lake) == before
    assert sorted([*before, *waiting(lake)]) == list(range(12))
    # Between batches all of it may change: what waits has the columns of then.
    lake.offer([(12, "new/n", 10)])
    wider = lake.events().withColumn("x", F.lit(1))
    attempt(into(lake, "other", wider, namespace="lower(ns)").rejected("delta", path=lake.path("letters")))
    assert ids(lake, "other") == [12]
    assert lake.rejected_ids == [100]


def test_definition_may_change_over_a_batch_that_failed_before_its_sink_and_one_that_its_table_does_not_have(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace that cannot be computed would else stop the query for good."""

    def refuse(self: FileTable, *mark_and_files: Any) -> None:
        raise OSError("the table cannot take these rows")

    lake.offer((row_id, "t/n", 10) for row_id in range(4))
    with pytest.raises(StreamingQueryException):
        attempt(into(lake, namespace="concat('t/', cast(ns as int))"))
    with monkeypatch.context() as broken:
        broken.setattr(FileTable, "append_staged", refuse)
        with pytest.raises(StreamingQueryException, match="the table cannot take these rows"):
            attempt(into(lake))
    attempt(into(lake, "other", order_by=["-id"]))
    assert ids(lake, "other") == [1, 2, 3]
    assert waiting(lake) == [0]


@pytest.mark.parametrize("control", thorough_after(1, ["checkpoint/throttle", "elsewhere"]))
def test_decided_stream_is_refused_under_another_definition(lake: Lake, control: str) -> None:
    """Nobody knows what a sink of the user's own holds."""
    if control == "elsewhere" and not ends_when_drained(lake.spark.version):
        pytest.skip("Spark 4.1 refuses a control directory outside the checkpoint")
    lake.offer((row_id, "t/n", 10) for row_id in range(12))
    calls: list[tuple[int, list[int]]] = []

    def keep(rows: DataFrame, batch: int) -> None:
        calls.append((batch, sorted(row["id"] for row in rows.where("throttle.verdict = 'ADMIT'").collect())))
        if len(calls) == 1:
            raise OSError("the disk is full")

    def stream(**settings: Any) -> Any:
        decided = lake.throttle(THREE, **settings).apply(lake.events(), control_path=lake.path(control))
        return decided.writeStream.foreachBatch(keep).option("checkpointLocation", lake.checkpoint)

    fail_once(stream())
    expected = r"batch 0 is not committed, .*: order_by\[0\] was `id` and is `\(- id\)`"
    if control == "elsewhere":
        with pytest.raises(StreamingQueryException, match=f"DefinitionChangedError: {expected}"):
            attempt(stream(order_by=["-id"]))
    else:
        with pytest.raises(DefinitionChangedError, match=expected):
            stream(order_by=["-id"])
    attempt(stream())
    assert calls[0] == calls[1] == (0, [0, 1, 2])
    attempt(stream(order_by=["-id"]))
    assert Counter(row_id for _, taken in calls[1:] for row_id in taken) == Counter([0, 1, 2])
