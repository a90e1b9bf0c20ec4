"""Each line of the table of restarts (`restarts`): what works leaves every row that waited once; the rest is refused.

One query is run once, and stopped with rows waiting. Every start is of a changed job on a copy of what it left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.offset_log import read_offset_log
from spark_throttle.errors import ConfigurationError, DrainedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark import drain
from spark_throttle.spark.reference_pipeline import REFERENCES, way_of
from tests.integration.restarts import BAD, CAME, LINES, OPEN, REFUSALS, SHUT, WAITED, Job, Line, Refusal, columns_of
from tests.integration.streams import SCHEMA, Lake, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows: TypeAlias = list[dict[str, Any]]

ADMITTED_BEFORE = 100


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return what a query has left that was stopped with rows waiting; more rows have come since."""
    lake = Lake(spark, tmp_path_factory.mktemp("stopped"))
    lake.offer([*((number, "t/n", 10) for number in WAITED), (ADMITTED_BEFORE, "free/n", 10)])
    finish(Job(lake, lake, columns_of(lake.events()), SHUT).start())
    lake.offer([*((number, "t/n", 10) for number in CAME), (BAD, "bad/n", 10)])
    return lake


@pytest.fixture
def job(stopped: Lake, tmp_path: Path, much_later: None) -> Iterator[Job]:
    """Yield the job on a copy of its checkpoint and its table."""
    for name in ("checkpoint", "admitted"):
        shutil.copytree(stopped.root / name, tmp_path / name)
    lake = Lake(stopped.spark, tmp_path)
    yield Job(lake, stopped, columns_of(stopped.events()))
    for query in lake.spark.streams.active:
        query.stop()


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session, and put back what was set before."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def run(job: Job) -> None:
    """Run a job until nothing more happens."""
    with settings(job.lake.spark, job.settings):
        query = job.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


def table_of(job: Job, name: str) -> Rows:
    rows: Rows = DeltaTable(job.lake.path(name)).to_pyarrow_table().to_pylist()
    return rows


def ids(rows: Rows) -> list[int]:
    return sorted(row["id"] for row in rows)


def columns(job: Job) -> None:
    found = DeltaTable(job.lake.path("other")).to_pyarrow_table()
    rows = sorted(found.to_pylist(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == [*WAITED, *CAME]
    assert [row["x"] for row in rows] == [None] * 6 + ["new"] * 3
    assert [row["one"] for row in rows] == [None] * 6 + [1] * 3
    assert [row["number"] for row in rows] == [*WAITED, *CAME]
    assert [row["large"] - 2**40 for row in rows] == [*WAITED, *CAME]
    assert [str(found.schema.field(name).type) for name in ("id", "number")] == ["int32", "int64"]
    assert found.schema.names == ["one", "x", "large", "number", "size", "ns", "id"]


def expressions(job: Job) -> None:
    assert ids(table_of(job, "admitted")) == [0, 1, 2, 7, 8, BAD, ADMITTED_BEFORE]
    usage = [row for row in table_of(job, "usage") if row["level"] == "namespace"]
    totals = {
        scope: (
            sum(row["admitted_messages"] for row in usage if row["scope"] == scope),
            sum(row["admitted_bytes"] for row in usage if row["scope"] == scope),
        )
        for scope in ("t/n", "new/7")
    }
    assert totals == {"t/n": (3, 30), "new/7": (1, 1000)}


def surroundings(job: Job) -> None:
    assert ids(table_of(job, "admitted")) == [*WAITED, *CAME, ADMITTED_BEFORE]
    assert ids(table_of(job, "rejected")) == [BAD]


def formats(job: Job) -> None:
    rows = pads.dataset(job.lake.path("files"), partitioning="hive").to_table().to_pylist()
    assert sorted((row["id"], row["ns"]) for row in rows) == [(number, "t/n") for number in (*WAITED, *CAME)]
    offsets = (job.lake.root / "checkpoint" / "offsets" / str(job.lake.last_batch())).read_text().splitlines()
    conf = json.loads(offsets[1])["conf"]
    assert conf["spark.sql.shuffle.partitions"] == "1"
    assert "HDFSBacked" in conf["spark.sql.streaming.stateStore.providerClass"]


def function(job: Job) -> None:
    admitted = [(row[0], row[-1]) for row in job.lake.admitted]
    assert sorted(admitted) == [*((number, None) for number in WAITED), *((number, 1) for number in CAME)]


CHECKS: dict[str, Callable[[Job], None]] = {
    check.__name__: check for check in (columns, expressions, surroundings, formats, function)
}
STARTS = [[line for line in LINES if line.together == name] for name in CHECKS]


@pytest.mark.parametrize("lines", STARTS, ids=list(CHECKS))
def test_changes_that_work_let_every_waiting_row_leave_once(job: Job, lines: list[Line]) -> None:
    check = CHECKS[lines[0].together]
    for line in lines:
        job = line.made(job)
    run(job)
    check(job)


def test_every_line_is_made_by_some_start() -> None:
    assert sorted(line.change for lines in STARTS for line in lines) == sorted(line.change for line in LINES)


def files(root: Path) -> dict[str, int]:
    """Return the files below a directory, with their sizes."""
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.change)
def test_change_that_does_not_work_is_refused_before_anything_is_written(job: Job, refusal: Refusal) -> None:
    changed = refusal.made(job)
    before = files(job.lake.root)
    committed = read_offset_log(Directory(job.lake.checkpoint)).committed
    with settings(job.lake.spark, changed.settings):
        if refusal.is_sparks:
            query = changed.start_plain() if refusal.is_plain else changed.start()
            with pytest.raises(StreamingQueryException, match=refusal.words):
                finish(query)
            assert table_of(job, "admitted") == table_of(Job(job.source, job.source, job.events), "admitted")
        else:
            with pytest.raises(refusal.error, match=refusal.words):
                changed.start()
            assert files(job.lake.root) == before
    assert read_offset_log(Directory(job.lake.checkpoint)).committed == committed


def test_column_may_go_once_no_row_waits_with_it(job: Job) -> None:
    run(job)
    run(job.over(lambda events: events.drop("number")))
    assert ids(table_of(job, "admitted")) == [*WAITED, *CAME, ADMITTED_BEFORE]


def test_checkpoint_that_was_drained_is_refused_and_its_rows_are_in_the_table(job: Job) -> None:
    drained = drain(job.lake.spark, job.lake.checkpoint, job.lake.path("waiting"))
    assert ids(table_of(job, "waiting")) == list(WAITED)
    assert drained.messages == len(WAITED)
    with pytest.raises(DrainedError, match=r"was drained at batch \d+: .* start with a new checkpoint"):
        job.start()


def test_throttle_on_the_checkpoint_of_a_query_without_one_is_refused(lake: Lake) -> None:
    lake.offer([(0, "t/n", 10)])
    job = Job(lake, lake, columns_of(lake.events()))
    finish(job.start_plain())
    before = files(lake.root)
    with pytest.raises(
        ConfigurationError, match=r"is of a query without the throttle, which has planned batch 0, .* new checkpoint"
    ):
        job.start()
    with pytest.raises(ConfigurationError, match="is of a query without the throttle"):
        lake.throttle({}).apply(job.events, control_path=str(lake.control))
    assert files(lake.root) == before


def test_rows_that_wait_as_references_leave_with_the_columns_of_the_new_stream(lake: Lake) -> None:
    lake.offer([*((number, "t/n", 10) for number in WAITED), (ADMITTED_BEFORE, "free/n", 10)])

    def referred(document: Any, schema: str = SCHEMA, **arguments: Any) -> Job:
        stream = lake.throttle(document).read_stream(lake.spark).schema(schema).parquet(lake.path("events"))
        return Job(lake, lake, stream, document, arguments).told(format=("parquet",))

    finish(referred(SHUT).over(lambda stream: stream.withColumn("number", F.expr("id"))).start())
    assert way_of(str(lake.control)) == REFERENCES
    with pytest.raises(ConfigurationError, match=r"^the checkpoint began with references, .* throttle\.read_stream"):
        replace(referred(OPEN), events=lake.events()).start()
    with pytest.raises(ConfigurationError, match=r"column 'id' is int64 in rows that wait .*, and timestamp"):
        referred(OPEN, SCHEMA.replace("id long", "id timestamp")).start()
    changed = referred(OPEN, order_by=["size"], namespace="concat('new/', ns)", size="id")
    changed = changed.over(lambda stream: stream.withColumn("x", F.expr("id * 2")))
    finish(replace(changed, sink="other").start())
    left = pads.dataset(lake.path("other")).to_table()
    assert sorted(left.column("x").to_pylist()) == [2 * number for number in WAITED]
    assert "number" not in left.column_names
