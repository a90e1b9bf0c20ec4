"""A checkpoint that was put back or copied, with Spark: refused until its tables are put back too, and then right."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError
from spark_throttle.spark.sinks import taken_batch
from spark_throttle.spark.sinks.targets import Target
from spark_throttle.spark.start.executors import look
from spark_throttle.spark.start.spark_paths import SparkPaths
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish, policies, publish
from tests.spark.delta.delta_tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HALF_REJECTED = policies(tenants={"bad": publish(messages_per_second=0, on_excess="reject")})


def run(lake: Lake, table: str) -> None:
    stream = lake.writer(lake.throttle(HALF_REJECTED)).format("delta")
    finish(stream.partitionBy(*(("ns",) if table == "partitioned" else ())).start(lake.path("out")))


def ids(lake: Lake) -> list[int]:
    return [row[0] for row in rows_of(Path(lake.path("out")), "id")]


@pytest.mark.parametrize(("table", "is_whole"), thorough_after(1, [("whole", False), ("partitioned", True)]))
def test_checkpoint_that_was_put_back_is_refused_and_right_once_its_table_is_restored(
    lake: Lake, table: str, *, is_whole: bool
) -> None:
    """
    Put back whole, or Spark's part of it, with the control directory left as it was.
    See <https://github.com/apache/iceberg/issues/8809>: what a sink has of a checkpoint that is gone.
    """
    lake.offer([(1, "good/a", 1), (2, "bad/a", 2)])
    run(lake, table)
    known = DeltaTable(lake.path("out")).version()
    checkpoint, backup = Path(lake.checkpoint), lake.root / "backup"
    shutil.copytree(checkpoint, backup)
    for number in (3, 5):
        lake.offer([(number, "good/a", 1), (number + 1, "bad/a", 2)])
    run(lake, table)
    assert ids(lake) == [1, 3, 5]
    if not is_whole:
        shutil.rmtree(backup / "throttle")
        shutil.copytree(lake.control, backup / "throttle")
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    lake.offer([(7, "good/a", 1)])
    with pytest.raises(StreamingQueryException, match=rf"CheckpointMismatchError.* TO VERSION AS OF {known}"):
        run(lake, table)
    assert ids(lake) == [1, 3, 5]
    if table == "partitioned":
        lake.spark.sql(f"RESTORE TABLE delta.`{lake.path('out')}` TO VERSION AS OF {known}")
    else:
        DeltaTable(lake.path("out")).restore(known)
    run(lake, table)
    assert ids(lake) == [1, 3, 5, 7]
    assert lake.rejected_ids == [2, 4, 6]


@pytest.mark.parametrize("is_seen_by_spark_alone", thorough_after(1, [True, False]))
def test_batch_that_sparks_writer_skips_is_looked_at(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_seen_by_spark_alone: bool
) -> None:
    """Delta says nothing of a batch of a number that it has, whatever rows it is given."""
    if is_seen_by_spark_alone:
        monkeypatch.setattr(taken_batch, "open_table", lambda _: None)
    target = Target("delta", path=str(tmp_path / "out"))
    rows = spark.createDataFrame([(1,)], "id long")
    for _ in range(2):
        target.write(rows, BatchMark("q", 3, "a"))
    other = BatchMark("q", 3, "b")
    with pytest.raises(CheckpointMismatchError, match=r"already has a batch 3 of this query, decided from other rows"):
        target.write(spark.createDataFrame([(2,)], "id long"), other)
    with pytest.raises(CheckpointMismatchError, match="already has batch 3 of this query, which now comes to batch 2"):
        target.write(spark.createDataFrame([(2,)], "id long"), BatchMark("q", 2, "c"))
    assert rows_of(tmp_path / "out") == [(1,)]
    Target("delta", {"userMetadata": "mine"}, path=str(tmp_path / "out")).write(rows, BatchMark("q", 4, "d"))
    assert DeltaTable(tmp_path / "out").history(1)[0]["userMetadata"] == "mine"


def test_path_is_resolved_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    paths = SparkPaths(spark)
    assert paths.resolve("/lake/a b{c}*") == "/lake/a b{c}*"
    assert paths.resolve("s3a://lake/x") == "s3a://lake/x"
    here = paths.resolve("some/where")
    assert here.endswith("/some/where")
    assert Path(here).is_absolute()
    spark.conf.set("fs.defaultFS", "nowhere://lake")
    try:
        with pytest.raises(ConfigurationError, match=r"does not say where '/x' is .* give the path with its scheme"):
            SparkPaths(spark).resolve("/x")
    finally:
        spark.conf.unset("fs.defaultFS")


def test_what_executors_do_not_see_is_named(spark: SparkSession, tmp_path: Path) -> None:
    assert look(spark, str(tmp_path / "control")) == []
    ((_, path),) = look(spark, str(tmp_path / "control"), [str(tmp_path / "elsewhere")])
    assert path == str(tmp_path / "elsewhere" / "_delta_log")
    assert list((tmp_path / "control").iterdir()) == []


@pytest.mark.thorough
def test_relative_checkpoint_is_one_place_wherever_python_is(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's JVM stays where it was started; Python's own directory may change between two starts, and does here."""
    below = Path(SparkPaths(lake.spark).resolve("x")).parent
    name = os.path.relpath(tmp_path, below)
    events: list[Any] = [[(1, "good/a", 1), (2, "bad/a", 2)], [(3, "good/a", 1), (4, "bad/a", 2)]]
    for number, rows in enumerate(events):
        (tmp_path / f"from{number}").mkdir()
        monkeypatch.chdir(tmp_path / f"from{number}")
        lake.offer(rows)
        stream = lake.throttle(HALF_REJECTED).write_stream(lake.events()).trigger(availableNow=True).format("delta")
        finish(stream.option("checkpointLocation", f"{name}/checkpoint").start(f"{name}/out"))
    assert (ids(lake), lake.rejected_ids) == ([1, 3], [2, 4])
    assert [list((tmp_path / f"from{number}").iterdir()) for number in range(2)] == [[], []]
