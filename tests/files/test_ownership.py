"""Whom files belong to after somebody else has changed them: a server's files stay the server's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.cli.app import app
from spark_throttle.errors import FileUnusableError
from spark_throttle.files.private_file import locked, replace_private
from spark_throttle.store.file_store import FileStore
from spark_throttle.store.store import Author, Change

SERVER = 65_534
"""The user that the server runs as."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def _owner(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode & 0o777


@as_root
def test_token_that_root_creates_leaves_the_servers_files_to_the_server(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    run = CliRunner().invoke
    assert run(app, ["token", "create", "ann", "--tokens", str(tokens)]).exit_code == 0
    os.chown(tokens, SERVER, SERVER)
    for beside in (".audit", ".lock"):
        tokens.with_name(tokens.name + beside).unlink()
    assert run(app, ["token", "create", "bob", "--tokens", str(tokens)]).exit_code == 0
    for name in ("", ".audit", ".lock"):
        assert _owner(tokens.with_name(tokens.name + name)) == (SERVER, SERVER, 0o600)


@as_root
def test_change_of_a_policy_file_by_root_leaves_its_files_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    FileStore.create(path)
    path.chmod(0o640)
    os.chown(path, SERVER, SERVER)
    FileStore(path).commit([Change("tenant", "acme", "{}")], expected_revision=0, author=Author("ann"), at_ms=0)
    assert _owner(path) == (SERVER, SERVER, 0o640)
    for name in (".log", ".lock"):
        assert _owner(path.with_name(path.name + name))[:2] == (SERVER, SERVER)


def test_private_file_whose_owner_cannot_be_kept_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    stat = Path.stat

    def of_another(at: Path, **options: Any) -> os.stat_result:
        found = stat(at, **options)
        return os.stat_result((*found[:4], SERVER, SERVER, *found[6:])) if at == path else found

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "stat", of_another)
    monkeypatch.setattr(os, "fchown", refused)
    with pytest.raises(FileUnusableError, match=rf"belongs to the user {SERVER} .* run this as that user"):
        replace_private(path, b"other")
    assert path.read_bytes() == b"{}"
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.json"]


def test_private_file_that_is_new_belongs_to_who_made_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with locked(path):
        replace_private(path, b"{}")
    assert _owner(path) == (os.geteuid(), os.getegid(), 0o600)
