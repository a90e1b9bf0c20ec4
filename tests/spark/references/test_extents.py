"""An extent is written once, named by an offset, and the same for whoever goes on from there, as are its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from spark_throttle.errors import DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import (
    FOLDER,
    NO_EXTENT,
    ExtentName,
    Extents,
    SourceFile,
    check_file,
    check_read,
)


def file(number: int, path: str | None = None) -> SourceFile:
    return SourceFile(number, path or f"part-{number}.parquet", 100 + number, 7, (("day", None), ("kind", "a/b")))


@pytest.fixture
def extents(tmp_path: Path) -> Extents:
    return Extents(Directory(str(tmp_path)))


def again(tmp_path: Path) -> Extents:
    """Return the extents as a new process sees them."""
    return Extents(Directory(str(tmp_path)))


def chain(extents: Extents, count: int) -> list[ExtentName]:
    names = [NO_EXTENT]
    for number in range(count):
        names.append(extents.write(names[-1], [file(number)], {"version": number}))
    return names


def test_offset_names_the_files_of_its_batch_in_a_new_process_too(extents: Extents, tmp_path: Path) -> None:
    first = extents.write(NO_EXTENT, [file(0), file(1)], {})
    second = extents.write(first, [file(2)], {})
    assert again(tmp_path).between(first, second) == [file(2)]
    assert again(tmp_path).between(NO_EXTENT, second) == [file(0), file(1), file(2)]
    assert again(tmp_path).between(second, second) == []


def test_history_of_many_extents_is_read_from_the_last_that_repeats_it(extents: Extents, tmp_path: Path) -> None:
    names = chain(extents, 103)
    for name in names[1:100]:
        (tmp_path / FOLDER / name.file).unlink()
    assert again(tmp_path).history(names[-1]) == [file(number) for number in range(103)]


@pytest.mark.slow
def test_history_that_is_asked_for_batch_by_batch_reads_each_extent_once(extents: Extents, tmp_path: Path) -> None:
    names = chain(extents, 205)
    asked = again(tmp_path)
    for number, name in enumerate(names):
        assert asked.history(name) == [file(at) for at in range(number)]
        if number:
            (tmp_path / FOLDER / name.file).unlink()
    assert asked.history(names[-1]) == [file(at) for at in range(205)]


def test_stream_goes_on_from_an_older_extent_if_its_checkpoint_was_put_back(extents: Extents, tmp_path: Path) -> None:
    names = chain(extents, 3)
    other = again(tmp_path).write(names[1], [file(1, "other.parquet")], {})
    assert again(tmp_path).history(other) == [file(0), file(1, "other.parquet")]
    assert again(tmp_path).history(names[3]) == [file(0), file(1), file(2)]


def test_same_files_after_the_same_extent_have_the_same_name(extents: Extents, tmp_path: Path) -> None:
    assert extents.write(NO_EXTENT, [file(0)], {}) == again(tmp_path).write(NO_EXTENT, [file(0)], {})


def test_extent_that_is_gone_or_was_changed_is_refused_with_the_remedy(extents: Extents, tmp_path: Path) -> None:
    first, second = extents.write(NO_EXTENT, [file(0)], {}), extents.write(NO_EXTENT, [file(9)], {})
    path = tmp_path / FOLDER
    (path / first.file).write_bytes((path / second.file).read_bytes())
    with pytest.raises(DamagedError, match="does not belong to its name"):
        again(tmp_path).load(first)
    (path / first.file).unlink()
    with pytest.raises(DamagedError, match="it is gone"):
        again(tmp_path).load(first)


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
