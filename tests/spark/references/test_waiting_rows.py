"""The account of waiting rows: what a batch copied, until no batch can need it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import Int64s
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json, to_json
from spark_throttle.spark.references import waiting_rows
from spark_throttle.spark.references.extents import SourceFile
from spark_throttle.spark.references.waiting_rows import (
    CopyKind,
    WaitingAccount,
    WaitingFolder,
    WaitingRows,
    is_kept_whole,
)
from tests.effort import examples

RETAINED = 2
SLACK = 100


def files(*numbers: int) -> Int64s:
    return np.array(numbers, dtype=np.int64)


NONE = files()


@pytest.fixture
def waiting(tmp_path: Path) -> WaitingRows:
    return WaitingRows(Directory(str(tmp_path)), RETAINED)


def settle(waiting: WaitingRows, batch: int, *, left: Int64s = NONE, joined: Int64s = NONE) -> None:
    account = waiting.before(batch).after(batch, left, joined)
    waiting.settle(account.with_joined(account.leftovers()))


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


def test_account_of_an_undone_batch_is_gone_though_no_row_waits_any_more(waiting: WaitingRows) -> None:
    settle(waiting, 0, left=files(0))
    settle(waiting, 1, joined=files(1, 2, 3))
    settle(waiting, 1, left=files(1))
    assert waiting.before(2) == WaitingAccount(1)


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


@pytest.mark.slow
def test_rows_that_wait_for_long_do_not_keep_the_folders_of_their_batches(waiting: WaitingRows, tmp_path: Path) -> None:
    folders = [copy(tmp_path, batch) for batch in range(400)]
    for batch in range(400):
        settle(waiting, batch, joined=files(batch, batch), left=files(batch - 1) if batch else NONE)
    held = waiting.before(400).held
    assert len(held) <= 33
    assert sum(folder.waiting_messages for folder in held) == 401
    assert not folders[0].exists(), "its leftovers were copied to another folder, long ago"
    owner = waiting.before(400).folder_of(0)
    assert owner is not None
    assert owner.kind == CopyKind.LEFTOVERS


def test_few_folders_are_joined_if_many_of_their_rows_have_left() -> None:
    large = WaitingFolder(1, ((1, 1),), 100_000, 1_100_000)
    full = WaitingFolder(2, ((2, 2),), 900_000, 1_000_000)
    assert WaitingAccount(9, (large, full)).leftovers() == (large,)
    assert WaitingAccount(9, (full,)).leftovers() == ()


def test_rows_that_join_the_queue_are_no_leftovers_in_the_same_batch() -> None:
    new = [WaitingFolder(9, ((at, at),), 1, 8) for at in range(40)]
    assert WaitingAccount(9, tuple(new)).leftovers() == ()


def test_small_files_are_copied_whole_and_others_if_a_quarter_of_their_rows_waits() -> None:
    def kept(joined: int, messages: int | None, *sizes_bytes: int) -> bool:
        return is_kept_whole(joined, messages, [SourceFile(at, "a", size, 0) for at, size in enumerate(sizes_bytes)])

    mebibyte = 1 << 20
    assert kept(1, 1_000_000, 2 * mebibyte, 2 * mebibyte)
    assert not kept(1, 1_000_000, 2 * mebibyte, 2 * mebibyte + 1)
    assert kept(25, 100, 64 * mebibyte)
    assert not kept(25, 101, 64 * mebibyte)
    assert not kept(25, None, 64 * mebibyte), "how many rows the stream drops of a file is not known"
    assert not kept(25, 100, 64 * mebibyte + 1)
    assert kept(50_000, 50_000, *[1] * 16)
    assert not kept(50_000, 50_000, *[1] * 17)
    assert not kept(50_001, 50_001, 1)


def test_file_whose_folder_has_values_of_its_rows_is_not_copied_whole() -> None:
    """Its copy would lack them where it is read for an audit."""
    assert not is_kept_whole(1, 1, [SourceFile(0, "day=1/a", 1, 0, (("day", "1"),))])


@pytest.mark.slow
@given(st.data())
@examples(25)
def test_folder_of_a_file_has_all_its_waiting_rows_whatever_was_joined(data: st.DataObject) -> None:
    """The oracle keeps for each folder the files whose rows were copied to it, row by row."""
    many, few = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_rows, "_MANY_LEFTOVERS", many)
        patch.setattr(waiting_rows, "_FEW_MESSAGES", few)
        account, file = WaitingAccount(-1), 0
        where: dict[str, Counter[int]] = {}
        waits: Counter[int] = Counter()
        for batch in range(data.draw(st.integers(5, 40))):
            drawn = data.draw(st.lists(st.sampled_from(sorted(waits)), max_size=8)) if waits else []
            left = Counter(drawn) & waits
            counts = data.draw(st.lists(st.integers(0, 9), max_size=3))
            joined = Counter({file + at: count for at, count in enumerate(counts) if count})
            file += len(counts)
            kept_messages = data.draw(st.sampled_from([0, joined.total() + 3]))
            account = account.after(
                batch, files(*left.elements()), files(*joined.elements()), kept_messages=kept_messages
            )
            waits = waits - left
            leftovers = account.leftovers()
            moved = Counter({each: waits[each] for each in waits if account.folder_of(each) in leftovers})
            waits += joined
            where[f"{'waiting-files' if kept_messages else 'waiting'}/batch={batch}"] = Counter(joined)
            assert moved.total() == sum(folder.waiting_messages for folder in leftovers)
            account = account.with_joined(leftovers)
            where[f"waiting/joined={batch}"] = moved
            for number, count in waits.items():
                owner = account.folder_of(number)
                assert owner is not None
                assert where[owner.name][number] >= count, "its folder has all rows of the file that wait"
            assert sum(folder.waiting_messages for folder in account.held) == waits.total()
            assert sum(folder.is_leftover and folder.batch < batch for folder in account.held) < many + 1
            assert of_json(WaitingAccount, to_json(account), "it") == account
