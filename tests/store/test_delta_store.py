"""What the Delta store alone has to promise: lost answers, lost tables, snapshots, a large store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

import spark_throttle.store.delta.delta_store as module
from spark_throttle.errors import (
    ConfigurationError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.delta.rows import APP, SCHEMA, change_rows
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.store import Author, Change

ANN = Author("ann", "why not")
ONE = [Change("tenant", "acme", "{}")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> DeltaStore:
    return DeltaStore.create(str(path))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the next writes answer with an error, before or after they are made."""

    def answer(error: Exception, *, is_made: bool, then: Callable[[], object] = lambda: None) -> None:
        left = [error]

        def write(*args: Any, **kwargs: Any) -> None:
            if not left:
                write_deltalake(*args, **kwargs)
                return
            if is_made:
                write_deltalake(*args, **kwargs)
            then()
            raise left.pop()

        monkeypatch.setattr(module, "write_deltalake", write)

    return answer


def commit(store: DeltaStore, changes: list[Change] = ONE, *, expected: int = 0) -> int:
    return store.commit(changes, expected_revision=expected, author=ANN, at_ms=0)


def test_commit_whose_answer_was_lost_is_found_and_counts(store: DeltaStore, answers: Callable[..., None]) -> None:
    answers(OSError("connection reset"), is_made=True)
    assert commit(store) == 1
    assert [each.revision for each in store.history()] == [1]


def test_place_that_is_taken_by_the_commit_itself_is_no_conflict(
    store: DeltaStore, answers: Callable[..., None]
) -> None:
    answers(CommitFailedError("version exists"), is_made=True)
    assert commit(store) == 1


def test_commit_that_cannot_be_looked_up_has_an_unknown_outcome(
    store: DeltaStore, path: Path, answers: Callable[..., None]
) -> None:
    answers(DeltaError("timeout"), is_made=True, then=lambda: path.rename(path.with_name("away")))
    with pytest.raises(OutcomeUnknownError, match="did not say whether revision 1 was committed") as caught:
        commit(store)
    assert caught.value.revision == 1
    path.with_name("away").rename(path)
    assert store.history()[0].who == "ann"


def test_on_an_object_store_a_commit_without_an_answer_may_still_come(
    store: DeltaStore, answers: Callable[..., None]
) -> None:
    store._open.log_folder = None
    answers(DeltaError("timeout"), is_made=False)
    with pytest.raises(OutcomeUnknownError, match="timeout"):
        commit(store)


def test_on_a_disk_a_commit_that_failed_and_is_not_there_was_not_made(
    store: DeltaStore, answers: Callable[..., None]
) -> None:
    answers(OSError("no space left on device"), is_made=False)
    with pytest.raises(StoreUnavailableError, match="nothing was changed: no space left"):
        commit(store)
    assert store.revision() == 0
    assert commit(store) == 1


def test_commit_that_lost_against_another_is_a_conflict(
    store: DeltaStore, path: Path, answers: Callable[..., None]
) -> None:
    other = DeltaStore(str(path))
    answers(CommitFailedError("version exists"), is_made=False, then=lambda: other_commit(other))
    with pytest.raises(ConflictError):
        commit(store)
    assert [each.who for each in store.history()] == ["bob"]


def other_commit(store: DeltaStore) -> None:
    rows = change_rows([Change("tenant", "blue", "{}")], 1, Author("bob"), 0, "of-bob")
    store._open.table = DeltaTable(store._location)
    properties = CommitProperties(app_transactions=[Transaction(APP, 1)])
    write_deltalake(store._open.table, rows, mode="append", commit_properties=properties)


def test_maintenance_of_the_table_is_no_conflict(store: DeltaStore, path: Path) -> None:
    for number in range(3):
        commit(store, [Change("tenant", f"t{number}", "{}")], expected=number)
    DeltaTable(str(path)).optimize.compact()
    assert commit(store, expected=3) == 4
    assert len(store.page("tenant")) == 4


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.revision(),
        lambda store: store.get("tenant", "acme"),
        lambda store: store.page("tenant"),
        lambda store: list(store.scan()),
        lambda store: store.history(),
        lambda store: list(store.changed(after=0, until=1)),
        lambda store: commit(store, expected=1),
        lambda store: store.turn().__enter__(),
    ],
    ids=["revision", "get", "page", "scan", "history", "changed", "commit", "turn"],
)
def test_store_that_was_deleted_says_so_and_is_not_made_anew(
    store: DeltaStore, path: Path, use: Callable[[DeltaStore], object]
) -> None:
    commit(store)
    shutil.rmtree(path)
    with pytest.raises(
        StoreUnavailableError, match=r"there is no policy store; make one with `spark-throttle policy apply --init`"
    ):
        use(store)
    assert not (path / "_delta_log").exists()


def test_store_that_another_replaced_is_not_taken_for_the_old_one(store: DeltaStore, path: Path) -> None:
    commit(store)
    shutil.rmtree(path)
    DeltaStore.create(str(path))
    with pytest.raises(StoreUnavailableError, match="another table has taken its place"):
        commit(store, expected=1)
    assert DeltaStore(str(path)).revision() == 0


def test_store_that_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no policy store"):
        DeltaStore(str(path))


def test_other_table_is_no_store(path: Path) -> None:
    write_deltalake(str(path), pa.table({"name": ["x"]}))
    with pytest.raises(ConfigurationError, match="it has no columns"):
        DeltaStore(str(path))


def test_commit_without_changes_is_refused(store: DeltaStore) -> None:
    with pytest.raises(ConfigurationError, match="says nothing"):
        commit(store, [])


@pytest.mark.slow
def test_snapshot_is_made_when_the_log_has_grown_and_reads_are_the_same(
    store: DeltaStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_REVISIONS", 7)
    for number in range(20):
        commit(store, [Change("namespace", f"n{number % 9}", f'{{"n":{number}}}')], expected=number)
    fresh = DeltaStore(str(path))
    assert list(fresh.scan()) == list(store.scan())
    assert [entry.body for entry in fresh.page("namespace", limit=2)] == ['{"n":18}', '{"n":19}']
    assert [entry.body for entry in fresh.page("namespace", limit=2, at=9)] == ['{"n":0}', '{"n":1}']
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=["form", "revision"]).to_pylist()
    assert {row["revision"] for row in rows if row["form"] == "snapshot"} == {7, 14}


@pytest.mark.slow
def test_change_of_one_entry_writes_one_row(store: DeltaStore, path: Path) -> None:
    commit(store, [Change("namespace", f"n{number:05d}", "{}") for number in range(20_000)])
    before = DeltaTable(str(path)).to_pyarrow_dataset().count_rows()
    commit(store, [Change("namespace", "n00007", None)], expected=1)
    assert DeltaTable(str(path)).to_pyarrow_dataset().count_rows() == before + 1


@pytest.mark.slow
def test_large_store_is_listed_page_by_page(path: Path, store: DeltaStore) -> None:
    wanted = [f"tenant-{number % 7}/ns-{number:06d}" for number in range(60_000)]
    commit(store, [Change("namespace", name, '{"publish":{"weight":2}}') for name in wanted])
    fresh, found = DeltaStore(str(path)), [""]
    while page := fresh.page("namespace", after=found[-1], limit=1_000):
        found += [entry.name for entry in page]
    assert found[1:] == sorted(wanted)
    assert len(fresh._open.view.tail) == 0  # pages are read from the snapshot, not from memory


def test_unchanged_store_is_not_read_again(store: DeltaStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store)
    later = DeltaStore(str(path), clock_ns=lambda: 2**62)
    assert later.revision() == 1
    monkeypatch.setattr(later._open, "opened_anew", lambda: pytest.fail("the table was opened"))
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda _: pytest.fail("the table was read"))
    assert later.revision() == 1


def test_table_has_its_documented_columns(store: DeltaStore, path: Path) -> None:
    commit(store)
    assert DeltaTable(str(path)).to_pyarrow_table().schema.names == SCHEMA.names


@pytest.mark.parametrize("location", ["delta:", "file:", "s3://bucket", "policies.yaml", "", "delta"])
def test_location_that_names_no_store_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError, match="names no policy store"):
        open_store(location)


def test_revision_before_the_newest_snapshot_that_never_was_is_refused(store: DeltaStore) -> None:
    with pytest.raises(NotFoundError):
        store.page("tenant", at=3)
