"""A YAML store whose history is gone: readers go on with the document, and nobody adds to half a store."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError, NotFoundError, PolicyError, StoreUnavailableError
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.file.file_store import HAND, FileStore
from spark_throttle.store.file.history import History
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change

ANN = Author("ann")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


@pytest.fixture
def history(path: Path) -> Path:
    return path.with_name("policies.yaml.history")


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


def test_readers_go_on_with_the_policies_as_they_stand(kept: FileStore, path: Path, history: Path) -> None:
    followed = FollowedStore(f"file:{path}")
    before = followed.current()
    history.unlink()
    for store in (kept, FileStore(path)):
        assert names(store) == ["acme", "blue", "cora"]
        assert service_of(store).get("tenant", "blue").values == {"publish": {"weight": 2}}
    assert followed.current() is before
    assert FollowedStore(f"file:{path}").current().document == before.document
    assert kept.revision() == 3
    assert not history.exists()


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
    kept: FileStore, path: Path, history: Path, call: Callable[[FileStore], object], is_new: bool
) -> None:
    history.unlink()
    document = path.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedError) as refused:
            call(FileStore(path) if is_new else kept)
        assert str(refused.value) == (
            f"the policy store file:{path} is damaged: its history {history} is not there, and with it who wrote "
            f"which entry; policies are read as they stand, and nothing is changed; restore the history from "
            f"a backup, or, if it may begin anew, make an empty file of that name"
        )
    assert (path.read_bytes(), history.exists()) == (document, False)


def test_edit_by_hand_is_followed_without_a_history(kept: FileStore, path: Path, history: Path) -> None:
    locked = EntryIndex(kept)
    assert locked.locked_after("") == []
    history.unlink()
    for text, there in (("tenants: {dora: {}}", "dora"), ("tenants: {emmanuel: {}}", "emmanuel")):
        edit(path, text + f"\nnamespaces: {{{there}/x: {{locked: true}}}}")
        assert names(kept) == names(FileStore(path)) == [there]
        assert [entry.name for entry in locked.locked_after("")] == [f"{there}/x"]
    assert not history.exists()


def test_older_revisions_are_not_there_without_a_history(kept: FileStore, path: Path, history: Path) -> None:
    history.unlink()
    with pytest.raises(NotFoundError):
        FileStore(path).get("tenant", "acme", at=3)


def test_restored_history_ends_it(kept: FileStore, path: Path, history: Path) -> None:
    saved = history.read_bytes()
    history.unlink()
    edit(path, "tenants: {dora: {}}")
    assert names(kept) == ["dora"]
    history.write_bytes(saved)
    for store in (kept, FileStore(path)):
        store.check_whole()
        assert [each.who for each in store.history()] == [HAND, "ann", "ann", "ann"]
    assert service_of(kept).put("tenant", "emma", {}, ANN).revision == 5
    assert names(FileStore(path)) == ["dora", "emma"]


def test_empty_history_begins_the_history_anew(kept: FileStore, path: Path, history: Path) -> None:
    history.unlink()
    assert kept.revision() == 3
    history.touch()
    for store in (kept, FileStore(path)):
        assert [(each.revision, each.who) for each in store.history()] == [(1, HAND)]
        assert names(store) == ["acme", "blue", "cora"]
    assert service_of(kept).put("tenant", "late", {}, ANN).revision == 2


def test_history_that_is_gone_is_told_once_in_the_log_of_the_process(
    kept: FileStore, history: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history.unlink()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            kept.revision()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"the policy store {kept.location} is damaged: its history {history} is not there, and"
    )


def test_document_that_nobody_has_opened_has_lost_nothing(path: Path) -> None:
    path.write_text("tenants: {acme: {}}")
    store = FileStore(path)
    store.check_whole()
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 2
    assert [each.who for each in FileStore(path).history()] == ["ann", HAND]


def test_new_store_that_is_edited_before_its_first_commit_has_lost_nothing(path: Path) -> None:
    FileStore.create(path)
    edit(path, "tenants: {acme: {}}")
    assert [each.who for each in FileStore(path).history()] == [HAND]


def test_crash_before_the_first_commit_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("tenants: {acme: {}}")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(History, "_connected", killed)
        with pytest.raises(KeyboardInterrupt):
            service_of(FileStore(path)).put("tenant", "late", {}, ANN)
    FileStore(path).check_whole()
    assert names(FileStore(path)) == ["acme"]


@pytest.mark.parametrize("is_created", [False, True])
def test_document_that_is_gone_beside_its_history_is_restored_and_not_made_anew(
    kept: FileStore, path: Path, history: Path, is_created: bool
) -> None:
    path.unlink()
    lines = history.read_bytes()
    with pytest.raises(DamagedError) as refused:
        FileStore.create(path) if is_created else FileStore(path)
    assert str(refused.value) == (
        f"the policy store file:{path} is damaged: its document is not there, and its history {history} is; restore "
        f"the document from a backup, or, to begin a new store, move the history away first"
    )
    with pytest.raises(DamagedError):
        kept.revision()
    assert (path.exists(), history.read_bytes()) == (False, lines)


# ------------------------------------------------------------------------------------ a history that is not whole


def without(statement: str) -> Callable[[Path], None]:
    def harm(history: Path) -> None:
        with closing(sqlite3.connect(history, isolation_level=None)) as pages:
            pages.execute(statement)

    return harm


def overwrite(history: Path, content: bytes) -> None:
    history.write_bytes(content)


HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "first lost": (without("DELETE FROM commits WHERE revision = 1"), "revision 1 is missing from"),
    "middle lost": (without("DELETE FROM commits WHERE revision = 2"), "revision 2 is missing from"),
    "an entry lost": (without("DELETE FROM entries WHERE revision = 2"), "revision 2 is missing from"),
    "an entry of no kind": (without("UPDATE entries SET kind = 'x' WHERE revision = 3"), "revision 3 is missing from"),
    "a table lost": (without("DROP TABLE entries"), "SQLite says of it: no such table: entries"),
    "zeros": (lambda history: overwrite(history, bytes(20_000)), "SQLite says of it: file is not a database"),
    "cut": (
        lambda history: overwrite(history, history.read_bytes()[:5_000]),
        "SQLite says of it: database disk image is malformed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "said"), HARMS.values(), ids=HARMS)
def test_history_that_cannot_be_read_changes_no_policy_and_refuses_changes(
    kept: FileStore, path: Path, history: Path, harm: Callable[[Path], None], said: str
) -> None:
    whole, document = history.read_bytes(), path.read_bytes()
    harm(history)
    damaged = history.read_bytes()
    store = FileStore(path)
    followed = FollowedStore(f"file:{path}").current()
    assert sorted(followed.document.tenants) == names(store) == names(kept) == ["acme", "blue", "cora"]
    for call in (
        lambda: service_of(store).put("tenant", "late", {}, ANN),
        lambda: service_of(store).history(),
        lambda: service_of(store).planned(followed.document),
        lambda: store.commit([Change("tenant", "late", "{}")], expected_revision=store.revision(), author=ANN, at_ms=0),
        store.check_whole,
    ):
        with pytest.raises(DamagedError) as refused:
            call()
        told = str(refused.value)
        assert told.startswith(f"the policy store file:{path} is damaged: its history {history} cannot be read: {said}")
        assert told.endswith("in its place")
    assert (path.read_bytes(), history.read_bytes()) == (document, damaged)
    # Both remedies of the message help.
    history.write_bytes(whole)
    for each in (store, kept):
        assert [commit.who for commit in each.history()] == ["ann"] * 3
    history.write_bytes(b"")
    for each in (store, kept):
        assert [(commit.revision, commit.who) for commit in each.history()] == [(1, HAND)]
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 2
    assert names(kept) == names(FileStore(path)) == ["acme", "blue", "cora", "late"]


def test_edit_by_hand_is_followed_beside_a_damaged_history(kept: FileStore, path: Path, history: Path) -> None:
    history.write_bytes(bytes(20_000))
    for there in ("dora", "emmanuel"):
        edit(path, f"tenants: {{{there}: {{}}}}")
        assert names(kept) == names(FileStore(path)) == [there]
    assert history.read_bytes() == bytes(20_000)


def test_folder_in_place_of_the_history_is_damage_with_its_path_and_the_remedy(
    kept: FileStore, path: Path, history: Path
) -> None:
    history.unlink()
    history.mkdir()
    for store in (kept, FileStore(path)):
        assert names(store) == ["acme", "blue", "cora"]
        with pytest.raises(DamagedError) as refused:
            service_of(store).put("tenant", "late", {}, ANN)
        assert f"its history {history} is a folder or no file at all" in str(refused.value)
        assert str(refused.value).endswith("put an empty file in its place")
    history.rmdir()
    history.touch()
    for number, store in enumerate((kept, FileStore(path)), start=2):
        assert service_of(store).put("tenant", f"late-{number}", {}, ANN).revision == number


def test_process_that_has_read_a_history_misses_it_also_beside_a_document_that_does_not_name_it(
    kept: FileStore, path: Path, history: Path
) -> None:
    history.unlink()
    edit(path, "tenants: {acme: {}}")
    assert names(FileStore(path)) == names(kept) == ["acme"]
    with pytest.raises(DamagedError, match=r"its history .* is not there"):
        service_of(kept).put("tenant", "late", {}, ANN)
    assert not history.exists()
    history.touch()
    assert service_of(kept).put("tenant", "late", {}, ANN).revision == 2


# --------------------------------------------------------------------------------- a document that is no store so far


def test_document_becomes_a_store_with_its_first_change_and_not_by_being_read(path: Path) -> None:
    path.write_text("tenants: {acme: {}}")
    store = FileStore(path)
    for there in ("acme", "blue-sky", "cornelia-x"):
        edit(path, f"tenants: {{{there}: {{}}}}")
        assert names(store) == names(FileStore(path)) == [there]
        assert [(each.revision, each.who) for each in store.history()] == [(1, HAND)]
        store.check_whole()
    assert list(path.parent.iterdir()) == [path]
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 2
    assert [each.who for each in FileStore(path).history()] == ["ann", HAND]
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, f"{path.name}.history"]


@pytest.mark.parametrize("content", [b"tenants: [", b"tenants: {acme: {publish: {weight: 0}}}"])
def test_document_that_cannot_be_read_becomes_no_store(path: Path, content: bytes) -> None:
    path.write_text("{}")
    store = FileStore(path)
    path.write_bytes(content)
    for call in (
        lambda: store.commit([Change("tenant", "late", "{}")], expected_revision=0, author=ANN, at_ms=0),
        lambda: FileStore.create(path),
    ):
        with pytest.raises(PolicyError):
            call()
        assert list(path.parent.iterdir()) == [path]
    edit(path, "{}")
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 1


def test_folder_in_place_of_the_document_gets_no_files_beside_it(path: Path) -> None:
    path.mkdir()
    for call in (FileStore, FileStore.create):
        with pytest.raises(StoreUnavailableError, match=rf"{path}: Is a directory"):
            call(path)
    assert list(path.parent.iterdir()) == [path]


# -------------------------------------------------------------------------------------- the remedy of a lost document


def test_new_store_is_made_when_the_history_was_moved_away_as_the_message_says(
    kept: FileStore, path: Path, history: Path
) -> None:
    path.unlink()
    for call in (FileStore.create, FileStore):
        with pytest.raises(DamagedError, match=rf"its history {history} is; .* move the history away first"):
            call(path)
        assert not path.exists()
    history.rename(history.with_name("old history"))
    with pytest.raises(StoreUnavailableError):
        FileStore(path)
    store = FileStore.create(path)
    assert service_of(store).put("tenant", "dora", {}, ANN).revision == 1
    assert names(kept) == names(FileStore(path)) == ["dora"]
    kept.check_whole()


# ------------------------------------------------------------------------------------- a history that is another one


def test_history_that_was_cut_and_has_grown_again_is_read_anew(kept: FileStore, path: Path, history: Path) -> None:
    without("DELETE FROM commits WHERE revision > 1")(history)
    without("DELETE FROM entries WHERE revision > 1")(history)
    other = FileStore(path)
    for number in range(8):
        service_of(other).put("tenant", f"t{number}", {}, ANN)
    assert (kept.revision(), names(kept)) == (other.revision(), names(other))
    assert service_of(kept).put("tenant", "late", {}, ANN).revision == other.revision()
    assert names(kept) == names(FileStore(path))
    assert [each.revision for each in kept.history()] == [each.revision for each in FileStore(path).history()]
