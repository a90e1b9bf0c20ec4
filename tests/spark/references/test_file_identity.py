"""A file is read only while it is the one that an extent lists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.references.extents import SourceFile
from spark_throttle.spark.references.file_feed import check_file, check_read


@pytest.mark.parametrize(
    ("size_bytes", "modified_ms", "problem"),
    [
        (4, 1_000, None),
        (4, 0, None),
        (5, 1_000, "it has 4 bytes and had 5"),
        (4, 2_000, r"it was written again \(at 1000 ms, before at 2000 ms\)"),
    ],
)
def test_file_is_compared_by_its_length_and_its_time(
    tmp_path: Path, size_bytes: int, modified_ms: int, problem: str | None
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"rows")
    os.utime(path, (1, 1))
    file = SourceFile(0, "a.parquet", size_bytes, modified_ms)
    if problem is None:
        check_file(fs.LocalFileSystem(), str(path), file)
        check_read(fs.LocalFileSystem(), [str(path)], [file])
        return
    with pytest.raises(SourceChangedError, match=problem):
        check_file(fs.LocalFileSystem(), str(path), file)
    with pytest.raises(SourceChangedError, match=f"while a batch was written, {problem}"):
        check_read(fs.LocalFileSystem(), [str(path)], [file])


def test_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceChangedError, match=r"a\.parquet .*it is gone"):
        check_file(fs.LocalFileSystem(), str(tmp_path / "a.parquet"), SourceFile(0, "a.parquet", 4, 0))


def test_file_that_is_gone_after_it_was_read_does_no_harm(tmp_path: Path) -> None:
    check_read(fs.LocalFileSystem(), [str(tmp_path / "a.parquet")], [SourceFile(0, "a.parquet", 4, 0)])
