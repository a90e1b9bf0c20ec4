"""A sink that remembers the batch with its rows takes every row once; one in SQLite, and Iceberg where there is one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.targets import Target
from spark_throttle.spark.sinks.transactional import IcebergTable, TransactionalSink, commit_once
from spark_throttle.testing import SinkSuite
from tests.integration.streams import Lake, finish, policies
from tests.sessions import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

needs_iceberg = pytest.mark.skipif(not ICEBERG, reason="there is no runtime of Iceberg for this Spark")


@dataclass
class SqliteSink:
    """A table of a database on the driver."""

    path: Path
    falls: bool = False
    """Whether it fails once its transaction is committed, as a process that is killed there."""

    def __post_init__(self) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER, namespace TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS marks (query TEXT PRIMARY KEY, mark TEXT)")

    def newest_mark(self, query: str) -> str | None:
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute("SELECT mark FROM marks WHERE query = ?", [query]).fetchone()
        return None if found is None else str(found[0])

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:  # one transaction
            db.executemany("INSERT INTO events VALUES (?, ?)", ((row[0], row[1]) for row in rows.toLocalIterator()))
            db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", [query, mark])
        if self.falls:
            raise OSError("the connection is gone")

    def ids(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as db:
            return [row[0] for row in db.execute("SELECT id FROM events ORDER BY id")]


class TestSqlite(SinkSuite):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> Callable[[], TransactionalSink]:
        return lambda: SqliteSink(tmp_path / "events.db")

    @pytest.fixture
    def ids(self, tmp_path: Path) -> Callable[[], list[int]]:
        return SqliteSink(tmp_path / "events.db").ids


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """Yield the name of an Iceberg table."""
    name = "lake.db.events"
    spark.sql(f"CREATE TABLE {name} (id bigint, namespace string) USING iceberg")
    yield name
    spark.sql(f"DROP TABLE {name}")


@needs_iceberg
class TestIceberg(SinkSuite):
    @pytest.fixture
    def open_again(self, spark: SparkSession, table: str) -> Callable[[], TransactionalSink]:
        return lambda: IcebergTable(spark, table, None, {}, Target("iceberg", table=table)._append)

    @pytest.fixture
    def ids(self, spark: SparkSession, table: str) -> Callable[[], list[int]]:
        return lambda: [row[0] for row in spark.table(table).select("id").collect()]


@needs_iceberg
@pytest.mark.parametrize("name", ["lake.db.events", "lake.db.begun"])
def test_run_that_stood_still_while_its_successor_wrote_the_batch_adds_nothing_to_an_iceberg_table(
    spark: SparkSession, table: str, name: str
) -> None:  # `table` makes the first
    """The first table is there, the second is made."""
    rows = spark.range(3).selectExpr("id", "'a' AS namespace")

    def sink() -> IcebergTable:
        return IcebergTable(spark, name, None, {}, Target("iceberg", table=name)._append)

    def rows_of_the_late() -> DataFrame:
        commit_once(sink(), "the sink", lambda: rows, BatchMark("q", 0, "a"))
        return rows

    commit_once(sink(), "the sink", rows_of_the_late, BatchMark("q", 0, "a"))
    assert sorted(row[0] for row in spark.table(name).select("id").collect()) == [0, 1, 2]
    spark.sql("DROP TABLE IF EXISTS lake.db.begun")


@needs_iceberg
def test_iceberg_table_to_which_others_append_all_the_time_takes_a_batch_once(spark: SparkSession, table: str) -> None:
    append = Target("iceberg", table=table)._append
    tries: list[int] = []

    def rows() -> DataFrame:
        tries.append(100 + len(tries))
        append(spark.createDataFrame([(tries[-1], "b")], "id bigint, namespace string"), {})
        return spark.createDataFrame([(1, "a")], "id bigint, namespace string")

    commit_once(IcebergTable(spark, table, None, {}, append), "the sink", rows, BatchMark("q", 0, "a"))
    assert sorted(row[0] for row in spark.table(table).select("id").collect()) == [1, *tries]
    assert len(tries) == 4


def run(lake: Lake, sink: TransactionalSink) -> None:
    finish(lake.writer(lake.throttle(policies())).transactional(sink).start())


def test_batch_whose_commit_was_the_last_that_a_run_did_is_not_written_again(lake: Lake) -> None:
    path = lake.root / "events.db"
    lake.offer([(1, "t/a", 1), (2, "t/b", 1)])
    with pytest.raises(StreamingQueryException, match="the connection is gone"):
        run(lake, SqliteSink(path, falls=True))
    lake.offer([(3, "t/a", 1)])
    run(lake, SqliteSink(path))
    assert SqliteSink(path).ids() == [1, 2, 3]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "parquet"}, r"transactional\(sink\) is the query's sink, and so is format\('parquet'\)"),
        ({"path": "/tmp/x"}, r"so is the place '/tmp/x'"),  # noqa: S108 - nothing is written there
        ({"mergeSchema": True}, r"has no use for the option 'mergeSchema'; give it to the sink itself"),
    ],
)
def test_what_a_transactional_sink_does_not_take_is_refused(lake: Lake, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        lake.writer(lake.throttle(policies())).transactional(SqliteSink(lake.root / "x.db")).start(**more)


def test_sink_that_makes_marks_up_is_refused(lake: Lake) -> None:
    sink = SqliteSink(lake.root / "x.db")
    sink.newest_mark = lambda query: f"the newest of {query}"  # type: ignore[method-assign]
    lake.offer([(1, "t/a", 1)])
    with pytest.raises(StreamingQueryException, match="the sink SqliteSink returned 'the newest of"):
        run(lake, sink)


@needs_iceberg
def test_iceberg_table_takes_every_row_once_though_a_run_ends_before_its_batch_is_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_table() -> None:
        writer = lake.writer(lake.throttle(policies())).format("iceberg").partitionBy("ns")
        finish(writer.rejected("iceberg", table="lake.db.rejected").toTable("lake.db.admitted"))

    lake.offer([(1, "t/a", 1), (2, "t/b", 1), (3, "t/c", -1)])
    with monkeypatch.context() as patch:
        patch.setattr("spark_throttle.spark.sinks.batch_sink.write_report", Mock(side_effect=OSError("gone")))
        with pytest.raises(StreamingQueryException, match="gone"):
            to_table()
    lake.offer([(4, "t/a", 1)])
    to_table()
    for name, wanted in (("admitted", [1, 2, 4]), ("rejected", [3])):
        assert sorted(row[0] for row in lake.spark.table(f"lake.db.{name}").select("id").collect()) == wanted
        lake.spark.sql(f"DROP TABLE lake.db.{name}")
