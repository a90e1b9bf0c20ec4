"""The charges of a batch: written by its tasks, read once, kept as long as its reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_throttle.control.charges import Part, join_charges, read_charges, replace_charges, write_charges
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path / "control"))


def charges(**time_ns: int) -> TimeCharges:
    return TimeCharges.of(
        {name: each for name, each in time_ns.items() if name != "rest"}, unattributed_ns=time_ns.get("rest", 0)
    )


def plain(found: dict[int, TimeCharges]) -> dict[int, Any]:
    return {
        batch: dict(zip(each.names.to_pylist(), each.time_ns.tolist(), strict=True)) for batch, each in found.items()
    }


def test_parts_of_a_batch_add_up(directory: Directory) -> None:
    write_charges(directory, 7, charges(a=5, rest=1), part="f.0")
    write_charges(directory, 7, charges(a=1, b=2, rest=2), part="f.1")
    write_charges(directory, 9, charges(b=4), part="f.0")
    found = read_charges(directory, after_batch=6)
    assert plain(found) == {7: {"a": 6, "b": 2}, 9: {"b": 4}}
    assert found[7].unattributed_ns == 3
    assert list(read_charges(directory, after_batch=7)) == [9]


def test_task_that_runs_again_replaces_its_part(directory: Directory) -> None:
    write_charges(directory, 7, charges(a=5), part="f.0")
    write_charges(directory, 7, charges(a=6), part="f.0")
    assert plain(read_charges(directory, after_batch=-1)) == {7: {"a": 6}}


def test_parts_that_are_joined_are_one_file_and_charge_the_same(directory: Directory) -> None:
    for batch in (6, 7, 8):
        for part in ("f.0", "f.1"):
            write_charges(directory, batch, charges(a=batch), part=part)
    join_charges(directory, before_batch=8)
    assert plain(read_charges(directory, after_batch=-1)) == {6: {"a": 12}, 7: {"a": 14}, 8: {"a": 16}}
    assert len(directory.names("batches")) == 4


@pytest.mark.parametrize("joins_again", [True, False])
def test_kill_between_the_parts_of_a_batch_that_is_joined_charges_each_once(
    directory: Directory, *, joins_again: bool
) -> None:
    for part in ("f.0", "f.1", "f.2"):
        write_charges(directory, 7, charges(a=5), part=part)
    join_charges(directory, before_batch=8)
    write_charges(directory, 7, charges(a=5), part="f.2")  # the file that was not deleted yet
    if joins_again:
        join_charges(directory, before_batch=8)
    assert plain(read_charges(directory, after_batch=-1)) == {7: {"a": 15}}


def test_run_that_does_a_joined_batch_again_replaces_all_of_it(directory: Directory) -> None:
    for part in ("1a.0-0.0.0", "1a.0-1.0.0"):
        write_charges(directory, 7, charges(a=5), part=part)
    join_charges(directory, before_batch=8)
    for work in ("0-0", "0-1", "0-2"):
        replace_charges(directory, 7, charges(a=3), Part("2b", work))
    assert plain(read_charges(directory, after_batch=-1)) == {7: {"a": 9}}


def test_damaged_charges_name_their_file(directory: Directory) -> None:
    write_charges(directory, 3, charges(a=1), part="f.0")
    path = Path(directory.path("batches/000000000003.charges.f.0"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=r"the charges in .*batches/000000000003\.charges\.f\.0"):
        read_charges(directory, after_batch=-1)
