"""A stager writes rows whole and tells their digests, and a cut takes out of files what is asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move import stager
from spark_throttle.spark.move.answer import bits_of
from spark_throttle.spark.move.cutting import FILE, ROW, Cut, RowsOfFile
from spark_throttle.spark.move.decider import files_of
from spark_throttle.spark.move.stager import (
    Hint,
    Stager,
    StagingPlace,
    of_tenants,
    read_hint,
    short_tenants,
    write_hint,
)
from spark_throttle.spark.rows.digest import Digest, HelperColumns, digest_of
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE

SCHEMA = pa.schema([("ns", pa.string()), ("tags", pa.list_(pa.string()))])
NAMES = ("ns", "tags", SIZE, TIE)


def places(root: Path) -> tuple[StagingPlace, StagingPlace]:
    form = FileForm(SCHEMA, {}, (), "zstd")
    return StagingPlace(str(root / "table"), form, in_table=True), StagingPlace(
        str(root / "staged"), form, in_table=False
    )


def staged(root: Path, namespaces: list[str | None], *, half_hashed: tuple[str, ...] = ()) -> list[Digest]:
    """Stage rows in pieces of three, and return their digests."""
    rows = pa.table({
        "ns": pa.array(namespaces, pa.string()), "tags": [[str(at)] for at in range(len(namespaces))],
        SIZE: pa.array([5] * len(namespaces), pa.int64()), TIE: pa.array([1] * len(namespaces), pa.int64()),
    })  # fmt: skip
    stage = Stager(NAMES, HelperColumns({NAMESPACE: "ns"}), *places(root), str(root), half_hashed)
    numbered = rows.rename_columns([f"c{at}" for at in range(4)]).to_batches(max_chunksize=3)
    found = pa.Table.from_batches(stage(numbered))
    return [digest_of(frame) for frame in found.column("frame").to_pylist()]


def test_digest_has_no_payload_and_names_the_whole_file(tmp_path: Path) -> None:
    (digest,) = staged(tmp_path, ["a/x", None, "a/x", "b/y"])
    assert set(digest.rows.column_names) == {NAMESPACE, SIZE, TIE}
    assert digest.rows.column(NAMESPACE).to_pylist() == ["a/x", None, "a/x", "b/y"]
    file = digest.file
    assert (file.in_table, file.rows, digest.first_row) == (True, 4, 0)
    written = tmp_path / "table" / file.name
    assert written.stat().st_size == file.size_bytes
    assert pq.read_table(written).column("tags").to_pylist() == [["0"], ["1"], ["2"], ["3"]]
    assert '"numRecords":4' in file.stats


def test_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    stage = Stager(NAMES, HelperColumns({NAMESPACE: "ns"}), *places(tmp_path), str(tmp_path))
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([(f"c{at}", pa.int64()) for at in range(4)]))
    assert list(stage([empty])) == []
    assert list(tmp_path.iterdir()) == []


def test_rows_of_short_tenants_go_to_a_file_outside_the_table(tmp_path: Path) -> None:
    write_hint(Directory(str(tmp_path)), Hint(7, ("b",)))
    found = {digest.file.in_table: digest for digest in staged(tmp_path, ["a/x", "b/y", "a/x", None, "b/z"])}
    assert found[True].rows.column(NAMESPACE).to_pylist() == ["a/x", "a/x", None]
    assert found[False].rows.column(NAMESPACE).to_pylist() == ["b/y", "b/z"]
    assert found[False].file.name.startswith("000000000007-")


def test_tenants_whose_names_are_no_utf8_are_short_like_any_other(tmp_path: Path) -> None:
    names = pa.array([b"\xff/a", b"b/c", b"\xff\xe9", None], pa.binary()).view(pa.string())
    stayed = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [2, 2, 0, 0]])
    report = SimpleNamespace(names=names.drop_null(), waiting=stayed, rejected=np.zeros_like(stayed))
    short = short_tenants(report)  # type: ignore[arg-type]
    write_hint(Directory(str(tmp_path)), Hint(7, tuple(short)))
    assert of_tenants(names, read_hint(Directory(str(tmp_path))).tenants).tolist() == [True, False, True, False]


@pytest.mark.parametrize("content", [b"", b'{"turn": 7, "tena', b"[]", b'{"turn": null, "tenants": []}', b"\xff"])
def test_hint_that_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    directory = Directory(str(tmp_path))
    write_hint(directory, Hint(7, ("b",)))
    (written,) = tmp_path.iterdir()
    written.write_bytes(content)
    assert read_hint(directory) == Hint()


def test_full_file_is_written_before_the_task_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stager, "FILE_BYTES", 1)
    found = staged(tmp_path, ["a/x"] * 7)
    assert [digest.file.rows for digest in found] == [3, 3, 1]


def test_columns_that_spark_half_hashes_tell_rows_apart(tmp_path: Path) -> None:
    (blind,), (seeing,) = staged(tmp_path, ["a/x"] * 3), staged(tmp_path, ["a/x"] * 3, half_hashed=("tags",))
    assert len(set(blind.rows.column(TIE).to_pylist())) == 1
    assert len(set(seeing.rows.column(TIE).to_pylist())) == 3
    assert seeing.rows.equals(staged(tmp_path, ["a/x"] * 3, half_hashed=("tags",))[0].rows)


def test_cut_writes_each_wanted_row_once_with_its_place(tmp_path: Path) -> None:
    table, waiting = places(tmp_path)
    (digest,) = staged(tmp_path, [f"t/{at}" for at in range(6)])
    goes, stays = bits_of(np.array([0, 4]), 6), bits_of(np.array([1, 5]), 6)
    one = RowsOfFile(table.root, digest.file.name, digest.file.name, 6, goes, stays, "rest")
    (written,) = Cut(((one,),), table, waiting).cut((one,))
    assert pq.read_table(tmp_path / "table" / written.path).column("ns").to_pylist() == ["t/0", "t/4"]
    rest = pq.read_table(tmp_path / "staged" / "rest")
    assert rest.select([FILE, ROW]).to_pylist() == [{FILE: digest.file.name, ROW: 1}, {FILE: digest.file.name, ROW: 5}]
    again = RowsOfFile(waiting.root, "rest", digest.file.name, 6, bits_of(np.array([5]), 6), has_places=True)
    (last,) = Cut(((again,),), table, waiting).cut((again,))
    assert pq.read_table(tmp_path / "table" / last.path).column("ns").to_pylist() == ["t/5"]


def test_rows_of_former_columns_are_packed_with_later_ones(tmp_path: Path) -> None:
    """In either order: the files of a pack come in the order of their numbers."""
    _, waiting = places(tmp_path)
    former = pa.table({"ns": ["t/0"]})
    (digest,) = staged(tmp_path, ["t/1"])
    Path(waiting.root).mkdir(exist_ok=True)
    pq.write_table(former, Path(waiting.root) / "former")
    every = bits_of(np.array([0]), 1)
    old = RowsOfFile(waiting.root, "former", "former", 1, None, every, "pack")
    new = RowsOfFile(str(tmp_path / "table"), digest.file.name, digest.file.name, 1, None, every, "pack")
    for group in ((old, new), (new, old)):
        Cut((group,), None, waiting).cut(group)
        found = pq.read_table(Path(waiting.root) / "pack").select(["ns", "tags"]).to_pylist()
        assert sorted(found, key=str) == [{"ns": "t/0", "tags": None}, {"ns": "t/1", "tags": ["0"]}]


@pytest.mark.parametrize(("name", "position"), [("gone", 5), (None, 0)])
def test_cut_of_a_file_that_lacks_a_row_is_refused(tmp_path: Path, name: str | None, position: int) -> None:
    table, waiting = places(tmp_path)
    (digest,) = staged(tmp_path, ["t/0", "t/1"])
    stays = RowsOfFile(table.root, digest.file.name, digest.file.name, 2, None, bits_of(np.array([1]), 2), "rest")
    Cut(((stays,),), table, waiting).cut((stays,))
    lacks = RowsOfFile(
        waiting.root, name or "rest", digest.file.name, 6, bits_of(np.array([position]), 6), has_places=True
    )
    with pytest.raises(DamagedError, match="1 rows of it are asked for, and it has 0" if name is None else "cannot be"):
        Cut(((lacks,),), table, waiting).cut((lacks,))


def test_digest_that_lacks_rows_of_its_file_is_refused(tmp_path: Path) -> None:
    (digest,) = staged(tmp_path, ["t/0", "t/1"])
    with pytest.raises(DamagedError, match="it has 2 rows, and its digest 1"):
        files_of([Digest(digest.file, 0, digest.rows.slice(0, 1))])
