"""How the crash program reads what it finds: tables that were put back, folders, text that is no UTF-8."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.crash.iceberg import FILES
from tests.crash.plan import PutBack
from tests.crash.put_back import Copy, restore
from tests.crash.tables import MISSING, NO_SIZE, newest_batch, read_offered, read_table
from tests.crash.workload import ROWS_A_FILE, add_commits, add_files, rows
from tests.ledger import BATCH
from tests.life.contract import fault_of


def append(table: Path, batch: int, query: str = "q") -> None:
    marked = CommitProperties(app_transactions=[Transaction(query, batch)])
    some = rows(batch * 3, batch * 3 + 2)
    write_deltalake(table, some, mode="append", partition_by=["part"], commit_properties=marked)


def found(table: Path) -> list[tuple[int, int]]:
    read = read_table(table)
    return sorted(zip(read["id"].tolist(), read[BATCH].tolist(), strict=True))


def test_table_that_was_put_back_is_read_as_it_is(tmp_path: Path) -> None:
    for batch in range(4):
        append(tmp_path, batch)
    restore(tmp_path, 1)
    append(tmp_path, 2, "q-1")
    expected = [(0, 0), (1, 0), (3, 1), (4, 1), (6, 2), (7, 2)]
    assert (found(tmp_path), newest_batch(tmp_path)) == (expected, 2)
    restore(tmp_path, 2)
    # the files of an undone batch come again, in a commit without a batch
    assert (found(tmp_path), newest_batch(tmp_path)) == (expected, 2)
    assert set(read_table(tmp_path)["part"]) == {"east", "a/b:c%"}


def test_folders_that_are_set_aside_are_not_read(tmp_path: Path) -> None:
    for folder in ("batch=0", "batch=1", ".undone/7-batch=1", "_temporary/0"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(rows(0, 2), tmp_path / folder / "a.parquet")
    assert found(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_files_are_read_as_often_as_an_iceberg_table_has_them(tmp_path: Path) -> None:
    for folder in ("data", "metadata"):
        (tmp_path / folder).mkdir()
    for number, name in enumerate(("a.parquet", "orphan.parquet", "b.parquet")):
        pq.write_table(rows(number * 3, number * 3 + 2), tmp_path / "data" / name)
    (tmp_path / FILES).write_text('[["b.parquet", 7], ["a.parquet", 6], ["a.parquet", 8]]')
    assert found(tmp_path) == [(0, 6), (0, 8), (1, 6), (1, 8), (6, 7), (7, 7)]


def test_every_fault_of_a_row_is_offered_in_every_file(tmp_path: Path) -> None:
    add_files(tmp_path, 2)
    offered = read_offered(tmp_path)
    assert offered["id"].tolist() == list(range(2 * ROWS_A_FILE))
    for _, rows_of_file in offered.groupby("place"):
        faults = {
            fault_of(None if name == MISSING else name, None if size == NO_SIZE else size)
            for name, size in zip(rows_of_file["namespace"], rows_of_file["size"], strict=True)
        }
        assert faults == {
            None, "namespace_missing", "namespace_too_long", "size_missing", "size_negative", "size_too_large",
        }  # fmt: skip
        assert {"gold/\udce9", ""} < set(rows_of_file["namespace"])
        assert "a\0b" in set(rows_of_file["part"])


def test_table_that_is_offered_has_a_file_a_commit(tmp_path: Path) -> None:
    for upto in (0, 2, 2, 3):
        add_commits(tmp_path, upto)
    table = DeltaTable(tmp_path / "source")
    assert table.version() == 3
    assert [Path(uri).name for uri in table.file_uris()] == ["00002.parquet", "00001.parquet", "00000.parquet"]
    assert read_offered(tmp_path)["id"].tolist() == list(range(3 * ROWS_A_FILE))


def make_checkpoint(root: Path, batches: int) -> None:
    for folder in ("offsets", "throttle/batches"):
        (root / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        (root / "checkpoint" / "offsets" / str(batch)).write_text("")
        (root / "checkpoint" / "throttle" / "batches" / f"{batch:012d}.report.7").write_text("")


def state(root: Path) -> tuple[int, int, int]:
    """Return how many offsets and reports there are, and the newest batch of the table."""
    offsets, reports = (
        len(list((root / "checkpoint" / folder).iterdir())) for folder in ("offsets", "throttle/batches")
    )
    return offsets, reports, newest_batch(root / "admitted") if (root / "admitted").exists() else -1


def test_what_is_put_back_is_what_was_there(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    append(tmp_path / "admitted", 0)
    copy = Copy.make(tmp_path)
    ways: dict[PutBack, tuple[int, int, int]] = {
        "copied": (1, 1, 0), "restored": (1, 1, 0), "control-ahead": (1, 2, 0), "refused": (1, 1, 1),
    }  # fmt: skip
    for how, expected in ways.items():
        make_checkpoint(tmp_path, 2)
        append(tmp_path / "admitted", 1)
        assert state(tmp_path) == (2, 2, 1)
        assert copy.put_back(how) is (how == "refused")
        assert state(tmp_path) == expected
        if how == "refused":
            newest = len(list((tmp_path / "admitted" / "_delta_log").glob("*.json"))) - 1
            table = tmp_path / "admitted"
            copy.follow_remedy(
                f"… (RESTORE TABLE delta.`{table}` TO VERSION AS OF {newest - 1}, if nothing …)", is_first=True
            )
            assert state(tmp_path) == (1, 1, 0)


def test_reports_that_a_function_knows_of_are_removed_as_the_error_says(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    copy = Copy.make(tmp_path)
    make_checkpoint(tmp_path, 3)
    assert copy.put_back("control-ahead")
    assert state(tmp_path) == (1, 3, -1)
    copy.follow_remedy(f"… and remove their files below {tmp_path}/checkpoint/throttle/batches", is_first=True)
    assert state(tmp_path) == (1, 1, -1)
