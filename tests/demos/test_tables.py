"""What a query left behind, read from made-up checkpoints and Delta tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from demos.tables import Batch, read_batches, read_commits, read_rows
from spark_throttle.errors import DamagedError
from spark_throttle.load.traffic import SCHEMA, Traffic, TrafficGroup
from tests.demos.made_up import write_checkpoint, write_table

TRAFFIC = Traffic((TrafficGroup("gold", 3, 1, 100, 1.0),))


def rows(start: int, end: int) -> pa.Table:
    return pa.Table.from_batches([TRAFFIC.rows(start, end)])


def test_batches_are_the_committed_ones_with_their_rows(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, [(1000, 5), (2000, 5), (3500, 20)], uncommitted=[(4000, 30)])
    assert read_batches(checkpoint) == [Batch(0, 1000, 0, 5), Batch(1, 2000, 5, 5), Batch(2, 3500, 5, 20)]


def test_batch_without_an_offset_of_the_load_brings_no_rows(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, [(1000, 5), (2000, 9)])
    lines = (checkpoint / "offsets" / "1").read_text().splitlines()
    (checkpoint / "offsets" / "1").write_text("\n".join([*lines[:2], "-", lines[3]]))
    assert read_batches(checkpoint)[1] == Batch(1, 2000, 5, 5)


def test_two_loads_in_one_query_cannot_be_told_apart(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, [(1000, 5)])
    with (checkpoint / "offsets" / "0").open("a") as log:
        log.write('\n{"rows": 7}')
    with pytest.raises(DamagedError, match="two sources"):
        read_batches(checkpoint)


def test_purged_log_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, [(1000, 5), (2000, 6)])
    (checkpoint / "commits" / "0").unlink()
    with pytest.raises(DamagedError, match="minBatchesToRetain"):
        read_batches(checkpoint)


def test_rows_come_back_as_offered_with_their_batch(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {0: rows(0, 3), 2: rows(7, 12)})
    part = read_rows(table, [Batch(0, 1000, 0, 3), Batch(1, 2000, 3, 7), Batch(2, 3000, 7, 12)])
    assert part.batch.tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
    assert part.rows.combine_chunks().equals(pa.concat_tables([rows(0, 3), rows(7, 12)]).combine_chunks())


def test_rows_of_an_uncommitted_batch_are_not_counted(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {0: rows(0, 3), 1: rows(3, 5)})
    assert len(read_rows(table, [Batch(0, 1000, 0, 3)])) == 3


def test_table_that_was_never_written_has_no_rows(tmp_path: Path) -> None:
    part = read_rows(tmp_path / "nowhere", [Batch(0, 1000, 0, 3)])
    assert (len(part), part.rows.schema) == (0, SCHEMA)


def test_commits_without_rows_are_passed_over(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {4: rows(0, 3)})
    assert [(commit.version, commit.batch_id) for commit in read_commits(table)] == [(1, 4)]


def test_compacted_table_cannot_be_recounted(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {0: rows(0, 3)})
    (table / "_delta_log" / f"{2:020d}.json").write_text(json.dumps({"remove": {"path": "x"}}))
    with pytest.raises(DamagedError, match="removes files"):
        read_commits(table)


def test_rows_of_no_batch_are_an_error(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {0: rows(0, 3)})
    (table / "_delta_log" / f"{2:020d}.json").write_text(json.dumps({"add": {"path": "x"}}))
    with pytest.raises(DamagedError, match="names 0 batches"):
        read_commits(table)
