"""New files of a folder and of a Delta table, batch by batch, and what a table may not do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from spark_throttle.errors import SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, NewFiles
from spark_throttle.spark.references.feeds import (
    DeltaFeed,
    FolderFeed,
    columns_of,
    folder_problem,
    open_feed,
    reading_problem,
)


def put(folder: Path, name: str, *, at_seconds: int, content: bytes = b"rows") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at_seconds, at_seconds))


def new_files(tmp_path: Path, feed: FolderFeed | DeltaFeed) -> NewFiles:
    return NewFiles(Extents(Directory(str(tmp_path / "control"))), open_feed(feed.to_fields()))


def paths(tmp_path: Path, before: ExtentName, name: ExtentName) -> list[str]:
    return [file.path for file in Extents(Directory(str(tmp_path / "control"))).between(before, name)]


def test_files_of_a_folder_come_once_oldest_first_and_no_more_than_a_batch_may_have(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name, seconds in (("b.parquet", 2), ("a.parquet", 3), ("day=1/c.parquet", 1), ("d.parquet", 3)):
        put(folder, name, at_seconds=seconds)
    new = new_files(tmp_path, FolderFeed(str(folder), 3))
    first = new.after(NO_EXTENT)
    assert paths(tmp_path, NO_EXTENT, first) == ["day=1/c.parquet", "b.parquet", "a.parquet"]
    second = new.after(first)
    assert paths(tmp_path, first, second) == ["d.parquet"]
    assert new.after(second) == second
    put(folder, "e.parquet", at_seconds=1)
    restarted = new_files(tmp_path, FolderFeed(str(folder), None))
    third = restarted.after(second)
    assert paths(tmp_path, second, third) == ["e.parquet"]
    numbers = [file.number for file in Extents(Directory(str(tmp_path / "control"))).history(third)]
    assert numbers == [0, 1, 2, 3, 4]


def test_hidden_and_empty_files_of_a_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("_SUCCESS", ".part.crc", "_temporary/0/part.parquet"):
        put(folder, name, at_seconds=1)
    put(folder, "begun.parquet", at_seconds=1, content=b"")
    assert new_files(tmp_path, FolderFeed(str(folder), None)).after(NO_EXTENT) == NO_EXTENT
    assert new_files(tmp_path, FolderFeed(str(tmp_path / "missing"), None)).after(NO_EXTENT) == NO_EXTENT


def test_folders_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("_day=1/a.parquet", "day=2/_staging/b.parquet", "staging/c.parquet", "d.parquet._COPYING_"):
        put(folder, name, at_seconds=1)
    assert paths(tmp_path, NO_EXTENT, new_files(tmp_path, FolderFeed(str(folder), None)).after(NO_EXTENT)) == [
        "_day=1/a.parquet"
    ]


def test_folder_whose_files_do_not_all_count_is_left_to_spark(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", at_seconds=1)
    assert folder_problem(str(tmp_path)) is None
    assert "is a file" in str(folder_problem(str(tmp_path / "a.parquet")))
    put(tmp_path, "_spark_metadata/0", at_seconds=1)
    assert "says which files count" in str(folder_problem(str(tmp_path)))


def test_query_that_ends_takes_no_file_that_comes_later(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "a.parquet", at_seconds=1)
    put(folder, "b.parquet", at_seconds=2)
    new = new_files(tmp_path, FolderFeed(str(folder), 1))
    new.stop_at_newest()
    put(folder, "c.parquet", at_seconds=3)
    first = new.after(NO_EXTENT)
    second = new.after(first)
    assert paths(tmp_path, NO_EXTENT, second) == ["a.parquet", "b.parquet"]
    assert new.after(second) == second


def append(table: Path, ids: list[int], **settings: Any) -> None:
    write_deltalake(
        str(table), pa.table({"id": ids, "day": [str(each % 2) for each in ids]}), mode="append", **settings
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    append(path, [1, 2], partition_by=["day"])
    append(path, [3])
    return path


def test_files_of_a_table_are_those_of_its_snapshot_then_those_of_each_commit(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 2))
    first = new.after(NO_EXTENT)
    append(table, [5])
    append(table, [6])
    second = new.after(first)
    third = new.after(second)
    assert new.after(third) == third
    files = Extents(Directory(str(tmp_path / "control"))).history(third)
    assert len(files) == 5
    assert [dict(file.partition_values)["day"] for file in files[3:]] == ["1", "0"]
    assert all((table / file.path).stat().st_size == file.size_bytes for file in files)
    restarted = new_files(tmp_path, DeltaFeed(str(table), 1000))
    assert restarted.after(second) == third, "the same files after the same extent"


def test_query_that_ends_takes_a_table_as_it_was_when_it_started(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000))
    new.stop_at_newest()
    append(table, [5])
    first = new.after(NO_EXTENT)
    assert len(paths(tmp_path, NO_EXTENT, first)) == 3
    assert new.after(first) == first


def test_table_may_be_read_from_a_version_on(tmp_path: Path, table: Path) -> None:
    first = new_files(tmp_path, DeltaFeed(str(table), 1000, 1)).after(NO_EXTENT)
    assert len(paths(tmp_path, NO_EXTENT, first)) == 1


def test_commit_that_only_rearranges_rows_brings_none(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000))
    first = new.after(NO_EXTENT)
    append(table, [5])
    second = new.after(first)
    DeltaTable(str(table)).optimize.compact()
    assert new.after(second) == second
    append(table, [7])
    assert len(paths(tmp_path, second, new.after(second))) == 1


def test_table_with_files_in_another_place_is_left_to_spark(tmp_path: Path, table: Path) -> None:
    assert reading_problem(DeltaTable(str(table))) is None
    log, clone = table / "_delta_log" / f"{0:020}.json", tmp_path / "clone" / "_delta_log"
    clone.mkdir(parents=True)
    (clone / log.name).write_text(log.read_text().replace('"path":"', f'"path":"file:{table}/'))
    assert "another place" in str(reading_problem(DeltaTable(str(clone.parent))))


def test_commits_that_change_rows_are_left_out_as_a_whole_if_that_is_asked_for(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000, skips_changes=True))
    first = new.after(NO_EXTENT)
    DeltaTable(str(table)).update(predicate="id = 1", updates={"id": "9"})
    assert new.after(first) == first
    append(table, [5])
    assert len(paths(tmp_path, first, new.after(first))) == 1


def test_query_does_not_go_on_with_another_table_in_the_place_of_its_own(tmp_path: Path, table: Path) -> None:
    """Its versions begin anew, so the first of them would be left out."""
    first = new_files(tmp_path, DeltaFeed(str(table), 1000)).after(NO_EXTENT)
    shutil.rmtree(table)
    for number in (10, 11, 12):
        append(table, [number])
    with pytest.raises(SourceChangedError, match="another table"):
        new_files(tmp_path, DeltaFeed(str(table), 1000)).after(first)


def test_file_that_a_table_brings_again_comes_in_another_batch(tmp_path: Path, table: Path) -> None:
    DeltaTable(str(table)).delete()
    DeltaTable(str(table)).restore(1)
    new = new_files(tmp_path, DeltaFeed(str(table), 1000, 0, skips_changes=True))
    first = new.after(NO_EXTENT)
    second = new.after(first)
    assert len(paths(tmp_path, NO_EXTENT, first)) == 3
    assert sorted(paths(tmp_path, first, second)) == sorted(paths(tmp_path, NO_EXTENT, first))
    assert new.after(second) == second


@pytest.mark.parametrize("change", ["delete", "column mapping"])
def test_commit_that_changes_rows_or_how_they_are_read_is_refused(tmp_path: Path, table: Path, change: str) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000))
    first = new.after(NO_EXTENT)
    if change == "delete":
        DeltaTable(str(table)).delete("id = 1")
    else:
        version = DeltaTable(str(table)).version() + 1
        log = table / "_delta_log" / f"{version:020}.json"
        metadata = next(
            line
            for line in (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
            if line.startswith('{"metaData"')
        )
        log.write_text(
            metadata.replace('"configuration":{', '"configuration":{"delta.columnMapping.mode":"name"')
            + '\n{"protocol":{"minReaderVersion":2,"minWriterVersion":5}}\n'
        )
    with pytest.raises(SourceChangedError, match="new checkpoint"):
        new.after(first)


def columns(table: Path) -> str:
    return columns_of(DeltaTable(str(table)).schema().to_json())


def add_column(table: Path, name: str) -> None:
    DeltaTable(str(table)).alter.add_columns([Field(name, PrimitiveType("string"))])


def test_columns_that_change_while_the_query_runs_stop_it_until_it_has_them(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000, columns=columns(table)))
    first = new.after(NO_EXTENT)
    add_column(table, "one")
    add_column(table, "two")
    append(table, [5], schema_mode="merge")
    with pytest.raises(SourceChangedError, match="start the query again"):
        new.after(first)
    again = new_files(tmp_path, DeltaFeed(str(table), 1000, columns=columns(table)))
    assert len(paths(tmp_path, first, again.after(first))) == 1


def test_columns_that_changed_while_the_query_started_stop_it(tmp_path: Path, table: Path) -> None:
    feed = DeltaFeed(str(table), 1000, columns=columns(table))
    add_column(table, "one")
    with pytest.raises(SourceChangedError, match="start the query again"):
        new_files(tmp_path, feed).after(NO_EXTENT)


def test_version_that_the_log_no_longer_has_is_refused(tmp_path: Path, table: Path) -> None:
    new = new_files(tmp_path, DeltaFeed(str(table), 1000))
    first = new.after(NO_EXTENT)
    append(table, [5])
    append(table, [6])
    (table / "_delta_log" / f"{2:020}.json").unlink()
    (table / "_delta_log" / f"{0:020}.json").unlink()
    (table / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(SourceChangedError, match="no longer has version 2"):
        new.after(first)
