"""Rows that are staged in files and decided on by one decider: what reaches the sink, and what is left behind."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyarrow import parquet as pq
from pyspark.errors import SparkRuntimeException, StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark import writer
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.drained_query import drain
from spark_throttle.spark.move.answer import FileAnswer, bits_of
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.references.second_reading import admitted_rows
from spark_throttle.spark.sinks.source_reader import strict_scan
from spark_throttle.spark.sinks.staged_reader import StagedReader
from spark_throttle.spark.state_reader import read_queued
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_throttle.spark import ThrottledStreamWriter


def staged(lake: Lake, limits: Any, **settings: Any) -> ThrottledStreamWriter:
    """Return a staging writer of the lake's events that ends when all is drained."""
    return lake.writer(lake.throttle(limits, **settings))


def table_ids(lake: Lake, name: str = "out") -> list[int]:
    return sorted(DeltaTable(lake.path(name)).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def data_files(lake: Lake, name: str = "out") -> set[str]:
    return {str(path.relative_to(lake.root / name)) for path in (lake.root / name).rglob("*.parquet")}


def committed_files(lake: Lake, name: str = "out") -> set[str]:
    return {Path(uri).name for uri in DeltaTable(lake.path(name)).file_uris()}


def test_files_of_which_all_rows_leave_are_the_tables_own(lake: Lake) -> None:
    for batch in range(3):
        lake.offer([(batch * 10 + n, f"t/{n}", 5) for n in range(4)])
    finish(staged(lake, {}).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [n * 10 + m for n in range(3) for m in range(4)]
    assert data_files(lake) >= committed_files(lake)
    assert len(committed_files(lake)) == 3


SHUT = policies(tenants={"slow": publish(messages_per_second=0)})
HALF = policies(tenants={"bad": publish(messages_per_second=0, on_excess="reject")})
SLOWLY = policies(tenants={"slow": publish(messages_per_second=18, burst_seconds=0.5)})


def rows(first: int, *names: str | None) -> list[tuple[int, str | None, int | None]]:
    return [(first + at, name, 5) for at, name in enumerate(names)]


def waiting_files(lake: Lake) -> list[str]:
    folder = lake.control / "staged"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_rows_wait_outside_the_table_and_leave_once_in_order(lake: Lake) -> None:
    for batch in range(3):
        lake.offer(rows(batch * 100, *(["slow/a", "fast/b", "slow/c"] * 3)))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in (1, 4, 7)]
    assert [name for name in waiting_files(lake) if "-rest-" in name], "the first batch had no hint"
    assert [name for name in waiting_files(lake) if "-rest-" not in name], "later ones had"
    query = finish(staged(lake, SLOWLY).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in range(9)]
    assert len(query.recentProgress) > 1, "nothing waited"


def test_cut_files_do_not_stay_in_the_table(lake: Lake) -> None:
    lake.offer(rows(0, "slow/a", "fast/b"))
    lake.offer(rows(10, "fast/b"))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    left = data_files(lake) - committed_files(lake)
    assert [name for name in left if "-c000" not in name] == [], "only Spark's own file, which has no row"
    assert table_ids(lake) == [1, 10]


@pytest.mark.parametrize("limits", thorough_after(1, [SHUT, SLOWLY]))
def test_batch_that_is_run_again_stages_anew_and_writes_each_row_once(lake: Lake, limits: Any) -> None:
    """<https://github.com/apache/paimon/issues/9666>, where the table takes files as they lie."""
    for batch in range(3):
        lake.offer(rows(batch * 100, *(["slow/a", "fast/b", "slow/c"] * 3)))
    finish(staged(lake, limits).format("delta").start(lake.path("out")))
    before, last = table_ids(lake), lake.last_batch()
    lake.crash_in(last)
    finish(staged(lake, limits).format("delta").start(lake.path("out")))
    assert table_ids(lake) == before
    finish(staged(lake, {}).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in range(9)]


def test_rows_that_are_dealt_out_to_tasks_anew_leave_once(lake: Lake) -> None:
    """<https://github.com/apache/datafusion-comet/pull/5449>, SPARK-38160: rows are dealt out in turns, and again."""
    for batch in range(2):
        lake.offer(rows(batch * 100, *(["slow/a", "fast/b", "slow/c"] * 4)))

    def start(limits: Any, parts: int) -> None:
        stream = lake.throttle(limits, order_by=[]).write_stream(lake.events().repartition(parts))
        stream = stream.trigger(availableNow=True).option("checkpointLocation", lake.checkpoint)
        finish(stream.format("delta").start(lake.path("out")))

    start(SHUT, 7)
    lake.crash_in(lake.last_batch())
    start(SHUT, 3)
    assert table_ids(lake) == [batch * 100 + n for batch in range(2) for n in (1, 4, 7, 10)]
    start({}, 5)
    assert table_ids(lake) == [batch * 100 + n for batch in range(2) for n in range(12)]


@pytest.mark.thorough
@pytest.mark.parametrize("sink", ["parquet", "noop", "json"])
def test_other_sinks_get_the_rows_through_spark(lake: Lake, sink: str) -> None:
    for batch in range(2):
        lake.offer(rows(batch * 10, "slow/a", "fast/b", "bad/x"))
    limits = policies(tenants={**SHUT["tenants"], **HALF["tenants"]})
    finish(staged(lake, limits).format(sink).start(lake.path("out")))
    finish(staged(lake, HALF).format(sink).usage(lake.path("usage")).start(lake.path("out")))
    assert lake.rejected_ids == [2, 12]
    if sink != "noop":
        found = lake.spark.read.schema("id long").format(sink).load(lake.path("out"))
        assert sorted(row["id"] for row in found.collect()) == [0, 1, 10, 11]
    assert sum(row["admitted_messages"] for row in lake.usage("namespace", "slow/a")) == 2


def test_function_gets_each_namespace_in_order(lake: Lake) -> None:
    lake.offer([(n, f"slow/{n % 3}", 5) for n in reversed(range(30))])
    finish(staged(lake, SHUT).foreachBatch(lake.keep).start())
    lake.offer([(n, f"slow/{n % 3}", 5) for n in range(30, 60)])
    finish(staged(lake, {}).foreachBatch(lake.keep).start())
    for namespace in range(3):
        found = [row[0] for row in lake.admitted if row[1] == f"slow/{namespace}"]
        assert found == sorted(found)
    assert lake.admitted_ids == list(range(60))


def test_files_that_lie_in_order_are_read_by_a_task_each_and_others_are_sorted(lake: Lake) -> None:
    came, is_sorted = dict[int, list[Row]](), dict[int, bool]()

    def keep(rows: DataFrame, batch: int) -> None:
        is_sorted[batch] = "hashpartitioning" in rows._jdf.queryExecution().executedPlan().toString()
        came[batch] = rows.select("id", "ns", F.spark_partition_id().alias("task")).collect()

    in_order = [(n, f"t/{n % 7}", 5) for n in range(3_000)]
    lake.offer(in_order)
    lake.offer([(3_000 + n, ns, size) for n, ns, size in reversed(in_order)])
    lake.offer([(6_000 + n, ns, size) for n, ns, size in in_order])
    stream = lake.throttle({}).write_stream(lake.events().repartition(2, "ns")).foreachBatch(keep)
    stream = stream.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True)
    key = "spark.sql.files.maxPartitionBytes"
    before = str(lake.spark.conf.get(key))
    lake.spark.conf.set(key, "2k")  # several tasks read a file
    try:
        finish(stream.start())
    finally:
        lake.spark.conf.set(key, before)
    assert is_sorted == {0: False, 1: True, 2: False}
    for batch, rows in came.items():
        for namespace in range(7):
            mine = [row for row in rows if row["ns"] == f"t/{namespace}"]
            assert len({row["task"] for row in mine}) == 1
            everything = [3_000 * batch + n for n in range(3_000) if n % 7 == namespace]
            assert [row["id"] for row in mine] == everything


def test_waiting_rows_can_be_read_and_drained(lake: Lake) -> None:
    for batch in range(2):
        lake.offer(rows(batch * 10, "slow/a", "fast/b", "slow/a", "slow/c", "slow/c"))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    queued = read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema)
    assert queued.columns[:3] == ["id", "ns", "size"]
    waits = [0, 2, 3, 4, 10, 12, 13, 14]
    assert sorted(row["id"] for row in queued.collect()) == waits
    assert {tuple(row) for row in queued.select("ns", "namespace").collect()} == {(n, n) for n in ("slow/a", "slow/c")}
    drain(lake.spark, lake.checkpoint, lake.path("drained"))
    assert table_ids(lake, "drained") == waits


def test_waiting_rows_leave_with_the_columns_of_the_new_stream_if_they_lose_nothing(lake: Lake) -> None:
    lake.offer(rows(0, "slow/a", *["fast/b"] * 9))
    lake.offer(rows(10, "slow/a", "fast/b"))

    def run(limits: Any, **columns: str) -> None:
        columns |= {"wait": "make_dt_interval(int(id))"}  # a file has no type for it
        events = lake.events().withColumns({name: F.expr(made) for name, made in columns.items()})
        writer = lake.throttle(limits).write_stream(events)
        writer = writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True)
        finish(writer.foreachBatch(lake.keep).start())

    run(SHUT)
    assert {"-rest-" in name for name in waiting_files(lake)} == {False, True}
    with pytest.raises(ConfigurationError, match=r"^column 'id' is int64 in rows that wait .* keep the old type"):
        run({}, id="string(id)")
    lake.kept.clear()
    run({}, id="tinyint(id)", size="int(size)", x="7")
    admitted: list[Any] = sorted(lake.admitted)
    assert admitted == [(n, "slow/a", 5, None, timedelta(days=n)) for n in (0, 10)]


@pytest.mark.parametrize("sink", thorough_after(1, ["delta", "parquet"]))
def test_rows_travel_with_their_digests_where_executors_cannot_write(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sink: str
) -> None:
    limits = policies(tenants={**SHUT["tenants"], **HALF["tenants"]})

    def ids() -> list[int]:
        return sorted(row["id"] for row in lake.spark.read.format(sink).load(lake.path("out")).collect())

    with monkeypatch.context() as patch:
        patch.setattr(writer, "control_problem", lambda *_, **__: "on a: denied")
        for batch in range(3):
            lake.offer(rows(batch * 10, "slow/a", "fast/b", "bad/x", *["slow/a"] * (batch * 3)))
        finish(staged(lake, limits).format(sink).start(lake.path("out")))
        assert "the executors cannot write to" in caplog.text
        assert waiting_files(lake) == []
        assert ids() == [1, 11, 21]
        assert lake.rejected_ids == [2, 12, 22]
        queued = read_queued(lake.spark, lake.checkpoint)
        assert sorted(row["id"] for row in queued.collect()) == [0, 10, 13, 14, 15, 20, *range(23, 29)]
        six = policies(namespaces={"slow/a": publish(messages_per_second=0.005, burst_seconds=1000)})
        query = staged(lake, six).trigger(processingTime="0 seconds").format(sink).start(lake.path("out"))
        query.processAllAvailable()
        query.stop()
        assert ids() == sorted([1, 11, 21, 0, 10, 13, 14, 15, 20]), "a burst of five, and one into debt"
    lake.offer(rows(100, "slow/a", "fast/b", "fast/b"))
    finish(staged(lake, {}).format(sink).start(lake.path("out")))
    everything = [*range(2), *range(10, 16), *range(20, 29), 100, 101, 102]
    assert ids() == [n for n in everything if n not in (2, 12, 22)]


def test_table_of_the_catalog_takes_files_as_they_lie(lake: Lake) -> None:
    """It is made without a file, also where no statistics are collected."""
    collects = "spark.databricks.delta.stats.collect"
    lake.spark.conf.set(collects, "false")
    try:
        for number, limits in enumerate((SHUT, {})):
            lake.offer(rows(number, ("slow/a", "fast/b")[number]))
            finish(staged(lake, limits).toTable("staged_in_the_catalog"))
            location = lake.spark.sql("describe detail staged_in_the_catalog").collect()[0]["location"]
            assert len(DeltaTable(location).file_uris()) == 2 * number
        assert sorted(row["id"] for row in lake.spark.table("staged_in_the_catalog").collect()) == [0, 1]
    finally:
        lake.spark.conf.unset(collects)
        lake.spark.sql("drop table if exists staged_in_the_catalog")


def test_waiting_file_that_has_other_rows_than_it_had_is_an_error_and_no_silence(lake: Lake) -> None:
    lake.offer([(n, "slow/a", 5) for n in range(20)])
    finish(staged(lake, SHUT).foreachBatch(lake.keep).start())
    (file,) = (lake.control / "staged").glob("*.parquet")
    pq.write_table(pq.read_table(file).slice(0, 12), file)
    with pytest.raises(StreamingQueryException, match=r"it has 12 rows, and had 20"):
        finish(staged(lake, {}).foreachBatch(lake.keep).start())
    assert not lake.admitted


def test_file_that_spark_reads_by_another_name_is_an_error_and_no_silence(lake: Lake) -> None:
    path = lake.path("a.parquet")
    lake.spark.range(3).coalesce(1).write.parquet(path)
    (name,) = (each.name for each in Path(path).glob("*.parquet"))
    file = FileAnswer(name, True, 3, 0, 0, True, "", 1, bits_of(np.array([1]), 3), "", None, "", None)
    form = FileForm(pa.schema([("id", pa.int64())]))
    waiting = StagingPlace(lake.path("staged"), form, in_table=False)
    schema = StructType().add("id", "long")
    reader = StagedReader(lake.spark, schema, path, waiting, {})
    bits = admitted_rows(np.array([1]))
    assert [row["id"] for row in reader.admitted([file], bits).collect()] == [1]
    Path(path, "other.parquet").write_bytes(Path(path, name).read_bytes())
    with pytest.raises(SparkRuntimeException, match=r"reads it by another name: other\.parquet"):
        lookup(reader, file, "other.parquet").collect()


def test_page_that_was_altered_is_not_read(lake: Lake) -> None:
    form = FileForm(pa.schema([("id", pa.int64())]), compression="none")
    place = StagingPlace(lake.path("staged"), form, in_table=False)
    path = Path(place.root, place.writer().write(pa.table({"id": [1, 2, 7]})).path)
    rows = strict_scan(lake.spark, StructType().add("id", "long"), [str(path)])
    assert sorted(row["id"] for row in rows.collect()) == [1, 2, 7]
    content = path.read_bytes()
    values = np.array([1, 2, 7], dtype="<i8").tobytes()
    path.write_bytes(content.replace(values, np.array([1, 3, 7], dtype="<i8").tobytes()))
    assert path.read_bytes() != content
    with pytest.raises(Py4JJavaError, match="CRC checksum verification failed"):
        rows.collect()


def lookup(reader: StagedReader, file: FileAnswer, read: str) -> DataFrame:
    """Return the rows of a file that is read where another one lies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedReader, "_location", lambda self, _: f"{self.table_root}/{read}")
        return reader.admitted([file], admitted_rows(np.array([1])))
