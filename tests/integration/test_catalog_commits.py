"""A Delta table whose catalog commits takes every row once, though its log alone is older than the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.spark.sinks.targets import Target
from tests.catalog_commits import STAGED, create_table
from tests.integration.streams import Lake, finish, policies
from tests.sessions import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not DELTA, reason="there is no Delta for this Spark")]


@pytest.fixture
def table(spark: SparkSession, lake: Lake) -> Iterator[str]:
    """Yield the name of such a table."""
    create_table(spark, "catalog_commits", "id bigint, ns string, size bigint", lake.root / "admitted")
    yield "catalog_commits"
    spark.sql("DROP TABLE catalog_commits")


def run(lake: Lake, table: str) -> None:
    finish(lake.writer(lake.throttle(policies())).toTable(table))


def test_run_that_ends_before_its_batch_is_committed_writes_it_once(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        lake.offer([(number, "t/a", 1)])
    run(lake, table)
    lake.offer([(7, "t/a", 1)])
    with monkeypatch.context() as patch:
        patch.setattr("spark_throttle.spark.sinks.batch_sink.write_report", Mock(side_effect=OSError("gone")))
        with pytest.raises(StreamingQueryException, match="gone"):
            run(lake, table)
    run(lake, table)
    assert sorted(row[0] for row in lake.spark.table(table).select("id").collect()) == list(range(8))
    log = lake.root / "admitted" / "_delta_log"
    assert len(list((lake.root / "admitted" / STAGED).iterdir())) > 0
    assert len(list(log.glob("*.json"))) < 9


def test_other_batch_of_a_number_that_it_has_is_refused(lake: Lake, table: str) -> None:
    """Delta skips it in silence, and the log does not have the one that it took."""
    for number in range(8):
        lake.offer([(number, "t/a", 1)])
    run(lake, table)
    marks = lake.spark.sql(f"DESCRIBE HISTORY {table}").select("userMetadata").collect()
    newest = next(mark for row in marks if (mark := parse_mark(row[0])) is not None)
    rows = lake.spark.table(table).where("id = 0")
    with pytest.raises(CheckpointMismatchError, match=f"already has a batch {newest.batch} of this query"):
        Target("delta", table=table).write(rows, BatchMark(newest.query, newest.batch, "another"))
