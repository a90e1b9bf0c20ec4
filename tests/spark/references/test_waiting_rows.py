"""The account of waiting rows: what a batch copied, until no batch can need it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_throttle.core.quota import Int64s
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.waiting_rows import WaitingAccount, WaitingRows

RETAINED = 2
SLACK = 100


def files(*numbers: int) -> Int64s:
    return np.array(numbers, dtype=np.int64)


NONE = files()


@pytest.fixture
def waiting(tmp_path: Path) -> WaitingRows:
    return WaitingRows(Directory(str(tmp_path)), RETAINED)


def settle(waiting: WaitingRows, batch: int, *, left: Int64s = NONE, joined: Int64s = NONE) -> None:
    waiting.settle(waiting.before(batch), batch, left, joined)


def copy(tmp_path: Path, batch: int) -> Path:
    folder = tmp_path / "waiting" / f"batch={batch}"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"rows")
    return folder


def test_waiting_rows_of_a_file_are_found_in_the_folder_of_the_batch_that_brought_it(waiting: WaitingRows) -> None:
    settle(waiting, 4, joined=files(7, 9, 7))
    settle(waiting, 5, left=files(7), joined=files(10))
    account = waiting.before(6)
    found = {number: account.folder_of(number) for number in (6, 7, 8, 9, 10)}
    assert {number: folder.name for number, folder in found.items() if folder is not None} == {
        7: "waiting/batch=4", 8: "waiting/batch=4", 9: "waiting/batch=4", 10: "waiting/batch=5",
    }  # fmt: skip
    assert [folder.waiting_messages for folder in account.folders] == [2, 1]


def test_batch_that_runs_again_writes_the_same_account(waiting: WaitingRows, tmp_path: Path) -> None:
    settle(waiting, 0, joined=files(0, 0))
    settle(waiting, 1, left=files(0))
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "waiting-accounts").iterdir())
    settle(waiting, 1, left=files(0))
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "waiting-accounts").iterdir()) == before


def test_checkpoint_that_is_put_back_goes_on_from_the_account_of_then(waiting: WaitingRows) -> None:
    settle(waiting, 0, joined=files(0, 0))
    settle(waiting, 1, left=files(0, 0))
    settle(waiting, 2, joined=files(5))
    settle(waiting, 1, left=files(0), joined=files(1))
    settle(waiting, 2)
    assert [(folder.batch, folder.waiting_messages) for folder in waiting.before(3).folders] == [(0, 1), (1, 1)]


def test_folder_is_deleted_when_no_batch_that_can_come_back_needs_it(waiting: WaitingRows, tmp_path: Path) -> None:
    folder, other = copy(tmp_path, 0), copy(tmp_path, 1)
    settle(waiting, 0, joined=files(0))
    settle(waiting, 1, left=files(0), joined=files(1))
    for batch in range(2, 1 + RETAINED + SLACK + 1):
        settle(waiting, batch)
        assert folder.exists(), batch
    settle(waiting, 2 + RETAINED + SLACK)
    assert not folder.exists()
    assert other.exists(), "a row of it waits"
    assert len(list((tmp_path / "waiting-accounts").iterdir())) == RETAINED + SLACK


def test_query_of_which_no_row_waits_writes_nothing(waiting: WaitingRows, tmp_path: Path) -> None:
    settle(waiting, 0, left=files(0, 0))
    assert list(tmp_path.iterdir()) == []
    assert waiting.before(1) == WaitingAccount(0)
