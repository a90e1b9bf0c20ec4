"""A Delta store whose files somebody damaged: no policy is read that has a hole, and an error says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs
from typer.testing import CliRunner

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.admin.watch.metrics import exposed
from spark_throttle.command_line.app import app
from spark_throttle.errors import DamagedError, StoreUnavailableError, ThrottleError
from spark_throttle.store.delta import delta_store
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.delta.open_table import error_of
from spark_throttle.store.delta.rows import write_snapshot
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

ANN = Author("ann")
REVISIONS = 6


def put(store: DeltaStore, name: str) -> int:
    return PolicyService(store, clock_ms=lambda: 0, pause=lambda _: None).put("tenant", name, {}, ANN).revision


def names(store: DeltaStore) -> list[str]:
    return [entry.name for entry in store.scan()]


def commits(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def old(folder: Path) -> DeltaStore:
    """A store that has read everything, a long time ago."""
    DeltaStore.create(str(folder))
    store = DeltaStore(str(folder), clock_ns=lambda: 0)
    for number in range(REVISIONS):
        assert put(store, f"t{number}") == number + 1
    assert len(names(store)) == REVISIONS
    return store


def opens_as(folder: Path) -> list[str] | None:
    try:
        return names(DeltaStore(str(folder)))
    except DamagedError:
        return None


CUTS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "to nothing": lambda _: [], "to its facts": lambda data: data[:1], "without its rows": lambda data: [
        line for line in data if b'"add"' not in line
    ], "in a line": lambda data: [data[0], data[1][:20]],
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("place", [-1, -3], ids=["newest", "middle"])
def test_nobody_who_opens_a_store_with_a_commit_that_was_cut_reads_a_policy_with_a_hole(
    old: DeltaStore, folder: Path, place: int, cut: Callable[[list[bytes]], list[bytes]]
) -> None:
    victim = commits(folder)[place]
    victim.write_bytes(b"".join(cut(victim.read_bytes().splitlines(keepends=True))))
    # delta-rs may take the newest commit for one that added nothing: what is left is the revision before it.
    before = [f"t{number}" for number in range(REVISIONS - 1)]
    assert opens_as(folder) in ([None, before] if place == -1 else [None])


def test_process_that_has_read_a_commit_that_is_cut_says_what_a_new_one_says(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[-1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:50])
    for call in (old.revision, lambda: put(old, "late"), lambda: DeltaStore(str(folder))):
        with pytest.raises(DamagedError, match="restore it from a backup of the store"):
            call()
    assert b"spark_throttle_store_up 0.0" in exposed(JobWatch({}), old)
    victim.write_bytes(whole)
    assert put(old, "late") == REVISIONS + 1


def test_rows_that_no_commit_has_are_damage(old: DeltaStore, folder: Path) -> None:
    victim = commits(folder)[-1]
    left = [line for line in victim.read_bytes().splitlines(keepends=True) if b'"txn"' not in line]
    victim.write_bytes(b"".join(left))
    for call in (old.revision, lambda: DeltaStore(str(folder))):
        with pytest.raises(DamagedError, match=f"it has rows of revision {REVISIONS}, and its log ends with"):
            call()


def test_store_that_is_put_back_is_followed_by_those_who_had_read_more(
    old: DeltaStore, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "kept")
    assert put(old, "late") == REVISIONS + 1
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    assert old.revision() == REVISIONS
    assert "late" not in names(old)
    assert put(old, "later") == REVISIONS + 1


def test_hole_before_the_snapshot_leaves_the_policies_and_refuses_history_and_changes(
    old: DeltaStore, folder: Path
) -> None:
    write_snapshot(DeltaTable(str(folder)), old._open.view_of(None), None)
    victim = commits(folder)[2]
    victim.write_bytes(victim.read_bytes().splitlines(keepends=True)[0])
    store = DeltaStore(str(folder))
    assert names(store) == [f"t{number}" for number in range(REVISIONS)]
    for call in (store.history, store.check_whole, lambda: list(store.changed(after=0, until=3))):
        with pytest.raises(DamagedError, match=r"revision 2 of \d is missing; restore it from a backup"):
            call()


def test_files_without_statistics_are_no_damage_and_their_holes_are_told(old: DeltaStore, folder: Path) -> None:
    for path in commits(folder)[1:]:
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        path.write_text("\n".join(map(json.dumps, actions)))
    store = DeltaStore(str(folder))
    store.check_whole()
    assert len(names(store)) == len(store.history()) == REVISIONS
    commits(folder)[2].write_text(json.dumps({"commitInfo": {}}))
    for call in (lambda: names(DeltaStore(str(folder))), lambda: DeltaStore(str(folder)).history()):
        with pytest.raises(DamagedError, match="revision 2 of 6 is missing"):
            call()


@pytest.mark.parametrize("form", ["change", "snapshot"])
def test_file_of_rows_that_was_cut_is_damage(folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_store, "SNAPSHOT_REVISIONS", 3)
    store = DeltaStore.create(str(folder))
    for number in range(4):
        put(store, f"t{number}")
    for victim in (folder / f"form={form}").iterdir():
        os.truncate(victim, 100)
    with pytest.raises(DamagedError, match="restore it from a backup of the store"):
        names(DeltaStore(str(folder)))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:200])])
def test_damaged_checkpoint_is_damage(old: DeltaStore, folder: Path, damage: Callable[[Path], object]) -> None:
    DeltaTable(str(folder)).create_checkpoint()
    for commit in commits(folder)[:-1]:
        commit.unlink()
    (victim,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    damage(victim)
    with pytest.raises(ThrottleError) as refused:
        DeltaStore(str(folder))
    assert isinstance(refused.value, DamagedError), refused.value


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Kernel error: Json error: Truncated record whilst reading string", DamagedError),
        ("Generic delta kernel error: Expected contiguous commit files, but found gap", DamagedError),
        ("Kernel error: No table metadata or protocol found in delta log.", DamagedError),
        ("Generic S3 error: error sending request", StoreUnavailableError),
        ("Parquet error: External: Generic S3 error: error sending request", StoreUnavailableError),
    ],
)
def test_store_that_cannot_be_reached_is_not_damaged(message: str, kind: type[ThrottleError]) -> None:
    assert type(error_of("delta:s3://bucket/policies", message)) is kind


def test_error_of_a_read_is_told_by_what_delta_says(old: DeltaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise DeltaError("Generic S3 error: error sending request")

    monkeypatch.setattr(delta_store, "changes_in", unreachable)
    with pytest.raises(StoreUnavailableError, match="error sending request"):
        old.history()


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "commits"])
def test_store_that_lost_its_log_is_not_made_anew_over_its_remains(
    old: DeltaStore, folder: Path, tmp_path: Path, is_folder: bool
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    for victim in [] if is_folder else commits(folder):
        victim.unlink()
    if is_folder:
        shutil.rmtree(folder / "_delta_log")
    location = f"delta:{folder}"
    for call in (
        lambda: open_store(location, is_created=True), lambda: open_store(location), old.revision,
        lambda: put(old, "late"),
    ):  # fmt: skip
        with pytest.raises(DamagedError) as refused:
            call()
        assert str(refused.value).startswith(f"the policy store {location} is damaged: its log has no commit, though")
        assert str(refused.value).endswith("may be lost, move the folder of the store away")
    policies = tmp_path / "p.yaml"
    policies.write_text("tenants: {acme: {}}\n")
    for words in (["--init"], ["--init", "--dry-run"]):
        answer = CliRunner().invoke(app, ["policy", "apply", str(policies), "--store", location, *words])
        assert (answer.exit_code, "has no commit, though" in answer.output.replace("\n", " ")) == (1, True)
    folder.rename(tmp_path / "away")
    assert open_store(location, is_created=True).revision() == 0
    shutil.rmtree(folder)
    kept.rename(folder)
    assert open_store(location, is_created=True).revision() == REVISIONS


def test_place_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    old: DeltaStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_: object) -> None: ...

        def get_file_info(self, _: object) -> list[object]:
            raise PermissionError("Access denied")

    shutil.rmtree(folder / "_delta_log")
    monkeypatch.setattr(fs, "SubTreeFileSystem", Refusing)
    for call in (old.revision, lambda: DeltaStore(str(folder)), lambda: DeltaStore.create(str(folder))):
        with pytest.raises(StoreUnavailableError, match="Access denied"):
            call()
    assert not (folder / "_delta_log").exists()
