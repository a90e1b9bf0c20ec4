"""The copies of waiting rows as files: whatever was done to them, a row is read once or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import SourceFile
from spark_throttle.spark.references.selection import as_table, coded_rows
from spark_throttle.spark.references.waiting_copies import FILE, PART, ROW, WaitingCopies
from spark_throttle.spark.references.waiting_rows import CopyKind, WaitingFolder
from spark_throttle.spark.rows.frames import encode_whole

if TYPE_CHECKING:
    from spark_throttle.core.quota import Int64s

ROWS = WaitingFolder(4, ((7, 8),), 4, 4)
IN_PARTS = WaitingFolder(4, ((7, 8),), 4, 4, parts=2)


@pytest.fixture
def copies(tmp_path: Path) -> WaitingCopies:
    return WaitingCopies(Directory(str(tmp_path / "control")))


def places(*rows: tuple[int, int]) -> Int64s:
    return np.array([(file << 32) + row for file, row in rows], dtype=np.int64)


ALL = places((7, 1), (7, 5), (8, 0), (8, 3))


def write(copies: WaitingCopies, folder: str, found: Int64s, name: str = "part-0.parquet") -> Path:
    """Write copies of rows as Spark does."""
    path = Path(copies.directory.location) / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": found, FILE: found >> 32, ROW: found & 0xFFFFFFFF}), path)
    return path


def write_in_parts(copies: WaitingCopies) -> None:
    """Lay the first and the last row out in the first part, and the others in the second."""
    write(copies, f"{IN_PARTS.name}/{PART}=1", ALL[[0, 3]])
    write(copies, f"{IN_PARTS.name}/{PART}=2", ALL[[1, 2]])
    parts = coded_rows(ALL, np.array([0, 1, 1, 0], dtype=np.int8))
    copies.directory.write(f"{IN_PARTS.name}/_parts.arrow", encode_whole(as_table(parts, [""] * len(parts))))


def test_rows_are_found_in_the_files_of_their_folder(copies: WaitingCopies) -> None:
    write(copies, ROWS.name, ALL[:2])
    write(copies, ROWS.name, ALL[2:], "part-1.parquet")
    assert copies.names(ROWS, ALL[1:3]) == [f"waiting/batch=4/part-{at}.parquet" for at in (0, 1)]


def test_only_the_parts_in_which_rows_lie_are_read(copies: WaitingCopies) -> None:
    write_in_parts(copies)
    assert copies.names(IN_PARTS, ALL[[0, 3]]) == [f"waiting/batch=4/{PART}=1/part-0.parquet"]
    assert copies.names(IN_PARTS, ALL[[2]]) == [f"waiting/batch=4/{PART}=2/part-0.parquet"]
    assert len(copies.names(IN_PARTS, ALL)) == 2


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ALL[:3], r"of the 2 rows that leave, they have 1 \(1 copies\)"),
        (ALL[[0, 1, 2, 3, 3]], r"of the 2 rows that leave, they have 2 \(3 copies\)"),
        (ALL[[0, 1, 2, 2]], r"of the 2 rows that leave, they have 1 \(2 copies\)"),
        (places((7, 1), (7, 5), (9, 0), (9, 3)), r"they have 0 \(0 copies\)"),
    ],
)
def test_copies_that_lack_a_row_that_leaves_or_have_it_twice_are_refused(
    copies: WaitingCopies, found: Int64s, problem: str
) -> None:
    write(copies, ROWS.name, found)
    with pytest.raises(DamagedError, match=problem):
        copies.names(ROWS, ALL[2:])


def test_copies_that_are_gone_or_broken_are_refused(copies: WaitingCopies) -> None:
    with pytest.raises(DamagedError, match="they are gone"):
        copies.names(ROWS, ALL)
    path = write(copies, ROWS.name, ALL)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedError, match="they cannot be read"):
        copies.names(ROWS, ALL)


def test_parts_that_are_gone_or_broken_are_refused(copies: WaitingCopies) -> None:
    write_in_parts(copies)
    name = f"{IN_PARTS.name}/_parts.arrow"
    content = copies.directory.read(name)
    assert content is not None
    copies.directory.write(name, content[:-9])
    with pytest.raises(DamagedError, match=r"the parts of waiting rows .* they cannot be read"):
        copies.names(IN_PARTS, ALL)
    copies.directory.delete(name)
    with pytest.raises(DamagedError, match=r"the parts of waiting rows .* they are gone"):
        copies.names(IN_PARTS, ALL)


@pytest.mark.parametrize(
    ("codes", "files"),
    [([0, 1, 1, 0], [8, 9]), ([0, 1, 1, 7], [7, 8]), ([0, 1, 1, -1], [7, 8])],
    ids=["lack a file", "name one that is not there", "lack a row"],
)
def test_parts_that_do_not_belong_to_the_rows_are_refused(
    copies: WaitingCopies, codes: list[int], files: list[int]
) -> None:
    write_in_parts(copies)
    parts = coded_rows(ALL, np.array(codes, dtype=np.int8))
    parts = [replace(each, number=number) for each, number in zip(parts, files, strict=True)]
    copies.directory.write(f"{IN_PARTS.name}/_parts.arrow", encode_whole(as_table(parts, [""] * len(parts))))
    with pytest.raises(DamagedError, match=r"the parts of waiting rows .* (cannot be read|they name)"):
        copies.names(IN_PARTS, ALL)


def kept(copies: WaitingCopies, root: Path, content: bytes, file: SourceFile) -> Path:
    root.mkdir(exist_ok=True)
    (root / file.path).write_bytes(content)
    copies.keep(fs.LocalFileSystem(), [(file, str(root / file.path))], "waiting-files/batch=4")
    return Path(copies.directory.location) / copies.kept(file, "waiting-files/batch=4")


def test_whole_file_is_copied_under_its_number_and_refused_if_its_length_is_another(
    copies: WaitingCopies, tmp_path: Path
) -> None:
    file = SourceFile(7, "a.parquet", 5, 1)
    path = kept(copies, tmp_path / "in", b"bytes", file)
    assert path.read_bytes() == b"bytes"
    assert path.name.startswith("7-")
    path.write_bytes(b"byte")
    with pytest.raises(DamagedError, match="it has 4 bytes, and the file had 5"):
        copies.kept(file, "waiting-files/batch=4")
    path.unlink()
    with pytest.raises(DamagedError, match=r"of the file a\.parquet, of which rows wait, .* it is gone"):
        copies.kept(file, "waiting-files/batch=4")


def test_file_that_changed_its_length_while_it_was_copied_is_refused(copies: WaitingCopies, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="it has 6 bytes, and the file had 5"):
        kept(copies, tmp_path / "in", b"longer", SourceFile(7, "a.parquet", 5, 1))


def test_copy_of_another_file_of_the_same_number_and_length_is_not_taken(copies: WaitingCopies, tmp_path: Path) -> None:
    """After a checkpoint was put back, a number may be that of another file."""
    undone, new = SourceFile(7, "a.parquet", 5, 1), SourceFile(7, "b.parquet", 5, 1)
    kept(copies, tmp_path / "in", b"first", undone)
    with pytest.raises(DamagedError, match="it is gone"):
        copies.kept(new, "waiting-files/batch=4")
    path = kept(copies, tmp_path / "in", b"other", new)
    assert path.read_bytes() == b"other"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("now", "other"), [(ROWS, "waiting-files"), (WaitingFolder(4, ((7, 7),), 1, 1, kind=CopyKind.FILES), "waiting")]
)
def test_copies_of_the_other_kind_of_an_undone_batch_of_the_same_number_are_deleted(
    copies: WaitingCopies, now: WaitingFolder, other: str
) -> None:
    undone, own = write(copies, f"{other}/batch=4", ALL), write(copies, now.name, ALL)
    later = write(copies, f"{other}/batch=40", ALL)
    copies.clear(now)
    assert (undone.exists(), own.exists(), later.exists()) == (False, True, True)
