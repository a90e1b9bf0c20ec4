"""Copies of rows that wait in a source's files: a rest for each, whatever the batches in which Spark sends rows."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move import cutting
from spark_throttle.spark.move.cutting import FILE, ROW, SourceRests
from spark_throttle.spark.move.stager import StagingPlace

FORM = FileForm(pa.schema([("id", pa.int64()), ("wait", pa.duration("us"))]), {"columns": "these"})


def rows_of(file: str, positions: list[int]) -> list[dict[str, object]]:
    return [{"id": 10 * at, "wait": timedelta(seconds=at), FILE: file, ROW: at} for at in positions]


@pytest.mark.parametrize("seed", range(3))
def test_each_file_has_a_rest_with_its_rows_and_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(cutting, "_GATHERED_BYTES", dice.choice([1, 100, 1 << 20]))
    wanted = {f"{number:012d}-x": sorted(dice.sample(range(50), 20)) for number in range(4)}
    schema = pa.schema([*FORM.schema, pa.field("void", pa.null()), (FILE, pa.string()), (ROW, pa.int64())])
    table = pa.Table.from_pylist([row for file, at in wanted.items() for row in rows_of(file, at)], schema)
    numbered = table.rename_columns([f"c{at}" for at in range(5)]).to_batches(max_chunksize=dice.choice([1, 7, 100]))
    place = StagingPlace(str(tmp_path / "staged"), FORM, in_table=False)
    copy = SourceRests(place, tuple(table.column_names), {file: f"000000000003-rest-{file}" for file in wanted})
    told = [row for batch in copy(iter(numbered)) for row in batch.to_pylist()]
    assert told == [
        {"rest": f"000000000003-rest-{file}", "messages": 20, "positions": sum(at)} for file, at in wanted.items()
    ]
    assert {path.name for path in (tmp_path / "staged").iterdir()} == {each["rest"] for each in told}
    for file, positions in wanted.items():
        path = tmp_path / "staged" / f"000000000003-rest-{file}"
        found = pq.read_table(path)
        assert found.column_names == ["id", "wait", FILE, ROW]
        assert (found.column("id").to_pylist(), found.column(ROW).to_pylist()) == (
            [10 * at for at in positions],
            positions,
        )
        assert set(found.column(FILE).to_pylist()) == {file}
        assert pq.read_metadata(path).metadata[b"columns"] == b"these"


def test_task_without_rows_copies_nothing(tmp_path: Path) -> None:
    copy = SourceRests(StagingPlace(str(tmp_path), FORM, in_table=False), ("id", "wait", FILE, ROW), {})
    assert list(copy(iter([]))) == []
