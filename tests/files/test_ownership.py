"""Whom files belong to after somebody else has changed them: a server's files stay the server's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_throttle.command_line.app import app
from spark_throttle.errors import FileUnusableError, StoreUnavailableError
from spark_throttle.files.private_file import locked, replace_private
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file.file_store import FileStore
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
    path.with_name("p.yaml.history").unlink()
    path.write_text("{}")
    path.chmod(0o640)
    os.chown(path, SERVER, SERVER)
    FileStore(path).commit([Change("tenant", "acme", "{}")], expected_revision=0, author=Author("ann"), at_ms=0)
    assert _owner(path) == (SERVER, SERVER, 0o640)
    assert _owner(path.with_name("p.yaml.history"))[:2] == (SERVER, SERVER)


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


# ------------------------------------------------- whoever owns the folder chooses what is in it


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A policy file in a folder of the server's user."""
    path = tmp_path / "folder" / "p.yaml"
    path.parent.mkdir()
    path.write_text("{}")
    for each in (path, path.parent):
        os.chown(each, SERVER, SERVER)
    return path


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of root's."""
    path = tmp_path / "shadow"
    path.write_text("root:secret")
    path.chmod(0o600)
    return path


def _changed_by_root(path: Path) -> Any:
    return CliRunner().invoke(app, ["tenant", "create", "acme", "--store", f"file:{path}"])


@as_root
@pytest.mark.parametrize("name", [".history", ".history-journal"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "second name"])
def test_file_that_the_owner_of_a_store_puts_in_place_of_its_own_stays_roots(
    store: Path, victim: Path, name: str, kind: str
) -> None:
    planted, made = store.with_name(store.name + name), victim.with_name("made")
    if kind == "second name":
        planted.hardlink_to(victim)
    else:
        planted.symlink_to(victim if kind == "link" else made)
    before = store.read_bytes()
    result = _changed_by_root(store)
    assert result.exit_code in (1, 8), result.output  # a second name of what is no history is damage
    assert planted.name in result.output.replace("\n", "")
    assert _owner(victim) == (0, 0, 0o600)
    assert victim.read_text() == "root:secret"
    assert not made.exists()
    assert store.read_bytes() == before
    planted.unlink()
    assert _changed_by_root(store).exit_code == 0


@as_root
def test_temporary_name_of_a_policy_file_cannot_be_guessed(
    store: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    made: list[str] = []

    def noted(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith(".tmp"):
            made.append(Path(path).name)
            assert flags & os.O_EXCL
            assert flags & os.O_NOFOLLOW
        return opened(path, flags, *rest, **options)

    for name in ("p.yaml", "p.yaml.history"):
        store.with_name(f".{name}.{os.getpid()}.tmp").symlink_to(victim)
    monkeypatch.setattr(os, "open", noted)
    assert _changed_by_root(store).exit_code == 0
    assert victim.read_text() == "root:secret"
    assert _owner(victim) == (0, 0, 0o600)
    assert len(made) == 1
    assert _owner(store)[:2] == (SERVER, SERVER)
    assert not store.is_symlink()


@as_root
def test_second_name_stays_whole_also_where_the_document_itself_is_roots(store: Path, victim: Path) -> None:
    os.chown(store, 0, 0)
    store.with_name("p.yaml.history").hardlink_to(victim)
    assert _changed_by_root(store).exit_code == 1
    assert victim.read_text() == "root:secret"


@as_root
@pytest.mark.parametrize("name", [".audit", ".lock"])
def test_second_name_beside_the_servers_token_file_stays_roots(tmp_path: Path, victim: Path, name: str) -> None:
    tokens = tmp_path / "tokens.json"
    run = CliRunner().invoke
    assert run(app, ["token", "create", "ann", "--tokens", str(tokens)]).exit_code == 0
    os.chown(tokens, SERVER, SERVER)
    planted = tokens.with_name(tokens.name + name)
    planted.unlink()
    planted.hardlink_to(victim)
    assert run(app, ["token", "create", "bob", "--tokens", str(tokens)]).exit_code == 8
    assert _owner(victim) == (0, 0, 0o600)
    assert victim.read_text() == "root:secret"


@as_root
def test_existing_file_is_never_given_away(store: Path) -> None:
    log = store.with_name("p.yaml.history")
    log.touch(0o644)
    assert _changed_by_root(store).exit_code == 0
    assert _owner(log)[:2] == (0, 0)


def test_failed_change_of_a_policy_file_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.yaml"
    store = FileStore.create(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailableError, match="No space left"):
        store.commit([Change("tenant", "acme", "{}")], expected_revision=0, author=Author("ann"), at_ms=0)
    assert not [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")]


# -------------------------------------------------------------------------------------------------- Delta stores


@as_root
def test_first_change_of_a_delta_store_by_root_leaves_its_folders_and_its_lock_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    DeltaStore.create(str(path))
    for each in (path, *path.rglob("*")):
        os.chown(each, SERVER, SERVER)
    command = ["tenant", "create", "acme", "--store", f"delta:{path}"]
    assert CliRunner().invoke(app, command).exit_code == 0
    folders = sorted(each.name for each in path.rglob("*") if each.is_dir())
    assert folders == ["_delta_log", "form=change", "form=snapshot"]
    for name in (*folders, "_delta_log/_turn.lock"):
        assert _owner(path / name)[:2] == (SERVER, SERVER)
    assert list((path / "form=change").iterdir())


@pytest.mark.parametrize(("number", "said"), [(13, "Permission denied; run this as the owner"), (28, "No space left")])
def test_lock_of_a_delta_store_that_may_not_be_opened_is_told_so_and_is_no_missing_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    store = DeltaStore.create(str(tmp_path / "policies"))
    opened = os.open

    def refused(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).endswith("_turn.lock"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreUnavailableError, match=said) as caught, store.turn():
        pass
    assert "_turn.lock" in str(caught.value)
    assert "there is no policy store" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------- groups


@as_root
def test_owner_changes_its_private_file_whose_group_it_is_not_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    os.chown(path, SERVER, 4321)
    tmp_path.chmod(0o777)
    said = _as_server(lambda: replace_private(Path(path.name), b"new"), tmp_path)
    assert said == ""
    assert path.read_bytes() == b"new"
    assert _owner(path)[0] == SERVER


@as_root
def test_root_keeps_the_group_of_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    for user in (SERVER, 0):
        os.chown(path, user, 4321)
        replace_private(path, b"new")
        assert _owner(path) == (user, 4321, 0o600)


def _as_server(call: Callable[[], object], folder: Path) -> str:
    """Return what a call says that the server's user makes; an empty text if it succeeds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = ""
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(SERVER)
            os.setuid(SERVER)
            call()
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said
