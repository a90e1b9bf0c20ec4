"""A control directory is one run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.notes import read_next_policies
from spark_throttle.control.run_fence import RunFence, forget_past
from spark_throttle.errors import ConfigurationError, TakenOverError
from spark_throttle.files.storage import Directory
from tests.control.queries import Query, per_second


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "control", is_fenced=True)


def due_batch(query: Query) -> None:
    """Run a batch that leaves a row that could leave at once."""
    query.busy_batch(5, waiting=1, due_ms=query.now_ms)


def test_run_that_was_taken_over_writes_no_epoch_any_more(query: Query) -> None:
    """Whether the other run is of this query or of another one that was given the same directory."""
    query.trigger()
    due_batch(query)
    zombie = query.plane
    query.restart()
    query.plane.epochs.load(query.name)
    epochs = query.directory.names("epochs")
    with pytest.raises(
        TakenOverError, match=r"another run has begun in the control directory .* a checkpoint .* of its own"
    ):
        zombie.next_epoch(query.name)
    assert query.directory.names("epochs") == epochs
    assert query.trigger().number == 2


def test_run_that_comes_to_its_first_epoch_after_a_later_run_has_begun_is_the_one_that_ends(query: Query) -> None:
    query.trigger()
    due_batch(query)
    query.restart()
    early, of_early = query.plane, query.name
    query.restart()
    query.trigger()
    files = {folder: query.directory.names(folder) for folder in ("epochs", "batches")}
    with pytest.raises(TakenOverError):
        early.next_epoch(of_early)
    assert {folder: query.directory.names(folder) for folder in ("epochs", "batches")} == files
    due_batch(query)
    assert query.trigger().number == of_early.number + 2


def test_run_that_was_taken_over_notes_no_policies_any_more(query: Query) -> None:
    query.trigger()
    zombie = query.plane
    query.restart()
    query.trigger()
    noted = read_next_policies(query.directory)
    query.policies.set({"job": per_second(7)})
    with pytest.raises(TakenOverError):
        zombie.next_epoch(query.name)
    assert read_next_policies(query.directory) == noted
    query.trigger()
    assert read_next_policies(query.directory) != noted


def test_run_that_was_taken_over_deletes_no_file_any_more(query: Query) -> None:
    query.trigger()
    zombie = query.plane
    query.restart()
    query.plane.epochs.load(query.name)
    with pytest.raises(TakenOverError):
        zombie.forget_before(query.name.__class__(1_100, ""))
    assert query.directory.names("epochs") == [query.name.file]


def test_run_that_was_taken_over_forgets_no_report_of_the_other_run(query: Query) -> None:
    """To a run that knows no later epoch, a report of one looks as if the checkpoint had been put back."""
    query.trigger()
    due_batch(query)
    zombie, of_zombie = query.plane, query.name
    query.restart()
    query.trigger()
    due_batch(query)
    reports = query.directory.names("batches")
    with pytest.raises(TakenOverError):
        zombie.next_epoch(of_zombie)
    assert query.directory.names("batches") == reports


def test_query_that_is_refused_at_its_start_leaves_the_run_alone_that_has_the_directory(query: Query) -> None:
    query.trigger()
    due_batch(query)
    with pytest.raises(ConfigurationError, match="has run batch 0"):
        Query(query.path, is_fenced=True).trigger()
    assert query.trigger().number == 2


def test_what_others_see_of_a_run_begins_when_the_directory_is_its_own(query: Query) -> None:
    begun = list[str]()
    fence = RunFence(query.directory, lambda: begun.append("lease"))
    assert not begun
    fence.begin()
    fence.begin()
    assert begun == ["lease"]


def test_second_query_in_a_control_directory_is_refused_at_its_start(query: Query) -> None:
    query.trigger()
    query.quiet_batch()
    other = Query(query.path, is_fenced=True)
    with pytest.raises(ConfigurationError, match=r"has run batch 0.* if that query runs, give this one"):
        other.trigger()


def test_query_that_began_anew_after_its_first_batch_is_refused(query: Query) -> None:
    query.trigger()
    query.quiet_batch()
    query.restart()
    query.name = NO_EPOCH
    with pytest.raises(ConfigurationError, match="has run batch 0, but the checkpoint has no batch"):
        query.trigger()


def test_what_is_forgotten_of_a_query_is_all_but_whose_the_directory_is(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    lasting = ["manifest.json", "run", "seat.json"]
    for name in [*lasting, "begun.json", "batches/000000000000.report.1", "epochs/1", "staged/a/b.parquet"]:
        directory.write(name, b"1")
    forget_past(directory)
    assert directory.names_below(".") == lasting


def test_first_epoch_that_was_made_and_not_logged_is_made_again(query: Query) -> None:
    first = query.trigger()
    query.name = NO_EPOCH
    query.restart()
    assert query.trigger(0) == first


def test_directory_without_a_mark_is_nobody_elses(query: Query) -> None:
    fence = RunFence(Directory(str(query.path)))
    fence.begin()
    fence.check()
    (query.path / "run").unlink()
    fence.check()
