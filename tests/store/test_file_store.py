"""What the file store alone has to promise: edits by hand, crashes between two files, a lost file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError, PolicyError, StoreUnavailableError, UnknownVersionError
from spark_throttle.policy.source import PolicyFile
from spark_throttle.store.file import history
from spark_throttle.store.file.file_store import HAND, FileStore
from spark_throttle.store.store import NOTHING, Author, Change

ANN = Author("ann")
HEAVY = '{"publish":{"weight":3}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


@pytest.fixture
def store(path: Path) -> FileStore:
    return FileStore.create(path)


def commit(store: FileStore, expected: int, name: str = "acme", body: str | None = "{}") -> int:
    return store.commit([Change("tenant", name, body)], expected_revision=expected, author=ANN, at_ms=0)


def edit(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(2**60, 2**60))


def test_job_that_follows_the_file_sees_what_was_committed(store: FileStore, path: Path) -> None:
    commit(store, 0, body=HEAVY)
    assert PolicyFile(path).current().document.tenants["acme"].publish.weight == 3


def test_document_says_after_every_commit_what_the_store_says(store: FileStore, path: Path) -> None:
    for number, (name, body) in enumerate([("acme", HEAVY), ("blue", "{}"), ("cora", HEAVY), ("acme", None)]):
        commit(store, number, name, body)
        document = PolicyFile(path).current().document
        assert list(document.tenants) == [entry.name for entry in store.page("tenant")]
        assert [each.who for each in FileStore(path).history()] == ["ann"] * (number + 1)


def test_edit_by_hand_becomes_a_commit(store: FileStore, path: Path) -> None:
    commit(store, 0)
    edit(path, "tenants: {acme: {publish: {weight: 3}}, blue: {}}")
    assert store.revision() == 2
    assert [(each.who, each.changes) for each in store.history()] == [(HAND, 2), ("ann", 1)]
    assert [entry.name for entry in store.page("tenant")] == ["acme", "blue"]


def test_edit_that_says_the_same_is_no_commit(store: FileStore, path: Path) -> None:
    commit(store, 0)
    edit(path, "# a comment\ntenants: {acme: {}}")
    assert store.revision() == 1


def test_edit_that_cannot_be_applied_is_an_error_and_changes_nothing(store: FileStore, path: Path) -> None:
    commit(store, 0)
    edit(path, "tenants: {acme: {publish: {weight: 0}}}")
    with pytest.raises(PolicyError, match=r"tenants\.acme\.publish\.weight: 0 is less than 1.*correct it"):
        store.revision()
    edit(path, "tenants: {acme: {}}")
    assert store.revision() == 1


@pytest.mark.parametrize("is_moved", [False, True], ids=["before", "after"])
def test_crash_around_the_move_of_the_document_is_finished_or_dropped_by_who_comes_next(
    store: FileStore, path: Path, monkeypatch: pytest.MonkeyPatch, *, is_moved: bool
) -> None:
    commit(store, 0)
    replace = Path.replace

    def crash(written: Path, target: Path) -> Path:
        if target == path:
            if is_moved:
                replace(written, target)
            raise KeyboardInterrupt
        return replace(written, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        commit(store, 1, "blue")
    monkeypatch.undo()
    for opened in (FileStore(path), store):
        assert opened.revision() == (2 if is_moved else 1)
        assert [each.who for each in opened.history()] == ["ann"] * opened.revision()
    assert commit(store, store.revision(), "cora") == (3 if is_moved else 2)


def test_damaged_and_newer_histories_are_refused(store: FileStore, path: Path) -> None:
    commit(store, 0)
    pages_of = path.with_name(path.name + ".history")
    with closing(sqlite3.connect(pages_of)) as pages:
        pages.execute("PRAGMA user_version = 9")
    with pytest.raises(UnknownVersionError, match=rf"the history {pages_of} has format version 9"):
        FileStore(path)
    pages_of.write_text("{}\n" * 200)
    with pytest.raises(DamagedError, match=rf"its history {pages_of} cannot be read: SQLite says of it: file is not a"):
        FileStore(path).check_whole()
    assert [entry.name for entry in FileStore(path).page("tenant")] == ["acme"]


def test_file_that_is_gone_is_an_error_and_is_not_made_anew(store: FileStore, path: Path) -> None:
    path.unlink()
    with pytest.raises(StoreUnavailableError):
        store.revision()
    with pytest.raises(StoreUnavailableError):
        commit(store, 0)
    with pytest.raises(
        StoreUnavailableError, match="there is no such file; make one with `spark-throttle policy apply --init`"
    ):
        FileStore(path)
    assert not path.exists()


def test_file_that_was_written_by_hand_at_first_keeps_what_it_says(path: Path) -> None:
    path.write_text("tenants: {acme: {}}")
    assert [entry.name for entry in FileStore.create(path).page("tenant")] == ["acme"]


def test_what_administrators_gave_is_kept_and_an_edit_by_hand_has_a_door_of_its_own(
    store: FileStore, path: Path
) -> None:
    store.commit([Change("namespace", "acme/x", "{}")], expected_revision=0, author=ANN, at_ms=0)
    store.commit([Change("namespace", "acme/y", "{}", NOTHING)], expected_revision=1, author=ANN, at_ms=0)
    again = FileStore(path)
    assert [(entry.name, entry.given) for entry in again.scan()] == [("acme/x", None), ("acme/y", NOTHING)]
    edit(path, "namespaces: {acme/x: {}, acme/y: {}, acme/z: {}}")
    assert [(each.who, each.door) for each in again.history()] == [(HAND, "hand"), *[("ann", "library")] * 2]
    assert [entry.given for entry in FileStore(path).scan()] == [None, NOTHING, None]


def test_another_author_is_waited_for_only_so_long(
    store: FileStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_SECONDS", 0.01)
    with closing(sqlite3.connect(path.with_name(path.name + ".history"), isolation_level=None)) as pages:
        pages.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailableError, match=r"another author has kept it for 0\.01 s"):
            commit(store, 0)
    assert commit(store, 0) == 1
