"""A copy of a checkpoint is a member of its own; a restart, and files that are put back in place, are the same one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_throttle.files.storage import Directory
from spark_throttle.sharing.member import drawn_run, member_in


@pytest.fixture
def original(tmp_path: Path) -> Directory:
    directory = Directory(str(tmp_path / "a" / "throttle"))
    directory.write("manifest.json", b"{}")
    return directory


def test_restart_keeps_the_member(original: Directory) -> None:
    members = {member_in(original) for _ in range(3)} | {member_in(Directory(f"file://{original.location}"))}
    assert len(members) == 1


def test_copy_of_a_job_that_has_never_shared_is_a_member_of_its_own(original: Directory, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert member_in(original) != member_in(Directory(str(tmp_path / "b" / "throttle")))


def test_copy_is_a_member_of_its_own_and_keeps_it(
    original: Directory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = member_in(original)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = Directory(str(tmp_path / "b" / "throttle"))
    other = member_in(copy)
    assert other != member
    assert "shares as a new member" in caplog.text
    assert member_in(copy) == other
    assert member_in(original) == member


def test_copy_of_a_copy_takes_another(original: Directory, tmp_path: Path) -> None:
    members = {member_in(original)}
    for name, before in (("b", "a"), ("c", "b")):
        shutil.copytree(tmp_path / before, tmp_path / name)
        members.add(member_in(Directory(str(tmp_path / name / "throttle"))))
    assert len(members) == 3


def test_files_that_are_put_back_in_place_keep_the_seat(original: Directory, tmp_path: Path) -> None:
    member = member_in(original)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "a", dirs_exist_ok=True)
    assert member_in(original) == member


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2, "seat": "x", "place": "y"}'])
def test_seat_that_cannot_be_understood_is_drawn_anew(original: Directory, content: bytes) -> None:
    original.write("seat.json", content)
    member = member_in(original)
    assert member != "x"
    assert member_in(original) == member


def test_runs_are_told_apart() -> None:
    runs = {drawn_run() for _ in range(1_000)}
    assert len(runs) == 1_000
    assert all(0 < run < 2**62 for run in runs)
