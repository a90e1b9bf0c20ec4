"""Which files each batch brings: written once, named by an offset, and the same for whoever goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import FOLDER, NO_EXTENT, ExtentName, Extents, SourceFile


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
