"""The remedy for a damaged file depends on the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.checkpoint.manifest import next_incarnation
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.store.entries import policy_of
from spark_throttle.store.store import Entry


def test_damaged_token_file_asks_for_no_backup_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"format": 1')
    path.chmod(0o600)
    with pytest.raises(
        DamagedError, match=r"tokens.json is damaged: .*; restore it from a backup, or remove it and"
    ) as e:
        TokenFile(path, clock_ms=lambda: 0).list()
    assert "checkpoint" not in str(e.value)


def test_damaged_entry_of_a_store_is_written_anew() -> None:
    with pytest.raises(DamagedError, match="write the entry anew, or restore the store from a backup") as e:
        policy_of(Entry("tenant", "acme", "{", 1))
    assert "checkpoint" not in str(e.value)


def test_damaged_file_of_a_checkpoint_is_restored_with_it(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    next_incarnation(directory)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_text("x")
    with pytest.raises(DamagedError, match="restore it from a backup of the checkpoint"):
        next_incarnation(directory)
