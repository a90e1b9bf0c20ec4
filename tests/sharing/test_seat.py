"""A copy of a checkpoint takes a seat of its own; a restart, and files that are put back in place, keep theirs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_throttle.files.storage import Directory
from spark_throttle.sharing.seat import drawn_run, seat_of


@pytest.fixture
def original(tmp_path: Path) -> Directory:
    directory = Directory(str(tmp_path / "a" / "throttle"))
    directory.write("manifest.json", b"{}")
    return directory


def test_restart_keeps_the_seat(original: Directory) -> None:
    seats = {seat_of(original) for _ in range(3)} | {seat_of(Directory(f"file://{original.location}"))}
    assert len(seats) == 1


def test_copy_of_a_job_that_has_never_shared_takes_a_seat_of_its_own(original: Directory, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert seat_of(original) != seat_of(Directory(str(tmp_path / "b" / "throttle")))


def test_copy_takes_a_seat_of_its_own_and_keeps_it(
    original: Directory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seat = seat_of(original)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = Directory(str(tmp_path / "b" / "throttle"))
    other = seat_of(copy)
    assert other != seat
    assert "shares from a new seat" in caplog.text
    assert seat_of(copy) == other
    assert seat_of(original) == seat


def test_copy_of_a_copy_takes_another(original: Directory, tmp_path: Path) -> None:
    seats = {seat_of(original)}
    for name, before in (("b", "a"), ("c", "b")):
        shutil.copytree(tmp_path / before, tmp_path / name)
        seats.add(seat_of(Directory(str(tmp_path / name / "throttle"))))
    assert len(seats) == 3


def test_files_that_are_put_back_in_place_keep_the_seat(original: Directory, tmp_path: Path) -> None:
    seat = seat_of(original)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "a", dirs_exist_ok=True)
    assert seat_of(original) == seat


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2, "seat": "x", "place": "y"}'])
def test_seat_that_cannot_be_understood_is_drawn_anew(original: Directory, content: bytes) -> None:
    original.write("seat.json", content)
    seat = seat_of(original)
    assert seat != "x"
    assert seat_of(original) == seat


def test_runs_are_told_apart() -> None:
    runs = {drawn_run() for _ in range(1_000)}
    assert len(runs) == 1_000
    assert all(0 < run < 2**62 for run in runs)
