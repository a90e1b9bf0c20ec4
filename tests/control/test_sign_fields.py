"""Values that no job writes into its small files: each is one damaged file of one job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.checkpoint.manifest import bind, read_manifest
from spark_throttle.control.next_policies import NextPolicies, read_next_policies, write_next_policies
from spark_throttle.control.sign_of_life import NAME, SignOfLife, read_sign_of_life, write_sign_of_life
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory

SIGN = SignOfLife("5eed", 7, 10_000, 1_760_000_000_000, 5_000_000, "boot", 20, 4_000)
HUGE = 10**30


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path))


def _changed(folder: Path, name: str, field: str, value: object) -> None:
    fields = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**fields, field: value}))


ABSURD: list[tuple[str, Any]] = [
    ("run", 5), ("run", ""), ("run", "x" * 5_000), ("number", -1), ("number", HUGE), ("number", "7"), ("number", 7.5),
    ("number", True), ("number", None), ("interval_ms", 0), ("interval_ms", -5), ("interval_ms", 10**18),
    ("interval_ms", HUGE), ("interval_ms", 10**400), ("wall_ms", -1), ("wall_ms", HUGE), ("wall_ms", 10**15),
    ("steady_ms", -1), ("steady_ms", HUGE), ("boot", None), ("boot", "x" * 5_000), ("asked_ms", -(10**15)),
    ("asked_ms", HUGE), ("asked_ms", 5_000_001), ("longest_pause_ms", -1), ("longest_pause_ms", 10**15),
    ("cores", 0), ("cores", "2"), ("cores", HUGE), ("has_ended", "false"), ("has_ended", 0), ("has_ended", None),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), ABSURD)
def test_absurd_field_of_a_sign_of_life_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    write_sign_of_life(directory, SIGN)
    assert read_sign_of_life(directory) == SIGN
    _changed(tmp_path, NAME, field, value)
    with pytest.raises(DamagedError, match=rf"the sign of life .*{field}"):
        read_sign_of_life(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [("store_revision", "7"), ("store_revision", -1), ("store_revision", HUGE), ("store_revision", True),
     ("store_revision", 7.0), ("revision", 5), ("revision", "x" * 5_000), ("problem", 5), ("problem", ["x"])],
)  # fmt: skip
def test_absurd_field_of_the_followed_policies_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    followed = NextPolicies("0123456789abcdef", 7, None)
    write_next_policies(directory, followed)
    assert read_next_policies(directory) == followed
    _changed(tmp_path, "followed.json", field, value)
    with pytest.raises(DamagedError, match=field):
        read_next_policies(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [("direction", "both"), ("direction", 1),
     ("query", 7), ("query", "")],
)  # fmt: skip
def test_absurd_field_of_the_manifest_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    bind(directory, direction="publish")
    _changed(tmp_path, "manifest.json", field, value)
    with pytest.raises(DamagedError, match=field):
        read_manifest(directory)
