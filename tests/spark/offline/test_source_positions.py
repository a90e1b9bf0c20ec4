"""The positions of sources after a batch, as Spark 4.2.0, Kafka and Delta 4 log them, in the words of their options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_throttle.checkpoint.offset_log import source_positions
from spark_throttle.files.storage import Directory
from spark_throttle.spark.offline.source_positions import positions_after
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, SourceFile

CONTROL = '{"epoch": 7, "file": "000000000007-5f-e0"}'


def logged(checkpoint: Path, *lines: str) -> Directory:
    directory = Directory(str(checkpoint))
    head = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000123,"conf":{}}'
    directory.write("offsets/4", "\n".join(["v1", head, *lines]).encode())
    return directory


def test_source_without_a_position_has_none(tmp_path: Path) -> None:
    assert source_positions(logged(tmp_path, '{"logOffset":3}', "-", CONTROL), 4) == ['{"logOffset":3}', None, CONTROL]
    assert source_positions(Directory(str(tmp_path)), 5) == []


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ('{"events":{"0":12,"1":-2},"more":{"0":5}}', ("startingOffsets", '{"events":{"0":12,"1":-2},"more":{"0":5}}')),
        (
            '{"sourceVersion":1,"reservoirId":"a-b","reservoirVersion":12,"index":-1,"isStartingVersion":false}',
            ("startingVersion", "12"),
        ),
        ('{"sourceVersion":3,"reservoirVersion":12,"index":-100,"isStartingVersion":false}', ("startingVersion", "12")),
    ],
)
def test_position_is_ready_to_paste_where_an_option_takes_it(
    tmp_path: Path, line: str, option: tuple[str, str]
) -> None:
    directory = logged(tmp_path, line, CONTROL)
    (found,) = positions_after(str(tmp_path), directory, 4)
    assert found.option == option
    assert str(found).endswith(f".option({option[0]!r}, {option[1]!r})")
    assert ("once the table has that version" in str(found)) is (option[0] == "startingVersion")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('{"sourceVersion":1,"reservoirVersion":12,"index":3,"isStartingVersion":false}', "version 12 .* read in part"),
        ('{"sourceVersion":1,"reservoirVersion":12,"index":-1,"isStartingVersion":true}', "version 12 .* read in part"),
        ('{"logOffset":3}', "move the files that .*/sources/0 lists out of the folder"),
        ("25", "another source: its documentation"),
        ("not json", "another source: its documentation"),
        ("{}", "another source: its documentation"),
        ("-", "begin where the query began"),
    ],
)
def test_position_that_no_option_takes_comes_with_advice(tmp_path: Path, line: str, advice: str) -> None:
    directory = logged(tmp_path, line, CONTROL)
    (found,) = positions_after(str(tmp_path), directory, 4)
    assert found.option is None
    assert re.search(advice, str(found))


def test_sources_keep_their_order_and_their_folders(tmp_path: Path) -> None:
    directory = logged(tmp_path, '{"events":{"0":12}}', '{"logOffset":3}', CONTROL)
    kafka, files = positions_after(str(tmp_path), directory, 4)
    assert (kafka.kind, files.kind) == ("Kafka", "files")
    assert "sources/1" in files.advice


def of_references(checkpoint: Path, extent: ExtentName) -> str:
    line = {"control": json.loads(CONTROL), "extent": extent.number, "file": extent.file}
    (found,) = positions_after(str(checkpoint), logged(checkpoint, json.dumps(line)), 4)
    return str(found)


def test_references_go_on_after_the_last_file_that_was_read(tmp_path: Path) -> None:
    extents = Extents(Directory(str(tmp_path)))
    assert "none was read" in of_references(tmp_path, NO_EXTENT)
    first = extents.write(NO_EXTENT, [SourceFile(0, "a.parquet", 9, 5), SourceFile(1, "b.parquet", 9, 6)], {})
    assert "2 files were read, the last one is b.parquet" in of_references(tmp_path, first)
    whole = extents.write(first, [SourceFile(2, "c", 9, 0)], {"version": 8, "taken": 0, "is_snapshot": 0})
    assert ".option('startingVersion', '8')" in of_references(tmp_path, whole)
    part = extents.write(whole, [SourceFile(3, "d", 9, 0)], {"version": 9, "taken": 1, "is_snapshot": 0})
    assert "version 9 of the table was read in part" in of_references(tmp_path, part)
