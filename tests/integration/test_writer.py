"""The writer stands where `events.writeStream` stood: its calls, its refusals, and what it makes of every sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark import ThrottledStreamWriter
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HALF_REJECTED = policies(tenants={"bad": publish(messages_per_second=0, on_excess="reject")})
EVENTS = [(1, "good/a", 10), (2, "bad/a", 20), (3, "good/b", 30), (4, "bad/a", 40)]


@pytest.fixture
def rates(spark: SparkSession) -> DataFrame:
    """Return a stream that no test starts."""
    return spark.readStream.format("rate").load().selectExpr("value id", "'t/n' ns", "1 size")


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda w: w.trigger(), r"exactly one of .* got \[\]"),
        (lambda w: w.trigger(availableNow=True, processingTime="1 second"), "exactly one"),
        (lambda w: w.trigger(avaliableNow=True), "unknown trigger 'avaliableNow'; did you mean availableNow"),
        (lambda w: w.trigger(once=True), "'once' cannot be throttled.*use processingTime or availableNow"),
        (lambda w: w.trigger(continuous="1 second"), "'continuous' cannot be throttled"),
        (lambda w: w.trigger(realTime="1 minute"), "'realTime' cannot be throttled"),
        (lambda w: w.outputMode("complete"), "outputMode 'complete' cannot be throttled.*use append"),
        (lambda w: w.start("/x", outputMode="update"), "outputMode 'update'"),
        (lambda w: w.format("memory").queryName("q").start(), "the memory sink takes no batches: use .*apply"),
        (lambda w: w.format("delta").start("/x"), r"needs a checkpoint: set option\('checkpointLocation'"),
        (lambda w: w.format("parquet").start(), "the sink 'parquet' has no place: give start a path, or use toTable"),
        (lambda w: w.foreachBatch(lambda *_: None).start(), "needs a checkpoint"),
        (lambda w: w.toTable("x"), "needs a checkpoint"),
        (lambda w: w.rejected("csv", "/x"), "dead letters cannot be 'csv' files"),
    ],
)  # fmt: skip
def test_misuse_is_refused(lake: Lake, rates: DataFrame, misuse: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        misuse(lake.throttle({}).write_stream(rates))
    assert not lake.spark.streams.active


def test_batch_frame_is_refused(lake: Lake) -> None:
    with pytest.raises(ConfigurationError, match=r"not a streaming DataFrame; read it with spark\.readStream"):
        lake.throttle({}).write_stream(lake.spark.range(3))


def test_writer_has_the_calls_of_sparks_writer() -> None:
    missing = {name for name in vars(DataStreamWriter) if not name.startswith("_")} - set(dir(ThrottledStreamWriter))
    assert missing == {"clusterBy", "foreach"}


@pytest.mark.thorough
def test_table_of_dead_letters_without_a_new_column_is_refused_by_the_start(lake: Lake) -> None:
    """The first rejected row would end the query, once the sink has its batch."""

    def run(*columns: str, **rejected: str) -> None:
        stream = lake.events().selectExpr("*", *columns)
        writer = lake.throttle(HALF_REJECTED).write_stream(stream).option("checkpointLocation", lake.checkpoint)
        writer = writer.format("delta").rejected("delta", lake.path("letters"), **rejected)
        finish(writer.trigger(availableNow=True).start(lake.path(f"out{len(columns)}")))

    lake.offer(EVENTS)
    run()
    lake.offer((number + 4, "bad/a", size) for number, _, size in EVENTS)
    refused = r"^the table of dead letters .* has no column 'x'.*mergeSchema=True"
    with pytest.raises(ConfigurationError, match=refused):
        run("'new' AS x")
    run("'new' AS x", mergeSchema="true")
    letters = lake.spark.read.format("delta").load(lake.path("letters"))
    assert sorted(map(tuple, letters.select("id", "x").collect())) == [
        (2, None), (4, None), *((number, "new") for number in range(5, 9))
    ]  # fmt: skip


def test_start_takes_all_that_sparks_start_takes(lake: Lake) -> None:
    lake.offer(EVENTS)
    query = lake.throttle(HALF_REJECTED).write_stream(lake.events()).trigger(availableNow=True).start(
        lake.path("out"), "json", "append", "ns", "the name", checkpointLocation=lake.checkpoint, compression="gzip"
    )  # fmt: skip
    finish(query)
    assert query.name == "the name"
    files = sorted(path.relative_to(lake.root / "out") for path in (lake.root / "out").rglob("*.json.gz"))
    assert [str(path.parent) for path in files] == ["ns=good%2Fa", "ns=good%2Fb"]
    assert sorted(map(tuple, lake.spark.read.json(lake.path("out")).select("id", "size").collect())) == [
        (1, 10),
        (3, 30),
    ]


def test_checkpoint_of_the_session_and_the_query_name_is_used_and_dead_letters_are_kept_beside_it(lake: Lake) -> None:
    lake.offer(EVENTS)
    lake.offer([(5, "bad/b", 50)])
    lake.spark.conf.set("spark.sql.streaming.checkpointLocation", f"file://{lake.path('checkpoints')}")
    try:
        writer = lake.throttle(HALF_REJECTED).write_stream(lake.events()).queryName("named").format("noop")
        finish(writer.trigger(availableNow=True).start())
    finally:
        lake.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    control = lake.root / "checkpoints" / "named" / "throttle"
    assert (control / "manifest.json").exists()
    dead = lake.spark.read.parquet(str(control / "rejected"))
    assert dead.columns == ["id", "ns", "size", "throttle", "batch"]
    found = dead.selectExpr("batch", "id", "throttle.verdict", "throttle.reason", "throttle.level", "throttle.scope")
    assert sorted(map(tuple, found.collect())) == [
        (0, 2, "REJECT", "quota", "tenant", "bad"),
        (0, 4, "REJECT", "quota", "tenant", "bad"),
        (1, 5, "REJECT", "quota", "tenant", "bad"),
    ]


def run(lake: Lake, limits: dict[str, Any]) -> StreamingQuery:
    """Run a query until it ends by itself, into Delta tables for all that it writes."""
    writer = lake.writer(lake.throttle(limits)).format("delta")
    writer = writer.rejected("delta", path=lake.path("rejected")).usage(lake.path("usage"))
    return finish(writer.start(lake.path("admitted")))


def rows_of(lake: Lake, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a Delta table in the order of their values, read without Spark."""
    found = DeltaTable(lake.path(name)).to_pyarrow_table(columns=list(columns) or None)
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def transactions(table: str) -> dict[str, list[int]]:
    """Return the versions that every application has written to a Delta table."""
    found: dict[str, list[int]] = {}
    for commit in sorted(Path(table, "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if "txn" in (action := json.loads(line)):
                found.setdefault(action["txn"]["appId"], []).append(action["txn"]["version"])
    return found


def test_delta_sinks_take_a_batch_once(lake: Lake) -> None:
    """<https://github.com/apache/paimon/issues/9666> and #9667: a batch that runs again is in the table twice."""
    lake.offer(EVENTS)
    run(lake, HALF_REJECTED)
    query = json.loads((lake.control / "manifest.json").read_text())["query"]
    assert transactions(lake.path("admitted"))[query] == [0]
    assert transactions(lake.path("rejected"))[f"{query}/rejected"] == [0]
    assert 0 in transactions(lake.path("usage"))[f"{query}/usage"]
    tables = ("admitted", "rejected", "usage")
    before = {name: (DeltaTable(lake.path(name)).version(), rows_of(lake, name)) for name in tables}
    lake.crash_in(lake.last_batch())
    last = run(lake, HALF_REJECTED).recentProgress
    assert last[0]["batchId"] == max(transactions(lake.path("usage"))[f"{query}/usage"])
    after = {name: (DeltaTable(lake.path(name)).version(), rows_of(lake, name)) for name in tables}
    assert after == before


def test_to_table_makes_a_delta_table_and_its_first_batch_run_again_changes_nothing(lake: Lake) -> None:
    lake.offer(EVENTS)
    try:
        for _ in range(2):
            writer = lake.writer(lake.throttle(HALF_REJECTED)).rejected("delta", table="dead")
            finish(writer.toTable("lively", partitionBy="ns"))
            assert sorted(map(tuple, lake.spark.table("lively").collect())) == [(1, "good/a", 10), (3, "good/b", 30)]
            assert sorted(row["id"] for row in lake.spark.table("dead").collect()) == [2, 4]
            lake.crash_in(0)
        details = lake.spark.sql("describe detail lively").collect()[0]
        assert (details["format"], details["partitionColumns"]) == ("delta", ["ns"])
    finally:
        lake.spark.sql("drop table if exists lively")
        lake.spark.sql("drop table if exists dead")


def test_function_gets_admitted_rows_in_their_own_schema(lake: Lake) -> None:
    calls: list[tuple[int, list[tuple[Any, ...]]]] = []
    schemas, tasks = [], []

    def keep(rows: DataFrame, batch: int) -> None:
        schemas.append(rows.schema)
        tasks.append(rows.select("ns", F.spark_partition_id()).distinct().collect())
        calls.append((batch, sorted(map(tuple, rows.collect()))))

    lake.offer(EVENTS)
    lake.offer([(5, "bad/a", 50)])
    lake.offer([(6, "good/a", 60)])
    finish(lake.writer(lake.throttle(HALF_REJECTED)).foreachBatch(keep).start())
    assert calls[:3] == [(0, [(1, "good/a", 10), (3, "good/b", 30)]), (1, []), (2, [(6, "good/a", 60)])]
    assert all(rows == [] for _, rows in calls[3:])
    assert all(schema == lake.events().schema for schema in schemas)
    for found in tasks:
        assert len({row["ns"] for row in found}) == len(found), "a namespace is in one task"


def test_function_joins_a_view_of_its_session_and_what_it_sets_stays_with_its_batches(lake: Lake) -> None:
    """<https://github.com/apache/spark/pull/55410> (SPARK-44462): the session of a batch is the query's own."""
    lake.spark.sql("select 'good/a' ns, 'shown' shown").createOrReplaceTempView("shown_names")
    seen: list[Any] = []

    def join(rows: DataFrame, batch: int) -> None:
        session = rows.sparkSession
        session.conf.set("spark.sql.variable.of.batches", str(batch))
        seen.extend(map(tuple, rows.join(session.table("shown_names"), "ns").select("id", "shown").collect()))

    lake.offer(EVENTS)
    try:
        finish(lake.writer(lake.throttle(HALF_REJECTED)).foreachBatch(join).start())
    finally:
        lake.spark.sql("drop view shown_names")
    assert seen == [(1, "shown")]
    assert lake.spark.conf.get("spark.sql.variable.of.batches", None) is None


def test_files_of_a_sink_lie_as_spark_lays_them_and_dead_letters_go_to_json_files_if_asked(lake: Lake) -> None:
    lake.offer(EVENTS)
    writer = lake.writer(lake.throttle(HALF_REJECTED)).format("parquet").partitionBy("size")
    finish(writer.rejected("json", lake.path("dead")).start(lake.path("out")))
    assert sorted(path.name for path in Path(lake.path("out")).glob("*=*")) == ["size=10", "size=30"]
    found = lake.spark.read.parquet(lake.path("out"))
    assert found.columns == ["id", "ns", "size"]
    assert sorted(row["id"] for row in found.collect()) == [1, 3]
    dead = lake.spark.read.json(lake.path("dead"))
    assert sorted((row["id"], row["throttle"]["verdict"]) for row in dead.collect()) == [(2, "REJECT"), (4, "REJECT")]


def test_usage_adds_up_to_what_the_sinks_hold_and_status_is_of_the_query_of_its_throttle(lake: Lake) -> None:
    limits = policies(
        resource_groups={"g": publish(messages_per_second=20, burst_seconds=1)},
        tenants={"good": {"resource_group": "g"}, "bad": HALF_REJECTED["tenants"]["bad"]},
    )
    for start in (0, 40):
        lake.offer((start + i, f"{('good', 'good', 'bad')[i % 3]}/n{i % 4}", i) for i in range(40))
    lake.offer([(100, None, 5), (101, "good/n0", -1)])
    throttle = lake.throttle(limits)
    writer = lake.writer(throttle).format("delta").rejected("delta", path=lake.path("rejected"))
    query = finish(writer.usage(lake.path("usage")).start(lake.path("admitted")))
    usage = rows_of(lake, "usage", "level", "scope", "batch_id", "offered_messages", "admitted_messages",
                       "rejected_messages", "waiting_messages", "admitted_bytes", "delayed_ms")  # fmt: skip

    def total(level: str, scope: str, column: int) -> int:
        return sum(row[column] for row in usage if row[:2] == (level, scope))

    admitted, rejected = rows_of(lake, "admitted"), rows_of(lake, "rejected", "id", "ns")
    assert total("job", "job", 3) == len(admitted) + len(rejected) == 82
    assert total("job", "job", 4) == total("resource_group", "g", 4) == total("tenant", "good", 4) == len(admitted)
    assert total("job", "job", 5) == len(rejected) == total("tenant", "bad", 5) + 2
    assert total("job", "job", 7) == sum(row[2] for row in admitted)
    assert total("job", "job", 8) > 0
    for name in {row[1] for row in admitted}:
        assert total("namespace", name, 4) == sum(row[1] == name for row in admitted)
    last = max(row[2] for row in usage)
    assert [row[6] for row in usage if row[:3] == ("job", "job", last)] == [0]
    status = throttle.status(query)
    assert status.batch_id == last
    assert status.of_level("resource_group")["g"].messages_per_second == 20
    assert status.of_level("tenant")["bad"].messages_per_second == 0
    assert status.of_level("job")["job"].messages_per_second is None
    assert status.of_level("job")["job"].admitted_messages == total_of_batch(usage, last)
    with pytest.raises(ConfigurationError, match="was not started by this throttle"):
        lake.throttle({}).status(query)


def total_of_batch(usage: list[tuple[Any, ...]], batch: int) -> int:
    """Return what the job admitted in a batch."""
    return sum(row[4] for row in usage if row[0] == "job" and row[2] == batch)
