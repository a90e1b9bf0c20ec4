"""A file of a store that somebody damaged by hand: a process that has read it before says what a new one says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from spark_throttle.errors import DamagedError, StoredFormatError, StoreUnavailableError, ThrottleError
from spark_throttle.store.delta import delta_store
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change, PolicyStore

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


def content(store: PolicyStore) -> object:
    return said(lambda: (store.revision(), [entry.name for entry in store.scan()]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def old(folder: Path) -> DeltaStore:
    """A store that has read everything, a long time ago."""
    DeltaStore.create(str(folder))
    store = DeltaStore(str(folder), clock_ns=lambda: 0)
    for number in range(REVISIONS):
        assert commit(store, f"t{number}") == number + 1
    assert len(list(store.scan())) == REVISIONS
    return store


def commits(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def lines(number: int) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(data.splitlines(keepends=True)[:number])


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "to nothing": lambda _: b"", "in a line": lambda data: data[: len(data) // 2], "after a line": lines(1),
    "after two lines": lines(2),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("place", [-1, -2, -4], ids=["newest", "before", "middle"])
def test_server_and_command_line_say_the_same_of_a_truncated_commit(
    old: DeltaStore, folder: Path, place: int, cut: Callable[[bytes], bytes]
) -> None:
    victim = commits(folder)[place]
    with victim.open("r+b") as file:  # in place: the folder does not change
        file.truncate(len(cut(file.read())))
    new = DeltaStore(str(folder)) if not isinstance(said(lambda: DeltaStore(str(folder))), str) else None
    if new is None:
        assert content(old) == said(lambda: DeltaStore(str(folder)))
    else:
        assert content(old) == content(new)
    before = commits(folder)
    answer = said(lambda: commit(old, "late"))
    again = said(lambda: content(DeltaStore(str(folder))))
    if isinstance(answer, int):
        # What was acknowledged is there for everybody.
        assert isinstance(again, tuple)
        assert again[0] == answer
        assert "late" in again[1]
        assert content(old) == again
    else:
        assert said(lambda: commit(DeltaStore(str(folder)), "late")) == answer
        assert commits(folder) == before
        assert content(old) == again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "of its log is cut off or altered: its line "),
        (lambda data: b"\x00" * len(data), "of its log is cut off or altered: its line 1 is not JSON"),
        (lambda _: b"[]\n", "of its log is altered: its line 1 is no action of Delta"),
    ],
    ids=["cut", "zeros", "a list"],
)
@pytest.mark.parametrize("place", [-1, -3, 0], ids=["newest", "middle", "first"])
def test_damaged_commit_is_damage_that_names_the_file_and_the_remedy(
    old: DeltaStore, folder: Path, place: int, damage: Callable[[bytes], bytes], said: str
) -> None:
    victim = commits(folder)[place]
    victim.write_bytes(damage(victim.read_bytes()))
    for call in (old.revision, lambda: commit(old, "late"), lambda: DeltaStore(str(folder))):
        with pytest.raises(DamagedError) as refused:
            call()
        assert str(refused.value).startswith(f"the policy store delta:{folder} is damaged: the file {victim} {said}")
        assert str(refused.value).endswith("; restore it from a backup of the store")


@pytest.mark.slow
@pytest.mark.parametrize("place", [2, 0])
def test_commit_that_is_gone_is_damage_that_names_the_file(old: DeltaStore, folder: Path, place: int) -> None:
    victim = commits(folder)[place]
    victim.unlink()
    for call in (old.revision, lambda: DeltaStore(str(folder))):
        with pytest.raises(DamagedError, match=rf"its log has no file {victim}, and later ones; restore it from a"):
            call()


def test_first_commit_that_says_not_what_the_table_is_is_damage(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[0]
    for content, said in ((b"", "is empty"), (victim.read_bytes().splitlines(keepends=True)[0], "is cut off: it does")):
        victim.write_bytes(content)
        for call in (old.revision, lambda: DeltaStore(str(folder))):
            with pytest.raises(DamagedError, match=f"the file {victim} of its log {said}"):
                call()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["change", "snapshot"])
def test_damaged_data_file_is_damage_that_names_the_file(
    folder: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_store, "SNAPSHOT_REVISIONS", 3)
    store = DeltaStore.create(str(folder))
    for number in range(4):
        commit(store, f"t{number}")
    for victim in (folder / f"form={form}").iterdir():
        os.truncate(victim, 100)
    with pytest.raises(DamagedError, match=rf"its file {folder}/form={form}/.* has 100 of the .* restore it from a"):
        list(DeltaStore(str(folder)).scan())


def test_store_that_cannot_be_reached_is_not_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DeltaStore.create(str(folder))
    commit(store, "t0")

    def unreachable(*_: object, **__: object) -> None:
        raise DeltaError("Generic S3 error: error sending request")

    monkeypatch.setattr(delta_store, "changes_in", unreachable)
    with pytest.raises(StoreUnavailableError, match="error sending request"):
        store.history()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Kernel error: Json error: Truncated record whilst reading string", DamagedError),
        ("Generic delta kernel error: Expected contiguous commit files, but found gap", DamagedError),
        ("Kernel error: No table metadata or protocol found in delta log.", DamagedError),
        ("Generic S3 error: error sending request", StoreUnavailableError),
    ],
)
def test_damage_on_an_object_store_is_told_by_what_delta_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: type[ThrottleError]
) -> None:
    store = DeltaStore.create(str(folder))
    store._open.log_folder = None

    def failing(*_: object, **__: object) -> None:
        raise DeltaError(message)

    monkeypatch.setattr(store._open, "opened_anew", failing)
    with pytest.raises(kind, match=message.partition(":")[0]):
        store.revision()


@pytest.mark.slow
def test_lost_revision_in_the_middle_is_an_error_and_not_a_policy_with_a_hole(old: DeltaStore, folder: Path) -> None:
    commits(folder)[3].write_bytes(b"")
    for answer in (content(old), said(lambda: DeltaStore(str(folder)))):
        assert f"DamagedError: the policy store delta:{folder} is damaged: the file" in str(answer)
        assert "00003.json of its log is empty; restore it from a backup of the store" in str(answer)
    assert "of its log is empty" in str(said(lambda: commit(old, "late")))


@pytest.mark.slow
def test_revision_that_is_cut_out_of_the_middle_is_damage(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[3]
    victim.write_bytes(lines(1)(victim.read_bytes()))
    for call in (lambda: list(old.scan()), lambda: list(DeltaStore(str(folder)).scan()), lambda: commit(old, "late")):
        with pytest.raises(DamagedError, match=rf"the file {victim} of its log is cut off .* restore it from a backup"):
            call()


@pytest.mark.slow
def test_store_that_was_repaired_goes_on(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[-1]
    data = victim.read_bytes()
    victim.write_bytes(data[:50])
    with pytest.raises(DamagedError):
        commit(old, "late")
    victim.write_bytes(data)
    assert commit(old, "late") == REVISIONS + 1
    assert content(old) == content(DeltaStore(str(folder)))


@pytest.mark.slow
def test_truncated_data_file_is_noticed_before_a_commit(old: DeltaStore, folder: Path) -> None:
    victim = min((folder / "form=change").iterdir())
    os.truncate(victim, 100)
    before = commits(folder)
    for store in (old, DeltaStore(str(folder))):
        assert "has 100 of the" in str(said(lambda store=store: store.commit(  # type: ignore[misc]
            [Change("tenant", "late", "{}")], expected_revision=REVISIONS, author=ANN, at_ms=0)))  # fmt: skip
    assert commits(folder) == before


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
