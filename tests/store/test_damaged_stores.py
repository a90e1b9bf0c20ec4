"""A file of a store that somebody damaged by hand: a process that has read it before says what a new one says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.errors import StoredFormatError, StoreError, ThrottleError
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file_store import FileStore
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


def test_lost_revision_in_the_middle_is_an_error_and_not_a_policy_with_a_hole(old: DeltaStore, folder: Path) -> None:
    commits(folder)[3].write_bytes(b"")
    for store in (old, DeltaStore(str(folder))):
        assert "revision 3 is missing" in str(content(store))
    assert "revision 3 is missing" in str(said(lambda: commit(old, "late")))


def test_store_that_was_repaired_goes_on(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[-1]
    data = victim.read_bytes()
    victim.write_bytes(data[:50])
    with pytest.raises(StoreError):
        commit(old, "late")
    victim.write_bytes(data)
    assert commit(old, "late") == REVISIONS + 1
    assert content(old) == content(DeltaStore(str(folder)))


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
