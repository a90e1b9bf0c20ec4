"""What a YAML store promises while others move, restore, link, edit or protect its files, and jobs follow it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file.document import Document
from spark_throttle.store.file.file_store import HAND, FileStore
from spark_throttle.store.file.history import Pages
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import NOTHING, Author, Change, Entry, Kind, PolicyStore

ANN = Author("ann")
TENANT = Author("anton", tenant="acme")
FIVE = {"publish": {"messages_per_second": 5}}
THREE = {"publish": {"messages_per_second": 3}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


@pytest.fixture
def history(path: Path) -> Path:
    return path.with_name(path.name + ".history")


@pytest.fixture
def store(path: Path) -> FileStore:
    """A store in which an administrator and a tenant's administrator have written."""
    store = FileStore.create(path)
    service_of(store).put("tenant", "acme", FIVE, ANN)
    service_of(store).put("namespace", "acme/x", FIVE, TENANT)
    return store


def service_of(store: PolicyStore) -> PolicyService:
    return PolicyService(store, clock_ms=lambda: 0)


def authors(store: FileStore) -> list[tuple[int, str]]:
    return [(each.revision, each.who) for each in store.history()]


WRITTEN = [(2, "anton"), (1, "ann")]


# ------------------------------------------------------------------------------------------------------ links


def test_change_by_a_link_to_the_document_is_refused(store: FileStore, path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "policies.yaml"
    link.symlink_to(path)
    by_link = FileStore(link)
    assert by_link.get("tenant", "acme") is not None
    for call in (lambda: service_of(by_link).put("tenant", "blue", {}, ANN), lambda: FileStore.create(link)):
        with pytest.raises(
            StoreUnavailableError, match=f"is a link, .* give the document by its own name, file:{path}"
        ):
            call()
    assert link.is_symlink()
    assert list(link.parent.iterdir()) == [link]
    assert authors(FileStore(path)) == WRITTEN
    service_of(store).put("tenant", "blue", {}, ANN)
    assert by_link.get("tenant", "blue") is not None


def test_pipe_in_the_place_of_the_document_keeps_nobody_waiting(path: Path) -> None:
    os.mkfifo(path)
    for opened in (FileStore, FileStore.create):
        with pytest.raises(StoreUnavailableError, match="is a pipe"):
            opened(path)


# --------------------------------------------------------------------------------- edits that leave no trace


def test_edit_within_a_tick_of_the_files_clock_is_seen(store: FileStore, path: Path) -> None:
    found = path.stat()
    follower = FileStore(path, clock_ns=lambda: found.st_mtime_ns + 1_000_000)
    assert follower.revision() == 2
    text = path.read_bytes()
    path.write_bytes(text.replace(b"messages_per_second: 5", b"messages_per_second: 9"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert follower.revision() == 3
    assert authors(follower)[0] == (3, HAND)


def test_document_that_has_settled_is_not_read_again(
    store: FileStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest_ns = max(each.stat().st_mtime_ns for each in path.parent.iterdir())
    follower = FileStore(path, clock_ns=lambda: newest_ns + 10**9)
    assert follower.revision() == 2

    def read(_: Path) -> bytes:
        raise AssertionError("the document was read")

    monkeypatch.setattr(Path, "read_bytes", read)
    assert follower.revision() == 2


# --------------------------------------------------------------------------------------- backups that come back


@pytest.fixture
def backup(store: FileStore, path: Path, history: Path, tmp_path: Path) -> Path:
    """A backup of the store, which has changed since."""
    folder = tmp_path / "backup"
    folder.mkdir()
    for file in (path, history):
        shutil.copy(file, folder)
    service_of(store).put("namespace", "acme/x", THREE, TENANT)
    service_of(store).put("tenant", "acme", THREE, ANN)
    return folder


@pytest.mark.parametrize("is_history_first", [False, True])
def test_backup_is_put_back_one_file_after_the_other_while_jobs_follow(
    store: FileStore, path: Path, history: Path, backup: Path, *, is_history_first: bool
) -> None:
    followed = FollowedStore(f"file:{path}")
    assert followed.current().store_revision == 4
    for file in (history, path) if is_history_first else (path, history):
        for content in (b"", (backup / file.name).read_bytes()):  # as `cp` does
            file.write_bytes(content)
            followed.current()
            store.generation  # noqa: B018 - a server asks for it
    snapshot = followed.current()
    assert (snapshot.store_revision, snapshot.problem) == (2, None)
    assert history.read_bytes() == (backup / history.name).read_bytes()
    assert authors(store) == authors(FileStore(path)) == WRITTEN
    entry = store.get("namespace", "acme/x")
    assert entry is not None
    assert entry.given == NOTHING


def test_reader_begins_no_history_in_a_log_that_was_emptied(store: FileStore, path: Path, history: Path) -> None:
    followed = FollowedStore(f"file:{path}")
    followed.current()
    history.write_bytes(b"")
    snapshot = followed.current()
    assert (list(snapshot.document.tenants), snapshot.store_revision, history.read_bytes()) == (["acme"], 1, b"")
    assert service_of(store).put("tenant", "blue", {}, ANN).revision == 2
    assert authors(store) == authors(FileStore(path)) == [(2, "ann"), (1, HAND)]


class OvertakenStore(MemoryStore):
    """A store that a backup takes the place of, between the look at its newest revision and the reading of it."""

    def __init__(self) -> None:
        super().__init__()
        self.backup: MemoryStore | None = None
        self.place: MemoryStore | None = None

    @property
    def generation(self) -> int:
        return int(self.place is not None)

    def revision(self) -> int:
        return super().revision() if self.place is None else self.place.revision()

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        self.place = self.backup
        return super().scan(at=at) if self.place is None else self.place.scan(at=at)


@pytest.mark.parametrize("tenants", [["acme"], ["cora", "dora", "emma", "fred"]], ids=["fewer", "more"])
def test_revision_that_a_backup_takes_the_place_of_while_it_is_read_is_read_again(tenants: list[str]) -> None:
    store, backup = OvertakenStore(), MemoryStore()
    for place, names in ((store, ["acme", "blue"]), (backup, tenants)):
        for name in names:
            service_of(place).put("tenant", name, {}, ANN)
    followed = FollowedStore("memory:", open_at=lambda _: store)
    store.backup = backup
    snapshot = followed.current()
    assert (snapshot.store_revision, snapshot.problem) == (len(tenants), None)
    assert list(snapshot.document.tenants) == tenants


class RestoredStore(FileStore):
    """A store of which a backup is put back at the next look at an entry."""

    restore: Callable[[], object] | None = None

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        if self.restore is not None:
            restore, self.restore = self.restore, None
            restore()
        return super().get(kind, name, at=at)


@pytest.mark.parametrize("more", [0, 2, 5], ids=["fewer", "as many", "more"])
def test_change_is_planned_again_if_a_backup_is_put_back_meanwhile(
    path: Path, history: Path, backup: Path, tmp_path: Path, more: int
) -> None:
    twin = tmp_path / "twin.yaml"
    for name, original in ((twin.name, path.name), (f"{twin.name}.history", history.name)):
        shutil.copy(backup / original, tmp_path / name)
    for at in range(more):
        service_of(FileStore(twin)).put("tenant", f"t{at}", {}, ANN)
    store = RestoredStore(path)

    def restore() -> None:
        shutil.copy(tmp_path / f"{twin.name}.history", history)
        shutil.copy(twin, path)

    store.restore = restore
    plans: list[int] = []

    def edited(values: Any) -> Any:
        plans.append(store.revision())
        return {**values, "dispatch": FIVE["publish"]}

    made = service_of(store).edit("tenant", "acme", edited, ANN)
    assert (made.revision, plans[-1]) == (3 + more, 2 + more)
    entry = FileStore(path).get("tenant", "acme")
    assert entry is not None
    assert entry.body == '{"publish":{"messages_per_second":5},"dispatch":{"messages_per_second":5}}'
    assert HAND not in [who for _, who in authors(store)]


def test_table_that_is_no_store_in_the_place_of_one_keeps_the_last_good_revision(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    table = str(tmp_path / "table")
    service_of(DeltaStore.create(table)).put("tenant", "acme", {}, ANN)
    followed = FollowedStore(f"delta:{table}")
    followed.current()
    shutil.rmtree(table)
    write_deltalake(table, pa.table({"a": [1]}))
    snapshot = followed.current()
    assert list(snapshot.document.tenants) == ["acme"]
    assert snapshot.problem is not None
    assert "is not a policy store" in snapshot.problem


# ------------------------------------------------------------------------------------------- files to read only


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Leaves this process no right to write to the store's files."""
    os_open, os_access = os.open, os.access

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(path).is_relative_to(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os_open(path, flags, *more, **options)

    def may(path: Any, mode: int, **options: Any) -> bool:
        return not mode & os.W_OK and os_access(path, mode, **options)

    def protect() -> None:
        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "access", may)

    return protect


def test_who_may_only_read_follows_the_store(
    store: FileStore, path: Path, history: Path, protected: Callable[[], None]
) -> None:
    text = path.read_text()
    protected()
    reader, followed = FileStore(path), FollowedStore(f"file:{path}")
    assert authors(reader) == WRITTEN
    assert followed.current().store_revision == 2
    with pytest.raises(StoreUnavailableError, match="Permission denied; run this as the owner of the folder"):
        service_of(reader).put("tenant", "blue", {}, ANN)
    whole = history.read_bytes()
    for count in (1, 2):  # an edit by hand is in force before an author commits it
        path.write_text(text + f"exempt: [{', '.join('abc'[:count])}]\n")
        assert followed.current().store_revision == 3
        assert len(followed.current().document.exempt) == count
        assert authors(reader) == [(3, HAND), *WRITTEN]
    assert history.read_bytes() == whole


@pytest.mark.parametrize("is_moved", [False, True], ids=["before", "after"])
def test_who_may_only_read_finds_what_a_crash_left(
    store: FileStore,
    path: Path,
    history: Path,
    protected: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_moved: bool,
) -> None:
    replace = Document.replace

    def crash(document: Document, content: bytes) -> None:
        if is_moved:
            replace(document, content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Document, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            service_of(store).put("tenant", "blue", {}, ANN)
    before = history.read_bytes()
    protected()
    reader = FileStore(path)
    assert authors(reader) == [(3, "ann"), *WRITTEN][not is_moved :]
    assert (reader.get("tenant", "blue") is not None) == is_moved
    assert history.read_bytes() == before


# ----------------------------------------------------------------------------------------- what a disk keeps


def test_document_has_its_place_on_the_disk_before_its_commit_is_published(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for place, name in ((Pages, "add"), (Document, "replace"), (Document, "keep_place"), (Pages, "publish")):
        original = getattr(place, name)

        def noting(
            *values: Any, name: str = name, original: Callable[..., object] = original, **options: Any
        ) -> object:
            done.append(name)
            return original(*values, **options)

        monkeypatch.setattr(place, name, noting)
    service_of(store).put("tenant", "blue", {}, ANN)
    assert done == ["add", "replace", "keep_place", "publish"]


def test_change_that_the_disk_does_not_say_it_keeps_is_not_acknowledged(
    store: FileStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: Document) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Document, "keep_place", failing)
        with pytest.raises(OutcomeUnknownError, match="Input/output error"):
            service_of(store).put("tenant", "blue", {}, ANN)
    assert authors(store) == authors(FileStore(path)) == [(3, "ann"), *WRITTEN]


# --------------------------------------------------------------------------------------------- text of no encoding


@pytest.mark.parametrize("author", [Author("\udcffme"), Author("ann", "why \udcff")])
@pytest.mark.parametrize("kind", ["file", "delta", "memory"])
def test_author_or_reason_that_no_encoding_can_write_is_refused(author: Author, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    stores: dict[str, Callable[[], PolicyStore]] = {
        "file": lambda: FileStore.create(place), "delta": lambda: DeltaStore.create(str(place)), "memory": MemoryStore,
    }  # fmt: skip
    service = service_of(stores[kind]())
    with pytest.raises(ConfigurationError, match=r"'.*\\udcff.*', holds half of a surrogate pair"):
        service.put("tenant", "acme", {}, author)
    assert service.store.revision() == 0


# ------------------------------------------------------------------------------------------------ Delta's RESTORE


@pytest.mark.slow
def test_restore_of_the_table_to_an_older_version_is_refused_and_can_be_undone(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = str(tmp_path / "table")
    store = DeltaStore.create(table)
    for tenant in ("acme", "blue", "cora"):
        store.commit([Change("tenant", tenant, "{}")], expected_revision=store.revision(), author=ANN, at_ms=0)
    followed = FollowedStore(f"delta:{table}")
    followed.current()
    version = DeltaTable(table).version()
    DeltaTable(table).restore(version - 1)
    with pytest.raises(DamagedError, match="revision 3 of 3 is missing"):
        service_of(store).put("tenant", "dora", {}, ANN)
    with pytest.raises(DamagedError, match="revision 3 of 3 is missing"):
        service_of(DeltaStore(table)).put("tenant", "dora", {}, ANN)
    assert list(followed.current().document.tenants) == ["acme", "blue", "cora"]
    assert followed.current().problem is not None
    DeltaTable(table).restore(version)
    assert followed.current().problem is None
    assert service_of(store).put("tenant", "dora", {}, ANN).revision == 4
