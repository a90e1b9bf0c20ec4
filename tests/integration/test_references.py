"""Queries that decide on references: rows wait in their files, and their payload reaches the sink unharmed, once."""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import IdempotencyKey
from spark_throttle.spark.reference_pipeline import REFERENCES, STAGED, ReferencePipeline, way_of
from spark_throttle.spark.reference_stream import ReferenceStream
from spark_throttle.spark.references.row_expressions import row_condition
from spark_throttle.spark.references.second_reading import ReadingSums, text_of_sums
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE
from spark_throttle.spark.sinks import source_reader
from spark_throttle.spark.sinks.payload import StagedPayload, StagedRows
from spark_throttle.spark.sinks.source_reader import SourceReader
from spark_throttle.spark.state_reader import read_queued
from tests.effort import thorough_after
from tests.integration.reference_queries import BOUNDED, rows, run, start, stream
from tests.integration.streams import SCHEMA, Event, Lake, finish, policies, publish

if TYPE_CHECKING:
    from collections.abc import Sequence


ODD_ROWS = [("a/é", -(2**63)), ("a/b", 2**63 - 1), ("a/b", 2**63 - 1), (None, 2**40 + 7), ("", None), ("a/c", -1)]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_throttle.spark.writer")


def renamed(_: SourceReader, __: Any, locations: Sequence[str]) -> list[str]:
    return [f"{location}?" for location in locations]


def test_rows_wait_leave_in_order_are_rejected_and_admitted_alike_when_a_batch_runs_again(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """One query, which begins without a file, crashes, and loses its lists of files."""
    document = BOUNDED | policies(tenants={"shut": publish(messages_per_second=0)})
    run(lake, document)
    caplog.clear()
    lake.offer([*rows("good/a", range(29, -1, -1)), *rows("bad/a", [100]), (101, None, 5), (102, "free/a", None)])
    lake.offer([*rows("good/a", range(30, 45)), *rows("free/a", range(200, 203)), *rows("shut/a", range(300, 303))])
    run(lake, document)
    assert "decides on references" in caplog.text
    taken = {batch: kept for batch, kept in sorted(lake.kept.items()) if kept}
    batches = [sorted(row for row in kept if row[1] == "good/a") for kept in taken.values()]
    assert [row for kept in batches for row in kept] == rows("good/a", range(45))
    assert len(batches[0]) == 21, "the burst, and one into debt; the others wait in their file"
    assert sorted(row[0] for row in lake.admitted if row[1] == "free/a") == [200, 201, 202]
    assert lake.rejected_ids == [100, 101, 102]
    assert lake.reasons == {"quota", "namespace_missing", "size_missing"}
    (dead,) = [row for row in lake.rejected if row["id"] == 100]
    assert (dead["ns"], dead["size"], dead["throttle"]["scope"]) == ("bad/a", 110, "bad/a")

    # Waiting rows are read from the checkpoint.
    for schema in (None, lake.spark.createDataFrame([], SCHEMA).schema):
        found = read_queued(lake.spark, lake.checkpoint, schema=schema)
        assert sorted((row["id"], row["ns"], row["size"], row["namespace"]) for row in found.collect()) == [
            (number, "shut/a", 10 + number, "shut/a") for number in range(300, 303)
        ]

    before, again = dict(lake.kept), list(taken)[1]
    lake.crash_in(again)
    lake.kept.clear()
    lake.offer(rows("good/a", range(45, 48)))
    run(lake, document)
    assert lake.kept[again] == before[again]
    of_good = sorted(row for batch, kept in before.items() if batch >= again for row in kept if row[1] == "good/a")
    left = [row for _, kept in sorted(lake.kept.items()) for row in sorted(kept) if row[1] == "good/a"]
    assert left == of_good + rows("good/a", range(45, 48))

    shutil.rmtree(lake.control / "extents")
    lake.offer(rows("good/a", [48]))
    with pytest.raises(Exception, match=r"the list of files .* it is gone"):
        run(lake, document)


def test_delta_table_is_read_from_its_snapshot_on_into_partitioned_files(lake: Lake) -> None:
    source, out = lake.path("source"), lake.path("out")
    made = lake.spark.range(60).selectExpr(
        "id", "id % 3 AS kind", "concat('t/', id % 2) ns", "named_struct('a', array(id, null), 'm', map('k', id)) deep"
    )
    made.where("id < 40").write.format("delta").partitionBy("kind").save(source)
    document = policies(namespaces={"t/1": publish(messages_per_second=20, burst_seconds=1)})
    throttle = Throttle(document, namespace="ns", size="10", order_by=["id"])

    def start() -> None:
        events = throttle.read_stream(lake.spark).format("delta").load(source)
        events = events.withColumn("double", F.expr("id * 2")).withColumnRenamed("kind", "sort")
        writer = throttle.write_stream(events).format("parquet").partitionBy("sort").usage(lake.path("usage"))
        writer = writer.option("checkpointLocation", lake.checkpoint)
        finish(writer.trigger(availableNow=True).start(out))

    start()
    made.where("id >= 40").write.format("delta").mode("append").save(source)
    start()
    assert way_of(str(lake.control)) == REFERENCES
    found = lake.spark.read.parquet(out)
    wanted = made.withColumn("double", F.expr("id * 2")).withColumnRenamed("kind", "sort").select(*found.columns)
    assert sorted(map(str, found.collect())) == sorted(map(str, wanted.collect()))
    admitted = lake.usage("namespace", "t/1")
    assert sum(row["admitted_messages"] for row in admitted) == 30


@pytest.mark.parametrize("most_scans", thorough_after(1, [1, 2]))
def test_partition_of_a_table_whose_folders_do_not_name_it_reaches_the_sink(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most_scans: int
) -> None:
    monkeypatch.setattr(source_reader, "_MOST_SCANS", most_scans)
    source = Path(lake.path("source"))
    write_deltalake(source, pa.table({"id": [1, 2], "ns": ["t/a", "t/a"], "day": ["x", "y"]}), partition_by=["day"])
    log = source / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    for folder in ("day=x", "day=y"):
        (source / folder).rename(source / folder[-1])
        text = text.replace(f"{folder}/", f"{folder[-1]}/")
    log.write_text(text)
    throttle = Throttle(policies(), namespace="ns", size="1", order_by=["id"])
    events = throttle.read_stream(lake.spark).format("delta").load(str(source))
    writer = throttle.write_stream(events).option("checkpointLocation", lake.checkpoint).foreachBatch(lake.keep)
    finish(writer.trigger(availableNow=True).start())
    assert sorted(map(str, lake.admitted)) == ["(1, 't/a', 'x')", "(2, 't/a', 'y')"]


def test_files_of_a_format_that_is_not_read_twice_are_read_by_their_method_and_staged(lake: Lake) -> None:
    events = lake.path("events")
    Path(events).mkdir()
    (Path(events) / "a.json").write_text('[{"id": 1, "ns": "t/a"},\n {"id": 2, "ns": "t/a"}]')
    throttle = Throttle(policies(), namespace="ns", size="1", order_by=["id"])
    stream = throttle.read_stream(lake.spark).json(events, "id bigint, ns string", multiLine=True)
    writer = throttle.write_stream(stream).option("checkpointLocation", lake.checkpoint).foreachBatch(lake.keep)
    finish(writer.trigger(availableNow=True).start())
    assert sorted(map(str, lake.admitted)) == ["(1, 't/a')", "(2, 't/a')"]
    assert way_of(str(lake.control)) != REFERENCES


@pytest.mark.thorough
@pytest.mark.parametrize("names", [("a b%25é#?.parquet", "{a}[b]*.parquet", "a\u00a0b.parquet"), ("day=1/c.parquet",)])
def test_file_of_any_name_is_read_twice(lake: Lake, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        path, first = Path(lake.path("events")) / name, 10 * number
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = [first + 1, first + 2, first + 3]
        pq.write_table(pa.table({"id": ids, "ns": ["a/b", "a/b", "bad/a"], "size": [1, 2, 3]}), path)
    run(lake, BOUNDED)
    assert lake.admitted_ids == [10 * number + at for number in range(len(names)) for at in (1, 2)]
    assert lake.rejected_ids == [10 * number + 3 for number in range(len(names))]


@pytest.mark.parametrize("namespace", thorough_after(1, ["bad/a", "good/a"]))
def test_rows_that_spark_reads_by_another_name_are_an_error_and_reach_no_sink(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """Rejected rows, and admitted ones of a file of which others wait."""
    lake.offer(rows(namespace, range(30)))
    monkeypatch.setattr(SourceReader, "_named", renamed)
    with pytest.raises(StreamingQueryException, match=r"Spark reads it by another name: file:/.*\.parquet"):
        run(lake, BOUNDED)
    assert lake.rejected == []
    assert lake.admitted == []


def test_partition_of_rows_that_spark_reads_by_another_name_is_an_error_and_not_null(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader, "_MOST_SCANS", 1)
    monkeypatch.setattr(SourceReader, "_named", renamed)
    for day in ("mon", "tue"):
        folder = Path(lake.path("events")) / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1], "ns": ["free/a"], "size": [1]}), folder / "a.parquet")
    throttle = lake.throttle(policies())
    events = throttle.read_stream(lake.spark).schema(f"{SCHEMA}, day string").parquet(lake.path("events"))
    with pytest.raises(StreamingQueryException, match="Spark reads it by another name"):
        finish(start(lake, throttle, events))
    assert lake.admitted == []


def test_rows_of_a_file_of_which_nothing_stays_are_read_and_not_looked_up(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.offer(rows("free/a", range(3)))
    lake.offer([*rows("free/a", [3]), *rows("shut/a", [4])])
    monkeypatch.setattr(SourceReader, "_named", renamed)
    with pytest.raises(StreamingQueryException, match="Spark reads it by another name"):
        run(lake, policies(tenants={"shut": publish(messages_per_second=0)}))
    assert lake.admitted_ids == [0, 1, 2]


def test_files_that_leave_whole_and_files_of_which_rows_stay_share_a_batch(lake: Lake) -> None:
    throttle = lake.throttle(BOUNDED | policies(tenants={"shut": publish(messages_per_second=0)}))
    lake.offer(rows("good/a", range(10)))
    lake.offer([*rows("free/a", range(100, 105)), *rows("bad/a", [200])])
    lake.offer([*rows("shut/a", [300]), *rows("free/a", range(105, 110))])
    lake.offer(rows("free/b", range(110, 115)))
    lake.offer(rows("good/a", range(10, 40)))
    writer = throttle.write_stream(stream(lake, throttle, most_files=5)).option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())
    first = next(kept for _, kept in sorted(lake.kept.items()) if kept)
    assert sorted(row[0] for row in first) == [*range(21), *range(100, 115)]
    assert lake.admitted_ids == [*range(40), *range(100, 115)]
    assert lake.rejected_ids == [200]


def test_paced_sink_is_given_the_rows_of_a_namespace_in_order_which_are_staged_for_it(lake: Lake) -> None:
    out = Path(lake.path("sent"))
    out.mkdir()

    def send(sent: list[dict[str, Any]], key: IdempotencyKey) -> None:
        (out / key.text.replace("/", "_")).write_text(" ".join(str(row["id"]) for row in sent))

    lake.offer(rows("free/a", range(38, -1, -2)))
    lake.offer(rows("free/a", range(1, 40, 2)))
    throttle = lake.throttle(policies())
    writer = throttle.write_stream(stream(lake, throttle, most_files=2)).option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).paced(send).start())
    assert [path.read_text().split() for path in out.iterdir()] == [[str(number) for number in range(40)]]
    assert not list(lake.control.glob("extents/*"))


def test_row_that_met_the_condition_when_it_arrived_leaves_though_the_condition_is_another_one_by_then(
    lake: Lake,
) -> None:
    lake.offer([*rows("free/a", [1, 98, 99]), *rows("shut/a", [2, 97, 100])])
    shut = lake.throttle(policies(tenants={"shut": publish(messages_per_second=0)}))
    finish(start(lake, shut, stream(lake, shut).where("id < 99")))
    lake.offer(rows("free/a", [3, 96]))
    free = lake.throttle(policies())
    finish(start(lake, free, stream(lake, free).where("id < 50")))
    assert lake.admitted_ids == [1, 2, 3, 97, 98]


@pytest.mark.parametrize("harm", thorough_after(1, ["gone", "written again"]))
def test_file_that_changes_between_the_two_readings_stops_the_query_with_its_name(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    lake.offer(rows("free/a", range(3)))
    file = next(Path(lake.path("events")).glob("*.parquet"))
    take = StagedPayload.take

    def take_of_changed(self: StagedPayload, frames: Any, batch: int) -> StagedRows:
        frames = frames.persist()
        frames.count()
        if harm == "gone":
            file.unlink(missing_ok=True)
        else:
            os.utime(file)
        return take(self, frames, batch)

    monkeypatch.setattr(StagedPayload, "take", take_of_changed)
    with pytest.raises(StreamingQueryException, match=r"000000\.parquet is not as it was"):
        run(lake, policies())
    assert lake.kept == {}, "nothing was given to the function"


@pytest.mark.parametrize("waiting", [0, 30], ids=["of a whole file", "of a file in part"])
def test_file_that_becomes_another_one_while_a_sink_reads_it_stops_the_query_before_the_batch_is_committed(
    lake: Lake, waiting: int
) -> None:
    lake.offer([*rows("free/a", range(3)), *rows("good/a", range(100, 100 + waiting))])
    file = next(Path(lake.path("events")).glob("*.parquet"))
    throttle = lake.throttle(BOUNDED)

    def keep(batch_rows: Any, batch: int) -> None:
        lake.offer([*rows("free/a", range(50)), *rows("good/a", range(100, 100 + waiting))])
        max(Path(lake.path("events")).glob("*.parquet")).replace(file)
        lake.keep(batch_rows, batch)

    writer = throttle.write_stream(stream(lake, throttle)).option("checkpointLocation", lake.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"while a batch was written, it has .* bytes"):
        finish(writer.trigger(availableNow=True).foreachBatch(keep).start())
    assert not list((Path(lake.checkpoint) / "commits").glob("[0-9]*"))


@pytest.mark.parametrize("rejected", [(), (9,)], ids=["of a whole file", "of a file in part"])
def test_rows_that_spark_reads_otherwise_reach_no_sink(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rejected: Sequence[int]
) -> None:
    """A file that was replaced within its length and time of writing is still noticed, by its rows."""
    bad = rows("bad/a", rejected)
    lake.offer([*rows("free/a", [1, 2, 3]), *bad])
    file = next(Path(lake.path("events")).glob("*.parquet"))

    def replaced(*_: Any) -> None:
        other = [*rows("free/a", [1, 2, 4]), *bad]
        lake.spark.createDataFrame(other, SCHEMA).coalesce(1).write.parquet(lake.path("other"))
        next(Path(lake.path("other")).glob("part-*.parquet")).replace(file)
        monkeypatch.undo()

    monkeypatch.setattr(source_reader, "check_file", replaced)
    with pytest.raises(StreamingQueryException, match="Spark reads rows with"):
        run(lake, BOUNDED)
    assert lake.kept == {}


def test_rows_that_a_condition_drops_are_not_decided_on_and_columns_that_are_selected_or_renamed_decide(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    slow = policies(tenants={"slow": publish(messages_per_second=5)})
    lake.offer(rows("slow/a", range(40)))
    lake.offer([*rows("good/b", range(40, 80)), *rows("slow/a", range(80, 84))])
    throttle = lake.throttle(slow, namespace="name", size="bytes")
    events = stream(lake, throttle).withColumnRenamed("id", "number").where("number >= 10 AND NOT number = 12")
    events = events.withColumnRenamed("number", "id").where("id < 82 OR id IS NULL")
    events = events.selectExpr("id", "ns AS name", "size AS bytes").select("name", "bytes", "id").drop("nothing")
    finish(start(lake, throttle, events))
    assert "decides on references" in caplog.text
    left = [10, 11, *range(13, 82)]
    names = {number: "good/b" if 40 <= number < 80 else "slow/a" for number in left}
    assert sorted(map(tuple, lake.admitted)) == sorted((names[number], 10 + number, number) for number in left)
    assert sum(row["offered_messages"] for row in lake.usage("job")) == 71


@pytest.mark.parametrize("decided", thorough_after(1, ["id >= 6", "id < 5", "id > 20"]))
def test_rows_that_spark_keeps_and_the_first_reading_drops_stop_the_query(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, decided: str
) -> None:
    lake.offer([(number, "good/a", 1) for number in range(10)])
    throttle = lake.throttle(policies())
    events = stream(lake, throttle).where("id >= 5")
    wrong = row_condition(decided, {"id": "number"})
    monkeypatch.setattr(ReferenceStream, "condition", lambda _: wrong)
    with pytest.raises(StreamingQueryException, match="rows that meet the stream's condition"):
        finish(start(lake, throttle, events))
    assert lake.kept == {}


def test_stream_that_selects_all_columns_rejects_rows_and_drops_some(lake: Lake) -> None:
    lake.offer([*rows("free/a", range(3)), *rows("bad/a", [100])])
    throttle = lake.throttle(BOUNDED)
    events = stream(lake, throttle).where("id > 0")
    events = events.select("*", F.lit(1).alias("one"))
    finish(start(lake, throttle, events))
    assert (lake.admitted_ids, lake.rejected_ids) == ([1, 2], [100])
    assert {len(row) for row in lake.admitted} == {4}


def test_stream_that_takes_spark_is_staged_and_the_log_says_why(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    lake.offer(rows("good/a", range(4)))
    run(lake, policies(), way=STAGED, namespace="lower(ns)")
    assert "decides on staged files (namespace is 'lower(ns)', which takes Spark to compute)" in caplog.text
    lake.offer(rows("good/a", range(4, 6)))
    run(lake, policies(), way=STAGED)
    assert "decides on staged files (the checkpoint began with staged files)" in caplog.text
    assert lake.admitted_ids == [0, 1, 2, 3, 4, 5]


def test_source_with_a_column_that_arrow_does_not_carry_is_staged_without_it(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.offer(rows("good/a", [1]))
    throttle = lake.throttle(policies())
    reader = throttle.read_stream(lake.spark).schema(f"{SCHEMA}, spans array<interval month>")
    events = reader.parquet(lake.path("events"))
    with pytest.raises(ConfigurationError, match=r"^column 'spans' is array<interval month>, an interval that Arrow"):
        start(lake, throttle, events)
    finish(start(lake, throttle, events.drop("spans")))
    assert "decides on staged files (rows of the source cannot be copied where they wait (column 'spans'" in caplog.text
    assert lake.admitted == rows("good/a", [1])


def test_references_are_not_for_executors_that_cannot_write_to_the_control_directory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake.offer(rows("good/a", [1, 2]))
    with monkeypatch.context() as patch:
        patch.setattr("spark_throttle.spark.writer.control_problem", lambda *_, **__: "on a: denied")
        run(lake, policies(), way=STAGED)
    assert "decides on staged files (the executors cannot write to the control directory, on a: denied)" in caplog.text
    assert "rows go through the decider" in caplog.text
    assert lake.admitted == rows("good/a", [1, 2])
    assert not list(lake.control.glob("staged/*"))


@pytest.mark.parametrize(
    ("stands_against", "why"),
    [
        (lambda events: events.where("upper(ns) = 'A'"), r"drops rows by a condition \("),
        (lambda events: events.where(F.col("id") > 3), r"drops rows by a condition \(a Column\)"),
        (lambda events: events.withColumn("id", F.expr("id + 1")).where("id > 3"), "drops rows by a condition"),
        (lambda events: events.withColumn("n", F.expr("count(*) over (partition by ns)")), "depends on other rows"),
        (lambda events: events.withColumn("n", F.expr("explode(array(1, 2))")), "makes several rows of one"),
        (lambda events: events.withColumn("file", F.expr("upper(input_file_name())")), r"has input_file_name\(\)"),
        (lambda events: events.withColumn("size", F.expr("size + 1")), "size is 'size'"),
        (lambda events: events.selectExpr("id", "upper(ns) AS ns", "size"), "namespace is 'ns'"),
    ],
)
def test_expression_on_a_deciding_column_stands_against_references(lake: Lake, stands_against: Any, why: str) -> None:
    throttle = lake.throttle(policies())
    pipeline = throttle.write_stream(stands_against(stream(lake, throttle)))._pipeline
    assert isinstance(pipeline, ReferencePipeline)
    assert re.search(why, str(pipeline.problem(())))


def test_checkpoint_that_began_with_references_is_refused_over_a_stream_that_takes_spark(lake: Lake) -> None:
    lake.offer(rows("good/a", range(4)))
    run(lake, policies())
    with pytest.raises(
        ConfigurationError, match=r"^the checkpoint began with references, and namespace is 'lower\(ns\)'"
    ):
        run(lake, policies(), namespace="lower(ns)")
    assert lake.admitted_ids == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", "true"),
        ("spark.sql.sources.useV1SourceList", "avro,csv"),
    ],
)
def test_setting_with_which_spark_reads_otherwise_stands_against_references(
    lake: Lake, setting: str, value: str
) -> None:
    events = stream(lake, lake.throttle(policies()))
    assert events.problem() is None
    lake.spark.conf.set(setting, value)
    try:
        assert setting in str(events.problem())
    finally:
        lake.spark.conf.unset(setting)


def test_source_that_only_spark_reads_stands_against_references(lake: Lake) -> None:
    lake.offer(rows("good/a", [1]))
    throttle = lake.throttle(policies())
    read = throttle.read_stream(lake.spark).schema(f"{SCHEMA}, throttle string")
    assert "'throttle'" in str(read.parquet(lake.path("events")).drop("throttle").problem())
    read = throttle.read_stream(lake.spark).schema(SCHEMA).option("maxFilesPerTrigger", 0)
    assert "'maxFilesPerTrigger'" in str(read.parquet(lake.path("events")).problem())
    lake.events().createOrReplaceTempView("seen")
    assert "cannot be read without Spark" in str(throttle.read_stream(lake.spark).table("seen").problem())


def test_spark_computes_the_sums_of_the_first_reading_on_every_namespace_and_size(lake: Lake) -> None:
    """Among them sizes whose sum is no 64-bit integer, and a name of several bytes a letter."""
    found: list[Event] = [(at, name, size) for at, (name, size) in enumerate(ODD_ROWS)]
    lake.offer(found)
    seen = lake.spark.read.parquet(lake.path("events")).select("*", F.col("_metadata.row_index").alias("row"))
    columns = {TIE: pa.int64(), NAMESPACE: pa.string(), SIZE: pa.int64()}
    arrays = [pa.array(of, kind) for of, kind in zip(zip(*found, strict=True), columns.values(), strict=True)]
    decided = ReadingSums.of_rows(pa.Table.from_arrays(arrays, list(columns)))
    (sums,) = seen.selectExpr(text_of_sums("row", "ns", "size")).collect()
    assert tuple(sums[0]) == astuple(decided)
