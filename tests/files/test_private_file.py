"""Files that only their owner may read: modes, links, pipes, full disks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from spark_throttle.errors import FileUnusableError
from spark_throttle.files import ownership
from spark_throttle.files.private_file import locked, read_private, replace_private


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.json"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666, 0o700, 0o601, 0o4600])
def test_wider_mode_than_the_owners_is_refused_with_the_remedy(path: Path, mode: int) -> None:
    path.write_bytes(b"{}")
    path.chmod(mode)
    with pytest.raises(FileUnusableError, match=rf"its mode is {mode:04o}.* chmod 600 {path}"):
        read_private(path)
    path.chmod(0o600)
    assert read_private(path) == b"{}"
    path.chmod(0o400)
    assert read_private(path) == b"{}"


def test_file_that_is_not_there_is_no_content(path: Path) -> None:
    assert read_private(path) is None


def test_pipe_and_folder_keep_nobody_waiting(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(FileUnusableError, match="not a plain file"):
        read_private(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileUnusableError, match="cannot be"):
        read_private(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_replaced_file_is_its_owners_alone_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        replace_private(path, b"secret")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 & ~0o600 == 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_link_is_read_and_not_written_through(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    replace_private(real, b"kept")
    path.symlink_to(real)
    assert read_private(path) == b"kept"
    with pytest.raises(FileUnusableError, match=f"is a link.*name {real}"):
        replace_private(path, b"new")
    assert (path.is_symlink(), real.read_bytes()) == (True, b"kept")


def test_lock_file_that_is_a_link_is_refused_and_its_target_stays_whole(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    lock = path.with_name("secrets.json.lock")
    lock.symlink_to(victim)
    with pytest.raises(FileUnusableError, match="is a link"), locked(path):
        pass
    with pytest.raises(OSError, match="symbolic links"), ownership.held(lock):
        pass
    dangling = tmp_path / "dangling.lock"
    dangling.symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"), ownership.held(dangling):
        pass
    assert victim.read_bytes() == b"kept"
    assert not (tmp_path / "made").exists()


def test_lock_file_loses_nothing_that_it_holds(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_bytes(b"kept")
    with ownership.held(lock):
        assert lock.read_bytes() == b"kept"
    assert lock.read_bytes() == b"kept"


def test_lock_is_held_until_the_context_ends(path: Path) -> None:
    with locked(path), Path(f"{path}.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with Path(f"{path}.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_full_disk_is_a_clear_error_and_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    replace_private(path, b"old")

    def full(_: int, *__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FileUnusableError, match=r"nothing was changed.*No space left on device"):
            replace_private(path, b"new")
    else:
        opened = os.open
        # Linux' own full disk: every write to it fails.
        monkeypatch.setattr(os, "open", lambda _name, *_rest: opened("/dev/full", os.O_WRONLY))
        with pytest.raises(FileUnusableError, match=r"nothing was changed.*No space left on device"):
            replace_private(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_replaced_file_is_on_the_disk_before_and_its_name_after_the_move(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, move = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")  # noqa: PTH112
        sync(descriptor)

    def moved(self: Path, target: Path) -> Path:
        done.append("move")
        return move(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    replace_private(path, b"new")
    assert done == ["file", "move", "folder"]
