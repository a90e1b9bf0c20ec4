"""Tables that stay open from batch to batch: few requests, and nothing that others do to a table is missed."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    ForeignFilesError,
    TableOutOfReachError,
)
from spark_throttle.spark.delta import table_log
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.delta.table_log import append_batch, append_to_table, has_batch, open_table
from tests.object_store import object_store
from tests.spark.delta.delta_tables import make_table, mark_of, note_opened

ROWS = StructType().add("id", "long")
QUERY = "q"


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    table_log._KEPT.clear()
    yield
    table_log._KEPT.clear()


@pytest.mark.parametrize(
    ("problem", "kind", "remedy"),
    [
        ("Error performing GET http://h/l in 2.6s, after 10 retries, max_retries: 10 - error sending request",
         TableOutOfReachError, "start again when it does"),
        ("Error performing GET http://169.254.169.254/latest, after 10 retries, max_retries: 10",
         ForeignFilesError, "use Spark's writer"),
        ("Client error with status 403 Forbidden", ForeignFilesError, "use Spark's writer"),
    ],
)  # fmt: skip
def test_store_that_does_not_answer_is_told_from_one_that_only_spark_may_read(
    monkeypatch: pytest.MonkeyPatch, problem: str, kind: type[Exception], remedy: str
) -> None:
    def refuse(_location: str, **_named: object) -> DeltaTable:
        raise OSError(f"Generic S3 error\n  ↳ {problem}")

    monkeypatch.setattr(deltalake, "DeltaTable", refuse)
    with pytest.raises(ForeignFilesError, match=remedy) as refused:
        open_table("/lake/orders")
    assert type(pickle.loads(pickle.dumps(refused.value))) is kind  # noqa: S301 - what was just made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the locations of the tables that are opened anew, as they come."""
    return note_opened(monkeypatch, table_log)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return make_table(tmp_path / "lake", ROWS)


def file_of(mark: BatchMark) -> WrittenFile:
    """Return a file of one row, which nobody reads."""
    return WrittenFile(f"{mark.query}-{mark.batch}-{mark.identity}.parquet", 1, (), '{"numRecords":1}')


def accept(_table: DeltaTable) -> None:
    """Find nothing wrong with a table."""


def append(
    location: object, batch: int, identity: str = "a", query: str = QUERY, check: Callable[[DeltaTable], None] = accept
) -> None:
    mark = mark_of(batch, identity, query)
    append_to_table(str(location), mark, check, lambda: [file_of(mark)])


def append_elsewhere(location: object, batch: int, identity: str = "a", query: str = QUERY) -> None:
    """Commit a batch as another process does."""
    found = open_table(str(location))
    assert found is not None
    mark = mark_of(batch, identity, query)
    append_batch(found, str(location), mark, [file_of(mark)])


def files_of(location: object) -> list[str]:
    return sorted(str(uri).rpartition("/")[2].removesuffix(".parquet") for uri in DeltaTable(str(location)).file_uris())


def test_batches_are_committed_to_the_table_as_it_stays_open(table: Path, opened: list[str]) -> None:
    for batch in range(5):
        append(table, batch)
    assert files_of(table) == [f"q-{batch}-a{batch}" for batch in range(5)]
    assert opened == [str(table)]
    log = (table / "_delta_log" / f"{5:020}.json").read_text().splitlines()
    (txn,) = [action["txn"] for action in map(json.loads, log) if "txn" in action]
    assert (txn["appId"], txn["version"]) == (QUERY, 4)


@pytest.mark.slow
def test_commit_on_an_object_store_takes_as_many_requests_however_long_the_log_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = make_table(tmp_path / "made", ROWS) / "_delta_log" / f"{0:020}.json"
    with object_store(monkeypatch) as store:
        store.objects[f"admitted/_delta_log/{0:020}.json"] = made.read_bytes()
        costs = []
        for batch in range(12):
            store.requests.clear()
            append("s3://lake/admitted", batch)
            costs.append(store.counted())
        assert files_of("s3://lake/admitted") == sorted(f"q-{batch}-a{batch}" for batch in range(12))
        table_log._KEPT.clear()
        store.requests.clear()
        append("s3://lake/admitted", 12)
    assert costs[2] == costs[11]
    assert costs[11] == {"HEAD": 1, "GET": 5, "LIST": 3, "PUT": 1}
    assert store.counted()["GET"] > 24  # two for each entry, by a process that has just begun


def test_commits_of_others_in_between_are_kept(table: Path, opened: list[str]) -> None:
    append(table, 0)
    for number in range(3):
        append_elsewhere(table, number, query="other")
    append(table, 1)
    append(table, 2)
    assert len(files_of(table)) == 6
    assert DeltaTable(table).version() == 6
    assert opened == [str(table)]


def test_batch_that_another_process_has_committed_is_not_committed_again(table: Path) -> None:
    append(table, 0)
    append_elsewhere(table, 1)
    append(table, 1)
    append(table, 2)
    assert files_of(table) == ["q-0-a0", "q-1-a1", "q-2-a2"]


@pytest.mark.parametrize("theirs", [1, 2])
def test_another_batch_of_a_copy_of_the_query_is_refused(table: Path, theirs: int) -> None:
    append(table, 0)
    append_elsewhere(table, theirs, "b")
    with pytest.raises(CheckpointMismatchError, match=f"already has (a )?batch {theirs}"):
        append(table, 1)
    assert files_of(table) == ["q-0-a0", f"q-{theirs}-b{theirs}"]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_batch_that_runs_again_in_this_process_is_not_committed_again(table: Path, batch: int) -> None:
    for number in range(batch + 1):
        append(table, number)
    append(table, batch)
    with pytest.raises(CheckpointMismatchError, match=f"already has a batch {batch}"):
        append(table, batch, "b")
    assert len(files_of(table)) == batch + 1


def test_table_that_was_removed_is_missed(table: Path) -> None:
    append(table, 0)
    shutil.rmtree(table)
    with pytest.raises(ConfigurationError, match="is gone: restore it"):
        append(table, 1)


@pytest.mark.parametrize("versions", [0, 1, 4])
def test_table_that_was_made_again_is_another_table(table: Path, versions: int) -> None:
    for batch in range(2):
        append(table, batch)
    shutil.rmtree(table)
    make_table(table, ROWS)
    for number in range(versions):
        append_elsewhere(table, number, query="other")
    append(table, 2)
    assert files_of(table) == sorted(["q-2-a2", *(f"other-{n}-a{n}" for n in range(versions))])
    assert DeltaTable(table).version() == versions + 1


def test_table_that_was_put_back_to_a_copy_has_the_batches_of_the_copy(table: Path, tmp_path: Path) -> None:
    append(table, 0)
    shutil.copytree(table, tmp_path / "copy")
    append(table, 1)
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "copy", table)
    append(table, 2)
    assert files_of(table) == ["q-0-a0", "q-2-a2"]


def test_restored_table_gets_the_next_batch(table: Path) -> None:
    for batch in range(3):
        append(table, batch)
    DeltaTable(table).restore(2, ignore_missing_files=True)
    append(table, 3)
    assert files_of(table) == ["q-0-a0", "q-1-a1", "q-3-a3"]


def test_log_that_was_cleaned_up_is_read_anew(table: Path) -> None:
    append(table, 0)
    append_elsewhere(table, 0, query="other")
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    append(table, 1)
    found = open_table(str(table))
    assert found is not None
    assert has_batch(found, str(table), mark_of(1))
    assert found.version() == 3


def test_changed_schema_is_checked_before_more_is_appended(table: Path) -> None:
    def check(found: DeltaTable) -> None:
        if len(found.schema().fields) > 1:
            raise ForeignFilesError("the table", "it has another column")

    append(table, 0, check=check)
    DeltaTable(table).alter.add_columns(Field("more", PrimitiveType("string")))
    with pytest.raises(ForeignFilesError, match="another column"):
        append(table, 1, check=check)
    append(table, 1)
    assert files_of(table) == ["q-0-a0", "q-1-a1"]


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_failed_commit_is_looked_for_and_made_if_it_was_not(
    table: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool, is_done: bool
) -> None:
    """The connection may break, or credentials expire, before a commit is made or after it."""
    append(table, 0)
    if not is_kept:
        table_log._KEPT.clear()
    calls = failures(monkeypatch, 1, is_done=is_done)
    append(table, 1)
    assert len(calls) == (1 if is_done else 2)
    assert files_of(table) == ["q-0-a0", "q-1-a1"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_commit_that_fails_again_and_again_is_given_up(
    table: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    append(table, 0)
    if not is_kept:
        table_log._KEPT.clear()
    calls = failures(monkeypatch, 9, is_done=False)
    with pytest.raises(OSError, match="the token has expired"):
        append(table, 1)
    assert len(calls) == (3 if is_kept else 2)
    assert files_of(table) == ["q-0-a0"]


def failures(monkeypatch: pytest.MonkeyPatch, number: int, *, is_done: bool) -> list[int]:
    """Let the next commits fail, before they are made or after it, and return a list with an entry for each call."""
    calls: list[int] = []

    def failing(*args: Any, **more: Any) -> None:
        calls.append(1)
        if len(calls) > number or is_done:
            append_batch(*args, **more)
        if len(calls) <= number:
            raise OSError("the token has expired")

    monkeypatch.setattr(table_log, "append_batch", failing)
    return calls


def test_files_are_written_once_for_a_batch_that_is_appended_twice(table: Path) -> None:
    append(table, 0)
    DeltaTable(table).alter.add_columns(Field("more", PrimitiveType("string")))
    written: list[int] = []

    def write() -> list[WrittenFile]:
        written.append(1)
        return [file_of(mark_of(1))]

    append_to_table(str(table), mark_of(1), accept, write)
    assert written == [1]
    assert files_of(table) == ["q-0-a0", "q-1-a1"]


def test_tables_are_opened_anew_now_and_then(
    table: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table_log, "_MOST_COMMITS", 3)
    for batch in range(7):
        append(table, batch)
    assert len(opened) == 3
    monkeypatch.setattr(table_log, "_MOST_TABLES", 2)
    for name in ("x", "y", "z"):
        append(make_table(tmp_path / name, ROWS), 0)
    assert list(table_log._KEPT) == [(str(tmp_path / name), QUERY) for name in ("y", "z")]


def test_two_queries_of_one_process_write_to_one_table(table: Path, opened: list[str]) -> None:
    for batch in range(3):
        append(table, batch)
        append(table, batch, query="second")
    assert len(files_of(table)) == 6
    assert len(opened) == 2
