"""What the file store alone has to promise: edits by hand, crashes between two files, a lost file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError, PolicyError, StoreUnavailableError, UnknownVersionError
from spark_throttle.policy.source import PolicyFile
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


def test_half_a_line_at_the_end_of_the_log_is_dropped(store: FileStore, path: Path) -> None:
    commit(store, 0)
    log = path.with_name(path.name + ".log")
    log.write_bytes(log.read_bytes() + b'{"format": 1, "rev')
    assert FileStore(path).revision() == 1
    assert commit(store, 1, "blue") == 2
    assert FileStore(path).revision() == 2


def test_damaged_and_newer_logs_are_refused(store: FileStore, path: Path) -> None:
    commit(store, 0)
    log = path.with_name(path.name + ".log")
    log.write_text("{}\n")
    with pytest.raises(DamagedError, match=rf"line 1 of its log {log} cannot be read: it has no field format; "):
        FileStore(path).check_whole()
    assert [entry.name for entry in FileStore(path).page("tenant")] == ["acme"]
    log.write_text('{"format": 3}\n')
    with pytest.raises(UnknownVersionError):
        FileStore(path)


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


def test_line_of_the_log_has_the_newer_format_only_if_a_tenant_wrote_an_entry(tmp_path: Path) -> None:
    store = FileStore.create(tmp_path / "policies.yaml")
    store.commit([Change("namespace", "acme/x", "{}")], expected_revision=0, author=ANN, at_ms=0)
    store.commit([Change("namespace", "acme/y", "{}", NOTHING)], expected_revision=1, author=ANN, at_ms=0)
    lines = (tmp_path / "policies.yaml.log").read_text().splitlines()
    assert [json.loads(line)["format"] for line in lines] == [1, 2]
    again = FileStore(tmp_path / "policies.yaml")
    assert [(entry.name, entry.given) for entry in again.scan()] == [("acme/x", None), ("acme/y", NOTHING)]


def test_line_of_an_older_release_is_read_without_a_door_and_an_edit_by_hand_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    store = FileStore.create(path)
    store.commit([Change("tenant", "acme", "{}")], expected_revision=0, author=ANN, at_ms=0)
    log = tmp_path / "policies.yaml.log"
    fields = json.loads(log.read_text())
    log.write_text(json.dumps({name: value for name, value in fields.items() if name not in {"door", "caller"}}) + "\n")
    path.write_text("tenants: {acme: {}, blue: {}}")
    assert [(each.who, each.door, each.caller) for each in FileStore(path).history()] == [
        (HAND, "hand", None), (ANN.who, None, None),
    ]  # fmt: skip
