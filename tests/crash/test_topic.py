"""What the crash program offers in a topic: all rows of the files, once, and each namespace in its order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.history import Batch, came_in
from tests.crash.tables import ATTEMPT, read_decided, read_offered
from tests.crash.topic import ADMITTED_RECORDS, PARTITIONS, RECORDS, records_of, rows_of, whole
from tests.crash.workload import COLUMNS, ROWS_A_FILE, add_files, rows


def test_rows_come_back_from_their_records_as_they_were() -> None:
    offered = rows(0, ROWS_A_FILE)
    back = rows_of(records_of(offered)).sort_by("id").select(COLUMNS)
    assert [in_bytes(back, name) for name in COLUMNS] == [in_bytes(offered, name) for name in COLUMNS]


def test_topic_that_lost_or_doubled_a_record_is_no_ground_for_an_account() -> None:
    kept = rows_of(records_of(rows(0, ROWS_A_FILE)))
    assert whole(kept, 1) is kept
    for wrong in (kept.slice(1), pa.concat_tables([kept, kept.slice(0, 1)])):
        with pytest.raises(AssertionError, match="the broker lost or doubled some"):
            whole(wrong, 1)


def in_bytes(table: pa.Table, name: str) -> list[object]:
    column = table.column(name).combine_chunks()
    return column.view(pa.binary()).to_pylist() if pa.types.is_string(column.type) else column.to_pylist()


def test_namespace_stands_in_one_partition_in_its_order(tmp_path: Path) -> None:
    add_files(tmp_path, 2)
    from_files = read_offered(tmp_path)
    files = [records_of(pq.read_table(path)) for path in sorted((tmp_path / "source").iterdir())]
    pq.write_table(rows_of(map(list.__add__, *files)), tmp_path / RECORDS)
    offered = read_offered(tmp_path)
    assert offered.groupby("partition").size().gt(ROWS_A_FILE // 10).sum() == PARTITIONS
    assert len(offered[["namespace", "partition"]].drop_duplicates()) == len(offered["namespace"].unique())
    for _, of_partition in offered.groupby("partition"):
        assert of_partition["place"].tolist() == list(range(len(of_partition)))
        assert of_partition["id"].is_monotonic_increasing
    pd.testing.assert_frame_equal(offered.sort_values("id", ignore_index=True)[COLUMNS], from_files[COLUMNS])


def test_rows_of_a_topic_that_come_again_are_of_another_attempt(tmp_path: Path) -> None:
    once = pa.table({"id": [1, 2, 3, 4], "namespace": ["a", "b", "a", "b"], "size": [1] * 4})
    again = pa.concat_tables([once.slice(0, 3), once])
    pq.write_table(again, tmp_path / ADMITTED_RECORDS)
    admitted, _ = read_decided(tmp_path)
    assert admitted["id"].tolist() == again["id"].to_pylist()
    assert admitted[ATTEMPT].tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_row_comes_in_the_first_batch_that_has_read_its_partition_beyond_it() -> None:
    offered = pd.DataFrame({"partition": [0, 0, 1], "place": [0, 1, 0]})
    first = Batch(0, 0, "one", {})
    batches = [first, *(replace(first, number=at, read=read) for at, read in ((1, {0: 1, 1: 0}), (2, {0: 2, 1: 1})))]
    assert came_in(batches, offered).tolist() == [1, 2, 2]
