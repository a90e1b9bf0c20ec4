"""A table took a batch if its log says so, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.spark.delta.table_log import append_batch, open_table
from spark_throttle.spark.sinks import taken_batch
from spark_throttle.spark.sinks.taken_batch import check_taken
from tests.object_store import object_store
from tests.spark.delta.delta_tables import make_table, mark_of, note_opened

ROWS = StructType().add("id", "long")
NO_SPARK = cast("SparkSession", None)


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    taken_batch._SEEN.clear()
    yield
    taken_batch._SEEN.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the locations of the tables that are opened, as they come."""
    return note_opened(monkeypatch, taken_batch)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return make_table(tmp_path / "lake", ROWS)


def write(location: object, batch: int, identity: str = "a", query: str = "q") -> None:
    """Commit a batch as Spark's writer does."""
    found = open_table(str(location))
    assert found is not None
    append_batch(found, str(location), mark_of(batch, identity, query), [])


def check(location: object, batch: int, identity: str = "a") -> None:
    check_taken(NO_SPARK, str(location), None, mark_of(batch, identity))


def test_batch_is_found_in_the_next_entry_of_the_log(table: Path, opened: list[str]) -> None:
    for batch in range(4):
        write(table, batch)
        check(table, batch)
        write(table, batch, query="other")
    assert opened == [str(table)]


@pytest.mark.slow
def test_batch_is_found_on_an_object_store_by_two_requests(monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    with object_store(monkeypatch) as store:
        first = f"{0:020}.json"
        store.objects[f"lake/_delta_log/{first}"] = (table / "_delta_log" / first).read_bytes()
        for batch in range(4):
            write("s3://lake/lake", batch)
            store.requests.clear()
            check("s3://lake/lake", batch)
        assert store.counted() == {"HEAD": 1, "GET": 1}


def test_another_batch_in_the_next_entry_is_refused(table: Path) -> None:
    write(table, 0)
    check(table, 0)
    write(table, 1, "b")
    with pytest.raises(CheckpointMismatchError, match="already has a batch 1 of this query, decided from other rows"):
        check(table, 1)


def test_batch_of_a_number_that_the_table_had_before_is_refused(table: Path) -> None:
    for batch in range(3):
        write(table, batch)
        check(table, batch)
    with pytest.raises(CheckpointMismatchError, match="already has batch 2 of this query, which now comes to batch 1"):
        check(table, 1, "b")


def test_batch_that_an_earlier_attempt_wrote_is_taken(table: Path) -> None:
    write(table, 0)
    check(table, 0)
    check(table, 0)
    write(table, 1)
    check(table, 1)


@pytest.mark.parametrize("others", [0, 1, 3, 20])
def test_batch_is_found_in_a_table_that_was_made_again(table: Path, others: int) -> None:
    for batch in range(2):
        write(table, batch)
        check(table, batch)
    shutil.rmtree(table)
    make_table(table, ROWS)
    for number in range(others):
        write(table, number, query="other")
    write(table, 2)
    check(table, 2)


def test_table_that_python_cannot_read_is_asked_for_through_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Spark:
        def sql(self, text: str) -> Spark:
            asked.append(text)
            return self

        def collect(self) -> list[dict[str, Any]]:
            return [{"userMetadata": mark_of(1, "b").to_text()}]

    monkeypatch.setattr(taken_batch, "open_table", lambda _: None)
    with pytest.raises(CheckpointMismatchError):
        check_taken(cast("SparkSession", Spark()), "/lake/x", None, mark_of(1))
    assert asked == ["DESCRIBE HISTORY delta.`/lake/x` LIMIT 100"]
