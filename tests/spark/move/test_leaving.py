"""Rows leave in their order, each once, whatever files they lie in; a file is read once, when its first row is due."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.spark.move import leaving as leaving_rows
from spark_throttle.spark.move.cutting import FILE, ROW
from spark_throttle.spark.move.leaving import PlacedFile, leaving

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
_NOTHING = np.zeros(0, dtype=np.int64)


def place(number: int, *positions: int) -> list[int]:
    return [(number << 32) + at for at in positions]


def rows_of(number: int, positions: list[int]) -> pa.Table:
    """Return rows whose number is their place."""
    places = place(number, *positions)
    return pa.table({"n": pa.array(places, pa.int64()), "text": [f"row {each}" for each in places]})


def staged(root: Path, number: int, rows: int, group: int = 1 << 20) -> PlacedFile:
    name = f"staged-{number}"
    pq.write_table(rows_of(number, list(range(rows))), root / name, row_group_size=group)
    return PlacedFile(str(root), name, {name: number}, has_places=False)


def packed(root: Path, positions: dict[int, list[int]]) -> PlacedFile:
    tables = [
        rows_of(number, at)
        .append_column(FILE, pa.array([f"staged-{number}"] * len(at)))
        .append_column(ROW, pa.array(at, pa.int64()))
        for number, at in positions.items()
    ]
    pq.write_table(pa.concat_tables(tables), root / "pack", row_group_size=3)
    numbers = {f"staged-{number}": number for number in positions}
    return PlacedFile(str(root), "pack", numbers, has_places=True)


def array(places: list[int]) -> npt.NDArray[np.int64]:
    return np.array(places, dtype=np.int64)


def found(files: list[PlacedFile], admitted: list[int], rejected: list[int] | None = None) -> list[tuple[int, int]]:
    """Return the number and the index of each row that came out."""
    parts = list(leaving(files, array(admitted), array(rejected or []), SCHEMA))
    assert all(rows.schema.equals(SCHEMA) for rows, _ in parts)
    return [pair for rows, index in parts for pair in zip(rows.column("n").to_pylist(), index.tolist(), strict=True)]


@pytest.mark.parametrize("at_once_bytes", [1, 40, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_admitted_rows_come_in_their_order_and_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once_bytes: int
) -> None:
    monkeypatch.setattr(leaving_rows, "_BATCH_BYTES", at_once_bytes)
    dice = random.Random(seed)
    files = [staged(tmp_path, number, 20, group=6) for number in range(4)]
    files.append(packed(tmp_path, {number: dice.sample(range(20), 9) for number in (7, 8, 9)}))
    every = [each for number in range(4) for each in place(number, *range(20))]
    every += pq.read_table(tmp_path / "pack").column("n").to_pylist()
    dice.shuffle(every)
    admitted, rejected = every[:50], every[50:80]
    came = found(files, admitted, rejected)
    assert sorted(index for _, index in came) == list(range(80))
    assert all(([*admitted, *rejected])[index] == number for number, index in came)
    assert [number for number, index in came if index < 50] == admitted


def test_file_is_read_when_its_first_row_is_due(tmp_path: Path) -> None:
    files = [staged(tmp_path, 1, 4), staged(tmp_path, 0, 4)]
    (tmp_path / "staged-1").unlink()
    come = leaving(files, array([*place(0, 3, 1), *place(1, 2)]), _NOTHING, SCHEMA)
    assert next(come)[0].column("n").to_pylist() == place(0, 3, 1)
    with pytest.raises(DamagedError, match=r"staged-1 of .*, which has rows that leave, is damaged: it cannot be read"):
        next(come)


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def counted(stream: Any, **how: Any) -> pq.ParquetFile:
        opened.append(stream)
        return pq.ParquetFile(stream, **how)

    files = [staged(tmp_path, 0, 4), packed(tmp_path, {5: [0, 2], 6: [1]}), staged(tmp_path, 1, 4)]
    with monkeypatch.context() as patch:
        patch.setattr(leaving_rows, "pq", type("Parquet", (), {"ParquetFile": staticmethod(counted)}))
        assert len(found(files, [*place(6, 1), *place(0, 1), *place(5, 2)], place(5, 0))) == 4
    assert len(opened) == 2, "of the third file no row leaves"


def test_rows_of_former_columns_leave_with_those_of_the_stream(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([5, 6], pa.int32())}), tmp_path / "former")
    file = PlacedFile(str(tmp_path), "former", {"former": 0}, has_places=False)
    ((rows, _),) = leaving([file], array(place(0, 1)), _NOTHING, SCHEMA)
    assert rows.to_pylist() == [{"n": 6, "text": None}]
    assert rows.schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ([0, 1], r"of 3 rows of it that leave, it has 2 \(2 copies\)"),
        ([0, 1, 1], r"of 3 rows of it that leave, it has 2 \(3 copies\)"),
        ([0, 1, 2, 2], r"of 3 rows of it that leave, it has 3 \(4 copies\)"),
    ],
)
def test_copy_that_has_not_each_row_once_is_refused(tmp_path: Path, positions: list[int], words: str) -> None:
    file = packed(tmp_path, {4: positions})
    with pytest.raises(DamagedError, match=words):
        found([file], place(4, 0, 1, 2))


def test_row_of_a_file_that_the_answer_does_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="rows leave that lie in none of its files"):
        found([staged(tmp_path, 0, 4)], [*place(0, 1), *place(1, 0)])
