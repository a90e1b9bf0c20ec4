"""A YAML store whose log is gone: readers go on with the policies as they stand, and nobody adds to half a store."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError, NotFoundError
from spark_throttle.store.delegation.locked_entries import LockedEntries
from spark_throttle.store.file_store import HAND, FileStore
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change

ANN = Author("ann")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


@pytest.fixture
def log(path: Path) -> Path:
    return path.with_name("policies.yaml.log")


@pytest.fixture
def kept(path: Path) -> FileStore:
    """A store with three revisions, which this process has read."""
    store = FileStore.create(path)
    for name in ("acme", "blue", "cora"):
        service_of(store).put("tenant", name, {"publish": {"weight": 2}}, ANN)
    return store


def service_of(store: FileStore) -> PolicyService:
    return PolicyService(store, clock_ms=lambda: 0)


def names(store: FileStore) -> list[str]:
    return [entry.name for entry in store.page("tenant")]


def edit(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(2**60, 2**60))


def test_readers_go_on_with_the_policies_as_they_stand(kept: FileStore, path: Path, log: Path) -> None:
    followed = FollowedStore(f"file:{path}")
    before = followed.current()
    log.unlink()
    for store in (kept, FileStore(path)):
        assert names(store) == ["acme", "blue", "cora"]
        assert service_of(store).get("tenant", "blue").values == {"publish": {"weight": 2}}
    assert followed.current() is before
    assert FollowedStore(f"file:{path}").current().document == before.document
    assert kept.revision() == 3
    assert not log.exists()


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: service_of(store).put("tenant", "late", {}, ANN),
        lambda store: service_of(store).delete("tenant", "acme", ANN, expected=1),
        lambda store: service_of(store).rollback(1, ANN),
        lambda store: service_of(store).diff(0, 1),
        lambda store: service_of(store).history(),
        lambda store: store.commit([Change("tenant", "late", "{}")], expected_revision=3, author=ANN, at_ms=0),
        lambda store: store.check_whole(),
    ],
    ids=["put", "delete", "rollback", "diff", "history", "commit", "check"],
)
def test_changes_and_the_history_are_refused_with_the_remedy(
    kept: FileStore, path: Path, log: Path, call: Callable[[FileStore], object], is_new: bool
) -> None:
    log.unlink()
    document = path.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedError) as refused:
            call(FileStore(path) if is_new else kept)
        assert str(refused.value) == (
            f"the policy store file:{path} is damaged: its log {log} is not there, and with it the history and who "
            f"wrote which entry; policies are read as they stand, and nothing is changed; restore the log from a "
            f"backup, or, if the history may begin anew, make an empty file of that name"
        )
    assert (path.read_bytes(), log.exists()) == (document, False)


def test_edit_by_hand_is_followed_without_a_log(kept: FileStore, path: Path, log: Path) -> None:
    locked = LockedEntries(kept)
    assert locked.after("") == []
    log.unlink()
    for text, there in (("tenants: {dora: {}}", "dora"), ("tenants: {emmanuel: {}}", "emmanuel")):
        edit(path, text + f"\nnamespaces: {{{there}/x: {{locked: true}}}}")
        assert names(kept) == names(FileStore(path)) == [there]
        assert [entry.name for entry in locked.after("")] == [f"{there}/x"]
    assert not log.exists()


def test_older_revisions_are_not_there_without_a_log(kept: FileStore, path: Path, log: Path) -> None:
    log.unlink()
    with pytest.raises(NotFoundError):
        FileStore(path).get("tenant", "acme", at=3)


def test_restored_log_ends_it(kept: FileStore, path: Path, log: Path) -> None:
    saved = log.read_bytes()
    log.unlink()
    edit(path, "tenants: {dora: {}}")
    assert names(kept) == ["dora"]
    log.write_bytes(saved)
    for store in (kept, FileStore(path)):
        store.check_whole()
        assert [each.who for each in store.history()] == [HAND, "ann", "ann", "ann"]
    assert service_of(kept).put("tenant", "emma", {}, ANN).revision == 5
    assert names(FileStore(path)) == ["dora", "emma"]


def test_empty_log_begins_the_history_anew(kept: FileStore, path: Path, log: Path) -> None:
    log.unlink()
    assert kept.revision() == 3
    log.touch()
    for store in (kept, FileStore(path)):
        assert [(each.revision, each.who) for each in store.history()] == [(1, HAND)]
        assert names(store) == ["acme", "blue", "cora"]
    assert service_of(kept).put("tenant", "late", {}, ANN).revision == 2


def test_log_that_is_gone_is_told_once_in_the_log_of_the_process(
    kept: FileStore, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.unlink()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            kept.revision()
    (record,) = caplog.records
    assert record.message.startswith(f"the policy store {kept.location} is damaged: its log {log} is not there, and")


def test_document_that_nobody_has_opened_has_lost_nothing(path: Path, log: Path) -> None:
    path.write_text("tenants: {acme: {}}")
    FileStore(path).check_whole()
    assert len(log.read_bytes().splitlines()) == 1


def test_new_store_that_is_edited_before_its_first_commit_has_lost_nothing(path: Path) -> None:
    FileStore.create(path)
    edit(path, "tenants: {acme: {}}")
    assert [each.who for each in FileStore(path).history()] == [HAND]


def test_log_is_made_before_the_lock_so_that_a_crash_between_them_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_throttle.files import file_lock

    path.write_text("tenants: {acme: {}}")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file_lock, "held", killed)
        with pytest.raises(KeyboardInterrupt):
            FileStore(path)
    FileStore(path).check_whole()
    assert names(FileStore(path)) == ["acme"]


@pytest.mark.parametrize("is_created", [False, True])
def test_document_that_is_gone_beside_its_log_is_restored_and_not_made_anew(
    kept: FileStore, path: Path, log: Path, is_created: bool
) -> None:
    path.unlink()
    lines = log.read_bytes()
    with pytest.raises(DamagedError) as refused:
        FileStore.create(path) if is_created else FileStore(path)
    assert str(refused.value) == (
        f"the policy store file:{path} is damaged: its document is not there, and its log {log} is; restore the "
        f"document from a backup, or, to begin a new store, move the log away first"
    )
    with pytest.raises(DamagedError):
        kept.revision()
    assert (path.exists(), log.read_bytes()) == (False, lines)
