"""A Delta store that lost a part of its log or its rows: nobody reads an older policy, or adds to it, without a word.

Every case stands on a disk and, as far as delta-rs and the checks can tell, on an object store.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from typer.testing import CliRunner

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.admin.watch.metrics import exposed
from spark_throttle.command_line.app import app
from spark_throttle.errors import DamagedError, StoreUnavailableError
from spark_throttle.store.delta import delta_store, newest_mark, open_table, table_checks
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.delta.snapshot import write_snapshot
from spark_throttle.store.delta.table_files import TableFiles
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.opening import open_store
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

ANN = Author("ann")
REVISIONS = 6
RESTORE = "restore it from a backup of the store"
LOCAL_LOG = open_table.local_log

pytestmark = pytest.mark.slow


@pytest.fixture(params=["disk", "object store"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "object store":
        monkeypatch.setattr(open_table, "local_log", lambda _: None)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return where a store of six revisions is, made once on a disk and once as on an object store."""
    places: dict[bool, Path] = {}

    def place() -> Path:
        has_local_log = open_table.local_log is LOCAL_LOG
        if has_local_log not in places:
            places[has_local_log] = tmp_path_factory.mktemp("made") / "store"
            store = DeltaStore.create(str(places[has_local_log]))
            for number in range(REVISIONS):
                assert put(store, f"t{number}") == number + 1
        return places[has_local_log]

    return place


@pytest.fixture
def old(folder: Path, made: Callable[[], Path]) -> DeltaStore:
    """A store that has read everything, a long time ago."""
    shutil.copytree(made(), folder)
    store = DeltaStore(str(folder), clock_ns=lambda: 0)
    assert names(store) == [f"t{number}" for number in range(REVISIONS)]
    return store


def put(store: DeltaStore, name: str) -> int:
    return PolicyService(store, clock_ms=lambda: 0, pause=lambda _: None).put("tenant", name, {}, ANN).revision


def names(store: DeltaStore) -> list[str]:
    return [entry.name for entry in store.scan()]


def commits(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def mark(folder: Path) -> Path:
    return folder / "_delta_log" / "_newest_revision"


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def refusals(old: DeltaStore, folder: Path) -> list[str]:
    """Return the errors of every use of a damaged store, by one that has read it before and by a new one."""
    before = contents(folder)
    said = []
    uses: list[Callable[[DeltaStore], object]] = [
        lambda store: store.revision(),
        names,
        lambda store: store.get("tenant", "t0"),
        lambda store: store.page("tenant"),
        lambda store: store.history(),
        lambda store: list(store.changed(after=0, until=REVISIONS)),
        lambda store: store.check_whole(),
        lambda store: put(store, "late"),
    ]
    for use in uses:
        for is_new in (False, True):
            with pytest.raises(DamagedError) as refused:
                use(DeltaStore(str(folder)) if is_new else old)
            said.append(str(refused.value))
    assert contents(folder) == before
    return said


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "_turn.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# ------------------------------------------------------------------------------------------------ the newest commit


CUTS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "to nothing": lambda _: [], "to its facts": lambda data: data[:1], "after its rows": lambda data: data[:2],
    "without its rows": lambda data: [data[0], data[2]],
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_newest_commit_that_is_cut_off_is_no_older_policy(
    old: DeltaStore, folder: Path, cut: Callable[[list[bytes]], list[bytes]]
) -> None:
    victim = commits(folder)[-1]
    whole = victim.read_bytes()
    victim.write_bytes(b"".join(cut(lines(whole))))
    mark(folder).unlink()  # the commit itself says it
    for said in refusals(old, folder):
        assert said.startswith(f"the policy store delta:{folder} is damaged: the file {victim} of its log is ")
        assert said.endswith(f"; {RESTORE}")
    victim.write_bytes(whole)
    assert put(old, "late") == REVISIONS + 1
    assert names(DeltaStore(str(folder))) == names(old)


def test_newest_commit_that_only_merged_files_is_looked_at_too(old: DeltaStore, folder: Path) -> None:
    DeltaTable(str(folder)).optimize.compact()
    assert old.revision() == REVISIONS
    victim = commits(folder)[-1]
    victim.write_bytes(b"".join(lines(victim.read_bytes())[:-2]))
    for said in refusals(old, folder):
        assert f"the file {victim} of its log is cut off or altered: it says that it has " in said


def test_maintenance_of_other_programs_is_no_damage(old: DeltaStore, folder: Path) -> None:
    table = DeltaTable(str(folder))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    for store in (old, DeltaStore(str(folder))):
        store.check_whole()
        assert [each.revision for each in store.history()] == [6, 5, 4, 3, 2, 1]
    assert put(old, "late") == REVISIONS + 1
    assert mark(folder).exists()


# ------------------------------------------------------------------------------------------------ removed commits


def remove_the_last(folder: Path, number: int) -> None:
    for victim in commits(folder)[-number:]:
        victim.unlink()


@pytest.mark.parametrize("number", [1, 3, 6])
def test_newest_commits_that_are_gone_are_missed(old: DeltaStore, folder: Path, number: int) -> None:
    saved = contents(folder)
    remove_the_last(folder, number)
    for said in refusals(old, folder):
        assert said == (
            f"the policy store delta:{folder} is damaged: its log {folder}/_delta_log ends with revision "
            f"{REVISIONS - number}, and {mark(folder)} says that revision 6 was committed: the newest commits are "
            f"gone; restore them from a backup of the store, or, if they may be lost, remove that file"
        )
    for name, content in saved.items():
        (folder / name).write_bytes(content)
    for store in (old, DeltaStore(str(folder))):
        assert store.revision() == REVISIONS
        assert len(names(store)) == REVISIONS


def test_commits_that_may_be_lost_are_given_up_by_removing_the_mark(old: DeltaStore, folder: Path) -> None:
    remove_the_last(folder, 2)
    with pytest.raises(DamagedError):
        old.revision()
    mark(folder).unlink()
    for store in (old, DeltaStore(str(folder))):
        assert names(store) == ["t0", "t1", "t2", "t3"]
    assert put(old, "late") == REVISIONS - 1
    assert json.loads(mark(folder).read_bytes()) == {"format": 1, "revision": REVISIONS - 1}


@pytest.mark.parametrize("is_all", [False, True], ids=["since", "all"])
def test_commits_that_are_gone_beside_a_checkpoint_are_missed(old: DeltaStore, folder: Path, is_all: bool) -> None:
    DeltaTable(str(folder)).create_checkpoint()
    assert put(old, "late") == REVISIONS + 1
    for victim in commits(folder) if is_all else commits(folder)[-1:]:
        victim.unlink()
    for said in refusals(old, folder):
        assert "ends with revision 6, and" in said
        assert f"{mark(folder)} says that revision 7 was committed" in said


def test_backup_that_is_restored_whole_is_no_damage(old: DeltaStore, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "backup")
    assert put(old, "late") == REVISIONS + 1
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    for store in (old, DeltaStore(str(folder))):
        store.check_whole()
        assert "late" not in names(store)
    assert put(old, "other") == REVISIONS + 1


def test_author_who_died_before_the_mark_harms_nobody(old: DeltaStore, folder: Path) -> None:
    earlier = mark(folder).read_bytes()
    assert put(old, "late") == REVISIONS + 1
    mark(folder).write_bytes(earlier)
    for store in (old, DeltaStore(str(folder))):
        store.check_whole()
        assert store.revision() == REVISIONS + 1


def test_store_of_an_older_release_has_a_mark_from_the_next_commit_on(old: DeltaStore, folder: Path) -> None:
    mark(folder).unlink()
    assert names(DeltaStore(str(folder))) == names(old)
    assert not mark(folder).exists()  # readers write nothing
    assert put(old, "late") == REVISIONS + 1
    assert json.loads(mark(folder).read_bytes()) == {"format": 1, "revision": REVISIONS + 1}


def test_commit_that_is_made_while_another_process_reads_is_not_missed(
    old: DeltaStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ["late"]

    def read_later(*args: object) -> int:
        if left:
            put(old, left.pop())
        return newest_mark.read_mark(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(table_checks, "read_mark", read_later)
    assert DeltaStore(str(folder)).revision() in {REVISIONS, REVISIONS + 1}
    assert not left


def test_mark_that_cannot_be_written_does_not_undo_the_commit(
    old: DeltaStore, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_checks, "write_mark", full)
    with caplog.at_level(logging.WARNING):
        assert put(old, "late") == REVISIONS + 1
    assert f"revision 7 was committed, and could not be noted in {mark(folder)}" in caplog.text
    assert DeltaStore(str(folder)).revision() == REVISIONS + 1


@pytest.mark.parametrize("content", [b"", b"\x00" * 9, b"[]", b'{"format": 1}', b'{"format": 1, "revision": -1}'])
def test_damaged_mark_is_damage_that_names_the_file(old: DeltaStore, folder: Path, content: bytes) -> None:
    mark(folder).write_bytes(content)
    with pytest.raises(DamagedError) as refused:
        DeltaStore(str(folder))
    assert str(refused.value).startswith(f"the file {mark(folder)}, which names the newest revision, is damaged: ")
    assert str(refused.value).endswith("or remove it if no commit is missing: the next change writes it")
    mark(folder).unlink()
    assert put(old, "late") == REVISIONS + 1


def test_mark_of_a_newer_release_stops_no_job(old: DeltaStore, folder: Path) -> None:
    followed = FollowedStore(f"delta:{folder}")
    before = followed.current()
    put(old, "late")
    mark(folder).write_bytes(b'{"format": 99}')
    assert followed.current().document is before.document
    assert "format" in str(followed.current().problem)


# ------------------------------------------------------------------------------------------------ rows


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: b"\x00" * len(data), "magic": lambda data: data[:-4] + b"XXXX",
    "head": lambda data: b"\xff" * 40 + data[40:], "foot": lambda data: data[:-60] + b"\xff" * 50 + data[-10:],
    "middle": lambda data: data[: len(data) // 2] + b"\xff" * 40 + data[len(data) // 2 + 40 :],
}  # fmt: skip


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
def test_rows_that_are_altered_at_the_same_size_are_damage_that_names_the_file(
    old: DeltaStore, folder: Path, alter: Callable[[bytes], bytes]
) -> None:
    victim = sorted((folder / "form=change").iterdir())[3]
    whole = victim.read_bytes()
    victim.write_bytes(alter(whole))
    new = DeltaStore(str(folder))
    for call in (old.history, lambda: names(new), lambda: put(new, "late"), new.history, new.check_whole):
        with pytest.raises(DamagedError) as refused:
            call()
        assert f"is damaged: its file {victim} is cut off or altered: " in str(refused.value)
        assert str(refused.value).endswith(f"; {RESTORE}")
    # A process that has the rows in memory is told by its first failed read.
    with pytest.raises(DamagedError, match=str(victim)):
        old.check_whole()
    assert b"spark_throttle_store_up 0.0" in exposed(JobWatch({}), new)
    victim.write_bytes(whole)
    for store in (old, new):
        store.check_whole()
    assert put(old, "late") == REVISIONS + 1


def test_altered_snapshot_is_damage_before_anybody_reads_an_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_store, "SNAPSHOT_REVISIONS", 3)
    store = DeltaStore.create(str(folder))
    for number in range(4):
        put(store, f"t{number}")
    (victim,) = (folder / "form=snapshot").iterdir()
    victim.write_bytes(b"\x00" * victim.stat().st_size)
    new = DeltaStore(str(folder))
    for call in (new.check_whole, lambda: names(new), lambda: put(new, "late")):
        with pytest.raises(DamagedError, match=f"its file {victim} is cut off or altered: "):
            call()


# ------------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "_last_checkpoint of its log names the checkpoint of version 6, and"),
        (lambda path: path.write_bytes(b""), "of its log is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "of its log is cut off or altered: "),
        (lambda path: path.write_bytes(ALTERED["magic"](path.read_bytes())), "of its log is cut off or altered: "),
        (lambda path: path.write_bytes(ALTERED["foot"](path.read_bytes())), "of its log is cut off or altered: "),
        (lambda path: path.write_bytes(ALTERED["zeros"](path.read_bytes())), "of its log is cut off or altered: "),
    ],
    ids=["removed", "emptied", "cut", "magic", "foot", "zeros"],
)
def test_damaged_checkpoint_is_damage_that_names_the_file(
    old: DeltaStore, folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    DeltaTable(str(folder)).create_checkpoint()
    assert old.revision() == REVISIONS
    (victim,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    damage(victim)
    with pytest.raises(DamagedError) as refused:
        DeltaStore(str(folder))
    assert str(victim) in str(refused.value)
    assert said in str(refused.value)
    assert str(refused.value).endswith(RESTORE)


def test_checkpoint_that_never_was_is_damage_that_names_both_files(old: DeltaStore, folder: Path) -> None:
    assert old.revision() == REVISIONS
    (folder / "_delta_log" / "_last_checkpoint").write_text('{"version": 99, "size": 1}')
    with pytest.raises(DamagedError) as refused:
        DeltaStore(str(folder))
    assert f"the file {folder}/_delta_log/_last_checkpoint of its log names the checkpoint of" in str(refused.value)
    assert f"{folder}/_delta_log/{99:020d}.checkpoint.parquet is not there; {RESTORE}" in str(refused.value)


# ------------------------------------------------------------------------------------------------ holes


@pytest.mark.parametrize("left", [0, 1])
def test_hole_in_the_middle_is_told_everywhere(old: DeltaStore, folder: Path, left: int) -> None:
    victim = commits(folder)[2]
    victim.write_bytes(b"".join(lines(victim.read_bytes())[:left]))
    for said in refusals(old, folder):
        assert f"is damaged: the file {victim} of its log is " in said
        assert said.endswith(f"; {RESTORE}")
    assert b"spark_throttle_store_up 0.0" in exposed(JobWatch({}), old)


def test_hole_before_the_snapshot_leaves_the_policies_and_refuses_history_and_changes(
    old: DeltaStore, folder: Path
) -> None:
    write_snapshot(DeltaTable(str(folder)), old._open.view_of(None), None)
    assert put(old, "late") == REVISIONS + 1
    victim = commits(folder)[2]
    victim.write_bytes(b"")
    for store in (old, DeltaStore(str(folder))):
        assert names(store) == ["late", "t0", "t1", "t2", "t3", "t4", "t5"]
        assert store.history(limit=4)[-1].revision == 4
        for call in (
            store.history,
            store.check_whole,
            lambda store=store: list(store.changed(after=0, until=3)),
            lambda store=store: store.get("tenant", "t0", at=4),
            lambda store=store: put(store, "later"),
        ):
            with pytest.raises(DamagedError, match=f"the file {victim} of its log is empty; {RESTORE}"):
                call()


@pytest.mark.parametrize("number", [2, REVISIONS])
def test_files_without_statistics_are_no_damage_and_their_holes_are_told(
    old: DeltaStore, folder: Path, number: int
) -> None:
    for path in commits(folder)[1 : number + 1]:
        actions = [json.loads(line) for line in lines(path.read_bytes())]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        path.write_text("\n".join(map(json.dumps, actions)))
    for store in (old, DeltaStore(str(folder))):
        store.check_whole()
        assert len(names(store)) == len(store.history()) == REVISIONS
    assert put(old, "late") == REVISIONS + 1
    victim = commits(folder)[2]
    victim.write_bytes(b"")
    new = DeltaStore(str(folder))
    for call in (lambda: names(new), new.history, new.check_whole, lambda: put(new, "later")):
        with pytest.raises(DamagedError, match=f"the file {victim} of its log is empty"):
            call()


# ------------------------------------------------------------------------------------------------ the whole log


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "commits"])
def test_store_that_lost_its_log_is_not_made_anew_over_its_remains(
    old: DeltaStore, folder: Path, tmp_path: Path, is_folder: bool
) -> None:
    saved = contents(folder)
    for victim in [] if is_folder else commits(folder):
        victim.unlink()
    if is_folder:
        shutil.rmtree(folder / "_delta_log")
    before = contents(folder)
    location = f"delta:{folder}"
    for call in (
        lambda: open_store(location, is_created=True), lambda: open_store(location), old.revision,
        lambda: put(old, "late"),
    ):  # fmt: skip
        with pytest.raises(DamagedError) as refused:
            call()
        assert str(refused.value).startswith(f"the policy store {location} is damaged: its log {folder}/_delta_log has")
        assert "restore the log from a backup of the store, or, if its policies and their" in str(refused.value)
        assert str(refused.value).endswith(f"may be lost, move the folder {folder} away")
    policies = tmp_path / "p.yaml"
    policies.write_text("tenants: {acme: {}}\n")
    for words in (["--init"], ["--init", "--dry-run"]):
        answer = CliRunner().invoke(app, ["policy", "apply", str(policies), "--store", location, *words])
        assert (answer.exit_code, "has no commit, though" in answer.output.replace("\n", " ")) == (1, True)
    assert contents(folder) == before
    folder.rename(tmp_path / "away")
    assert open_store(location, is_created=True).revision() == 0
    shutil.rmtree(folder)
    for name, content in saved.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    assert open_store(location, is_created=True).revision() == REVISIONS


def test_store_that_cannot_be_reached_is_not_damaged(
    old: DeltaStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise DeltaError("Parquet error: External: Generic S3 error: error sending request")

    monkeypatch.setattr(delta_store, "changes_in", unreachable)
    with pytest.raises(StoreUnavailableError, match="error sending request"):
        old.history()
    old.check_whole()


def test_whole_store_costs_one_look_at_the_newest_commit(
    old: DeltaStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    real = TableFiles.read

    def counting(files: TableFiles, path: str) -> bytes | None:
        read.append(path)
        return real(files, path)

    monkeypatch.setattr(TableFiles, "read", counting)
    new = DeltaStore(str(folder))
    for _ in range(3):
        assert len(names(new)) == REVISIONS
        new.history()
        new.check_whole()
    looks = [f"_delta_log/{REVISIONS:020d}.json", "_delta_log/_newest_revision"]
    # On a disk, the files are looked at once more when their stamps are first taken.
    assert read in (looks, looks + looks)
