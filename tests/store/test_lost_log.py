"""A YAML store whose log is gone: readers go on with the policies as they stand, and nobody adds to half a store."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.errors import DamagedError, NotFoundError, PolicyError, StoreUnavailableError
from spark_throttle.store.checks.namespace_index import NamespaceIndex
from spark_throttle.store.file.file_store import HAND, FileStore
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
    locked = NamespaceIndex(kept)
    assert locked.locked_after("") == []
    log.unlink()
    for text, there in (("tenants: {dora: {}}", "dora"), ("tenants: {emmanuel: {}}", "emmanuel")):
        edit(path, text + f"\nnamespaces: {{{there}/x: {{locked: true}}}}")
        assert names(kept) == names(FileStore(path)) == [there]
        assert [entry.name for entry in locked.locked_after("")] == [f"{there}/x"]
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
    assert record.getMessage().startswith(
        f"the policy store {kept.location} is damaged: its log {log} is not there, and"
    )


def test_document_that_nobody_has_opened_has_lost_nothing(path: Path, log: Path) -> None:
    path.write_text("tenants: {acme: {}}")
    store = FileStore(path)
    store.check_whole()
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 2
    assert len(log.read_bytes().splitlines()) == 2


def test_new_store_that_is_edited_before_its_first_commit_has_lost_nothing(path: Path) -> None:
    FileStore.create(path)
    edit(path, "tenants: {acme: {}}")
    assert [each.who for each in FileStore(path).history()] == [HAND]


def test_log_is_made_before_the_lock_so_that_a_crash_between_them_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_throttle.files import ownership

    path.write_text("tenants: {acme: {}}")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ownership, "held", killed)
        with pytest.raises(KeyboardInterrupt):
            service_of(FileStore(path)).put("tenant", "late", {}, ANN)
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


# ------------------------------------------------------------------------------------------- a log that is not whole


HARMS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "first lost": (lambda lines: lines[1:], "line 1 of its log {log} has revision 2, so"),
    "middle lost": (lambda lines: [lines[0], *lines[2:]], "line 2 of its log {log} has revision 3, so"),
    "doubled": (lambda lines: [lines[0], lines[0], *lines[1:]], "line 2 of its log {log} has revision 1, so"),
    "last doubled": (lambda lines: [*lines, lines[-1]], "line 4 of its log {log} has revision 3, so"),
    "swapped": (lambda lines: [lines[1], lines[0], lines[2]], "line 1 of its log {log} has revision 2, so"),
    "a line of zeros": (lambda lines: [lines[0], b"\0\0\n", lines[2]], "line 2 of its log {log} cannot be read"),
    "an empty line": (lambda lines: [lines[0], b"\n", *lines[1:]], "line 2 of its log {log} cannot be read"),
    "cut and appended": (lambda lines: [lines[0][:40], *lines[1:]], "line 1 of its log {log} cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(("harm", "said"), HARMS.values(), ids=HARMS)
def test_log_with_a_damaged_line_changes_no_policy_and_refuses_changes(
    kept: FileStore, path: Path, log: Path, harm: Callable[[list[bytes]], list[bytes]], said: str, *, is_new: bool
) -> None:
    whole, document = log.read_bytes(), path.read_bytes()
    log.write_bytes(b"".join(harm(whole.splitlines(keepends=True))))
    damaged = log.read_bytes()
    store = FileStore(path) if is_new else kept
    followed = FollowedStore(f"file:{path}").current()
    assert sorted(followed.document.tenants) == names(store) == ["acme", "blue", "cora"]
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
        assert told.startswith(f"the policy store file:{path} is damaged: {said.format(log=log)}")
        assert told.endswith("in its place")
    assert (path.read_bytes(), log.read_bytes()) == (document, damaged)
    # Both remedies of the message help.
    log.write_bytes(whole)
    assert [each.who for each in store.history()] == ["ann"] * 3
    log.write_bytes(damaged)
    with pytest.raises(DamagedError):
        store.history()
    log.write_bytes(b"")
    assert [(each.revision, each.who) for each in store.history()] == [(1, HAND)]
    assert service_of(store).put("tenant", "late", {}, ANN).revision == 2
    assert names(store) == names(FileStore(path)) == ["acme", "blue", "cora", "late"]


def test_edit_by_hand_is_followed_beside_a_damaged_log(kept: FileStore, path: Path, log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
    before = log.read_bytes()
    for there in ("dora", "emmanuel"):
        edit(path, f"tenants: {{{there}: {{}}}}")
        assert names(kept) == names(FileStore(path)) == [there]
    assert log.read_bytes() == before


def test_line_that_follows_nothing_is_not_read_with_what_came_before_it(kept: FileStore, log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines, lines[-1].replace(b'"revision": 3', b'"revision": 4'), lines[-1]]))
    with pytest.raises(DamagedError, match=r"line 5 of its log .* has revision 3"):
        kept.history()
    assert (names(kept), kept.revision()) == (["acme", "blue", "cora"], 3)


@pytest.mark.parametrize("has_lock", [True, False])
def test_folder_in_place_of_the_log_is_damage_with_its_path_and_the_remedy(
    kept: FileStore, path: Path, log: Path, *, has_lock: bool
) -> None:
    log.unlink()
    log.mkdir()
    if not has_lock:
        path.with_name("policies.yaml.lock").unlink()
    for store in (kept, FileStore(path)):
        assert names(store) == ["acme", "blue", "cora"]
        with pytest.raises(DamagedError) as refused:
            service_of(store).put("tenant", "late", {}, ANN)
        assert f"its log {log} is a folder or no file at all" in str(refused.value)
        assert str(refused.value).endswith("put an empty file in its place")
    log.rmdir()
    log.touch()
    for number, store in enumerate((kept, FileStore(path)), start=2):
        assert service_of(store).put("tenant", f"late-{number}", {}, ANN).revision == number


# ---------------------------------------------------------------------------------------- log and lock lost together


def test_process_that_has_read_a_log_knows_that_it_is_lost_without_the_lock(
    kept: FileStore, path: Path, log: Path
) -> None:
    log.unlink()
    path.with_name("policies.yaml.lock").unlink()
    for store in (kept, FileStore(path)):  # the first leaves the lock, by which others know it too
        assert names(store) == ["acme", "blue", "cora"]
        with pytest.raises(DamagedError, match=r"its log .* is not there"):
            service_of(store).put("tenant", "late", {}, ANN)
    assert not log.exists()
    log.touch()
    assert service_of(kept).put("tenant", "late", {}, ANN).revision == 2


def test_reader_makes_no_store_of_a_document_so_that_a_process_that_knows_its_log_still_misses_it(
    kept: FileStore, path: Path, log: Path
) -> None:
    log.unlink()
    path.with_name("policies.yaml.lock").unlink()
    assert names(FileStore(path)) == ["acme", "blue", "cora"]
    with pytest.raises(DamagedError, match=r"its log .* is not there"):
        kept.check_whole()


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
    assert sorted(each.name for each in path.parent.iterdir()) == [
        path.name, f"{path.name}.lock", f"{path.name}.log",
    ]  # fmt: skip


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


def test_new_store_is_made_when_the_log_was_moved_away_as_the_message_says(
    kept: FileStore, path: Path, log: Path
) -> None:
    path.unlink()
    pending = path.with_name("policies.yaml.pending")
    pending.write_bytes(log.read_bytes().splitlines(keepends=True)[-1])
    for what, left in (("log", log), ("pending commit", pending)):
        for call in (FileStore.create, FileStore):
            with pytest.raises(DamagedError, match=rf"its {what} {left} is; .* move the {what} away first"):
                call(path)
            assert not path.exists()
        left.rename(left.with_name(f"old {what}"))
    with pytest.raises(StoreUnavailableError):
        FileStore(path)
    store = FileStore.create(path)
    assert service_of(store).put("tenant", "dora", {}, ANN).revision == 1
    assert names(kept) == names(FileStore(path)) == ["dora"]
    kept.check_whole()
