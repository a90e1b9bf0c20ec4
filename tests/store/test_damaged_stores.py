"""A file store that somebody damaged by hand: a process that has read it before says what a new one says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.errors import StoredFormatError, ThrottleError
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, PolicyStore

ANN = Author("ann")
REVISIONS = 6


def commit(store: PolicyStore, name: str) -> int:
    made = PolicyService(store, clock_ms=lambda: 0, pause=lambda _: None).put("tenant", name, {}, ANN)
    return made.revision


def said(call: Callable[[], object]) -> object:
    """Return what a call answers, or its error in words."""
    try:
        return call()
    except ThrottleError as error:
        return f"{type(error).__name__}: {error}"


def lines(number: int) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(data.splitlines(keepends=True)[:number])


def content(store: PolicyStore) -> object:
    return said(lambda: (store.revision(), [entry.name for entry in store.scan()]))


# ------------------------------------------------------------------------------------------------ YAML files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


@pytest.fixture
def kept(file: Path) -> FileStore:
    store = FileStore.create(file)
    for number in range(REVISIONS):
        commit(store, f"t{number}")
    return store


@pytest.mark.parametrize("left", ["nothing", "two lines", "half a line"])
def test_server_and_command_line_say_the_same_of_a_truncated_log(kept: FileStore, file: Path, left: str) -> None:
    log = file.with_name(file.name + ".log")
    data = log.read_bytes()
    log.write_bytes({"nothing": b"", "two lines": lines(2)(data), "half a line": data[: len(data) // 2]}[left])
    assert content(kept) == content(FileStore(file))
    assert commit(kept, "late") == kept.revision()
    assert content(kept) == content(FileStore(file))
    assert [each.revision for each in kept.history()] == [each.revision for each in FileStore(file).history()]


def test_log_that_was_cut_and_has_grown_again_is_read_anew(kept: FileStore, file: Path) -> None:
    log = file.with_name(file.name + ".log")
    log.write_bytes(lines(2)(log.read_bytes()))
    other = FileStore(file)
    for number in range(8):
        commit(other, f"other-{number}")
    assert content(kept) == content(other)
    assert commit(kept, "late") == other.revision()
    assert content(kept) == content(FileStore(file))


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"", lambda _: b"[]\n", lambda _: b"{}\n", lambda _: b"\xff\xfe\n", lambda line: line[:-30],
        lambda line: line[:-1], lambda line: line.replace(b'"revision": 2', b'"revision": "two"'),
        lambda line: line.replace(b'"revision": 2', b'"revision": 99'), lambda _: b"[" * 100_000,
        lambda line: line.replace(b'"format": 1', b'"format": 99'),
    ],
)  # fmt: skip
def test_damaged_pending_commit_is_an_error_with_the_remedy_that_helps(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path, kept = tmp_path / "p.yaml", tmp_path / "kept.yaml"
    store, other = FileStore.create(path), FileStore.create(kept)
    for each in (store, other):
        commit(each, "t0")
    commit(other, "t1")
    # The process died after it had moved the document into place: the commit is pending.
    pending = tmp_path / "p.yaml.pending"
    line = (tmp_path / "kept.yaml.log").read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(kept.read_bytes())
    pending.write_bytes(damage(line))
    for _ in range(2):
        for call in (store.revision, lambda: commit(store, "t2"), lambda: FileStore(path).revision()):
            with pytest.raises(StoredFormatError, match=r"the pending commit .*p\.yaml\.pending"):
                call()
    assert any(remedy in str(said(store.revision)) for remedy in ("remove the file", "run the release"))
    pending.unlink()
    assert [entry.name for entry in store.scan()] == [entry.name for entry in FileStore(path).scan()] == ["t0", "t1"]
    assert store.history()[0].who == "edited by hand"
