"""Delta tables that take staged files as they lie: which they are, and what Spark reads of them."""

from __future__ import annotations

import logging
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from spark_throttle.errors import ConfigurationError
from tests.integration.streams import SCHEMA, Lake, finish, policies, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

BAD = {"bad": publish(messages_per_second=0, on_excess="reject")}
HALF_REJECTED = policies(tenants=BAD)
FILES, SPARKS = "from staged files to the table (it takes files as they lie)", "from staged files to Spark's writer"

TYPED = """
  select cast(id as long) id, concat('t/', cast(id % 2 as string)) ns,
    timestamp_micros(id * 1000001 - 62135596800000000) t, timestamp'9999-12-31 23:59:59.999999' far,
    timestamp_ntz'2024-01-01 00:00:00.999999' + make_dt_interval(0, 0, 0, id) n,
    cast(id / 7 as decimal(9,2)) d, cast(-id / 7 as decimal(38,10)) wide, cast(id as tinyint) tiny,
    if(id = 3, float('nan'), float(id)) f, if(id = 5, double('-inf'), double(id)) x,
    if(id = 2, null, repeat(concat('é', id), 30)) s, cast(concat('b', id) as binary) b, id = 1 bo,
    date_add(date'1500-01-01', cast(id as int)) da,
    named_struct('a', id, 'b', if(id = 1, null, array(id, null)), 'c', named_struct('d', float(id))) st,
    map('k', array(named_struct('v', id))) m, array(cast(null as string), 'x') ar
  from range(8)
"""
QUESTIONS = (
    "t < timestamp'0001-01-01 00:00:03'", "far = timestamp'9999-12-31 23:59:59.999999'",
    "n >= timestamp_ntz'2024-01-01 00:00:07.999999'", "wide < -0.9", "f > 100", "s > 'é6é6'", "st.c.d > 6.5",
    "id > 4", "d > 0.5", "x > 6", "f < 1", "x < 0", "bo", "s is null", "s = repeat('é4', 30)", "da = date'1500-01-08'",
    "st.a = 7", "b = binary('b1')",
)  # fmt: skip
SKIPPED = 7
"""So many of the questions are easily answered wrong from the least and largest value of a file."""


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_throttle.spark.writer")


def run(
    lake: Lake,
    *,
    where: str | None = None,
    partition: Sequence[str] = (),
    has_usage: bool = True,
    limits: Any = HALF_REJECTED,
) -> None:
    """Run a query into Delta until it ends by itself; dead letters where they are kept by default."""
    stream = lake.writer(lake.throttle(limits)).format("delta").partitionBy(*partition)
    if has_usage:
        stream = stream.usage(lake.path("usage"))
    finish(stream.start(where or lake.path("out")))


def read(lake: Lake, name: str = "out") -> DataFrame:
    return lake.spark.read.format("delta").load(lake.path(name))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row["id"] for row in rows.select("id").collect())


def stored_ids(lake: Lake) -> list[int]:
    """Return the ids in the sink, where it is not Spark's reading that is in question: that takes a second."""
    return sorted(DeltaTable(lake.path("out")).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def taken(caplog: pytest.LogCaptureFixture) -> str:
    """Return what the log says last of the way of rows to the sink."""
    return [record.getMessage() for record in caplog.records if "rows go from" in record.getMessage()][-1]


def make(lake: Lake, columns: str, rest: str = "") -> str:
    path = lake.path("out")
    lake.spark.sql(f"create table delta.`{path}` ({columns}) using delta {rest}")
    return path


def test_rows_read_back_as_sparks_writer_would_have_written_them(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    lake.spark.sql(TYPED).coalesce(1).write.parquet(lake.path("events"))
    lake.spark.sql(TYPED).coalesce(1).write.format("delta").save(lake.path("sparks"))
    expected = read(lake, "sparks")
    events = lake.spark.readStream.schema(expected.schema).parquet(lake.path("events"))
    columns = [*expected.columns[:-2], "to_json(struct(m, ar))"]
    asked = [f"count_if({question})" for question in QUESTIONS]
    (counts,) = expected.selectExpr(*asked).collect()
    writer = lake.throttle({}, size=None).write_stream(events).format("delta")
    writer = writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True)
    finish(writer.start(lake.path("out")))
    assert FILES in taken(caplog)
    found = read(lake)
    assert found.schema == expected.schema
    assert DeltaTable(lake.path("out")).protocol() == DeltaTable(lake.path("sparks")).protocol()
    assert found.selectExpr(*columns).exceptAll(expected.selectExpr(*columns)).count() == 0
    assert found.count() == 8
    assert found.selectExpr(*asked).collect() == [counts]
    # Each alone is answered by skipping files.
    alone = [found.where(question).selectExpr(f"{at}", "count(*)") for at, question in enumerate(QUESTIONS[:SKIPPED])]
    assert dict(map(tuple, reduce(DataFrame.unionAll, alone).collect())) == dict(enumerate(counts[:SKIPPED]))


def test_partitioned_table_is_sparks_and_is_read_by_its_partitions(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """No quota on time: no sink is charged."""
    rows = [(1, "good/a b%", 10), (2, "bad/a", 20), (3, "good/é", 30), (4, "good/a b%", 40)]
    lake.offer([*rows, (7, "slow/a", 70), (8, "good/\0", 80)])
    run(lake, partition=["ns"], limits=policies(tenants={"slow": publish(messages_per_second=0), **BAD}))
    assert f"{SPARKS} (the sink is partitioned by ['ns'])" in taken(caplog)
    assert len(DeltaTable(lake.path("out")).file_uris()) == 2
    assert not list((lake.control / "batches").glob("*.charges.*"))
    lake.offer([(5, "good/é", 50), (6, "bad/b", 60)])
    run(lake)
    found = read(lake)
    assert sorted(map(tuple, found.collect())) == [
        (1, "good/a b%", 10), (3, "good/é", 30), (4, "good/a b%", 40), (5, "good/é", 50), (7, "slow/a", 70)
    ]  # fmt: skip
    assert ids(found.where("ns = 'good/é'")) == [3, 5]
    assert DeltaTable(lake.path("out")).metadata().partition_columns == ["ns"]
    assert len(list((lake.root / "out").glob("ns=good%2Fa b%25/*.parquet"))) == 1
    assert lake.rejected_ids == [2, 6, 8]
    assert lake.reasons == {"quota", "partition_unwritable"}
    with pytest.raises(ConfigurationError, match=r"is partitioned by \['ns'\] and partitionBy says \['id'\]"):
        run(lake, partition=["id"])


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(lake: Lake) -> None:
    make(lake, "id long, ns string, size string")
    lake.offer([(1, "good/a", 10)])
    with pytest.raises(ConfigurationError, match="has the column 'size' as string and the rows have it as long: cast"):
        run(lake)
    assert not (lake.root / "checkpoint").exists()
    assert DeltaTable(lake.path("out")).version() == 0


@pytest.mark.thorough
def test_schema_that_is_to_be_merged_is_sparks(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    make(lake, "id long, ns string")
    lake.offer([(1, "good/a", 10)])
    with pytest.raises(ConfigurationError, match=r"has no column 'size', which the rows have: .*mergeSchema"):
        run(lake)
    stream = lake.writer(lake.throttle(HALF_REJECTED)).format("delta").option("mergeSchema", True)
    finish(stream.start(lake.path("out")))
    assert f"{SPARKS} (the sink: it has the option 'mergeSchema'" in taken(caplog)
    assert [tuple(row) for row in read(lake).collect()] == [(1, "good/a", 10)]


@pytest.mark.thorough
def test_column_mapped_table_is_left_to_spark(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    make(lake, "id long, ns string, size long", "tblproperties('delta.columnMapping.mode' = 'name')")
    lake.offer([(1, "good/a", 10), (2, "bad/a", 20)])
    run(lake)
    assert f"{SPARKS} (the sink {lake.path('out')}: it uses column mapping" in taken(caplog)
    assert [tuple(row) for row in read(lake).collect()] == [(1, "good/a", 10)]
    assert lake.rejected_ids == [2]
    # The usage table is not mapped, and costs no Spark job.
    assert DeltaTable(lake.path("usage")).history(1)[0]["engineInfo"].startswith("delta-rs")
    assert (0, "job", "job", 2, 1, 1) in usage(lake)


def test_table_may_change_sides_in_the_middle_of_a_batch(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever of a batch was committed before a crash in one way is not committed again in the other.

    Without a usage table, which would have the batches after it too: then it is no crash, and is refused.
    """
    expected = []
    for turn, (first, second) in enumerate([(FILES, SPARKS), (SPARKS, FILES)]):
        lake.offer([(10 * turn + 1, "good/a", 1), (10 * turn + 2, "bad/a", 2), (10 * turn + 3, "good/b", 3)])
        expected += [10 * turn + 1, 10 * turn + 3]
        start = lake.last_batch() + 1 if turn else 0
        run(lake, has_usage=False)
        assert first in taken(caplog)
        for name in (lake.control / "batches").iterdir():
            if int(name.name.partition(".")[0]) >= start:
                name.unlink()
        lake.crash_in(start)
        alter = DeltaTable(lake.path("out")).alter
        alter.drop_constraint("positive") if turn else alter.add_constraint({"positive": "id > 0"})
        run(lake, has_usage=False)
        assert second in taken(caplog)
        assert stored_ids(lake) == expected
        assert lake.rejected_ids == [10 * n + 2 for n in range(turn + 1)]


def usage(lake: Lake) -> list[tuple[Any, ...]]:
    columns = ["batch_id", "level", "scope", "offered_messages", "admitted_messages", "rejected_messages"]
    found = DeltaTable(lake.path("usage")).to_pyarrow_table(columns=columns).to_pylist()
    return sorted(tuple(row.values()) for row in found)


@pytest.mark.thorough
def test_table_that_others_change_meanwhile_takes_the_rows(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Deleted by vectors, fed to a change feed, checkpointed every other commit: appends go on.

    The second append finds all of it.
    """
    properties = {"enableDeletionVectors": "true", "enableChangeDataFeed": "true", "checkpointInterval": "2"}
    listed = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    path = make(lake, "id long, ns string, size long", f"tblproperties({listed})")
    for number in range(2):
        lake.offer([(10 * number + i, "good/a", 1) for i in range(4)])
        run(lake, has_usage=False)
        assert FILES in taken(caplog)
        if number == 0:
            others = lake.spark.createDataFrame([(100, "other", 0)], SCHEMA)
            others.write.format("delta").mode("append").save(path)
            lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")  # noqa: S608 - a path of this test
    assert ids(read(lake)) == [0, 2, 3, 10, 11, 12, 13, 100]
    changes = lake.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(path)
    counts = {row["_change_type"]: row["count"] for row in changes.groupBy("_change_type").count().collect()}
    assert counts == {"insert": 9, "delete": 1}
    assert list(Path(path, "_delta_log").glob("*.checkpoint*.parquet"))
