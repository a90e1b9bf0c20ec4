"""What is seen of a job between its runs is steps that the model allows, and is not where files were tampered with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from spark_throttle.checkpoint.batch_records import batch_of, part_of, records
from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.epochs import read_epoch
from spark_throttle.control.run_fence import owner_of
from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.testing.simulation.disk import CRASH_POINTS, MemoryDirectory
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError
from tests.models.seen_batches import SeenHistory
from tests.models.test_batches import REJECTING, SLOW

Sightings = list[dict[str, Any]]


def seen(job: SimulatedJob) -> dict[str, Any]:
    """Return what lies there, as `tests.crash.sightings` reads it from real files."""
    checkpoint = job.checkpoint
    files = MemoryDirectory(checkpoint.control, lambda _: None, "memory:0")

    def epoch(name: str) -> list[Any]:
        found = read_epoch(files, name)
        assert found is not None
        return [found.number, found.revision, found.settled_batch]

    newest = {batch.number: batch for batch in job.attempts}
    rows = {row.id for row in job.outside.table.rows}, {each.row.id for each in job.outside.letters.rows}
    left = [
        {n: {row.id for row in batch.admitted} for n, batch in newest.items()},
        {n: {each.row.id for each in batch.rejected} for n, batch in newest.items()},
    ]
    table, letters = ([n for n, ids in some.items() if ids and ids <= rows[at]] for at, some in enumerate(left))
    return {
        "log": [[*epoch(each.end["file"]), each.now_ms, each.end_row] for each in checkpoint.log],
        "committed": checkpoint.committed,
        "is_named": read_manifest(files) is not None,
        "owner": owner_of(files),
        "epochs": [epoch(name) for name in files.names("epochs")],
        "reports": [[batch_of(name), int(part_of(name))] for name in records(files, "report")],
        "table": table,
        "letters": letters,
    }


def killed_and_put_back() -> Sightings:
    """Kill a job at each point of a batch, and put back what the crash program puts back."""
    job, sightings = SimulatedJob(SLOW), Sightings()

    def note(event: str) -> None:
        sightings.append({"event": event, "seen": seen(job)})

    def run(policies: dict[str, Any]) -> None:
        note("start")
        job.restart()
        job.set_policies(policies)
        for _ in range(2):
            job.offer([("acme/a", 1)] * 3)
            job.trigger()

    note("start")
    for number, point in enumerate(CRASH_POINTS):
        job.offer([("acme/a", 1)] * 3)
        job.crash(point)
        job.set_policies((SLOW, REJECTING)[number % 2])
        job.trigger()
        note("start")
        job.restart()
    job.stop()
    note("kept")
    checkpoint, outside, source = job.checkpoint.copy(), job.outside.copy(), job.outside.source
    for how in ("copied", "control-ahead", "refused"):
        run(REJECTING)
        job.stop()
        note("stopped")
        control = dict(job.checkpoint.control)
        job.checkpoint = checkpoint.copy()
        if how == "control-ahead":
            job.checkpoint.control = control
        if how != "refused":
            job.outside = outside.copy()
            job.outside.source = source
        note(f"put back {how}")
    note("start")
    with pytest.raises(CheckpointMismatchError):
        job.restart()
    job.outside = outside.copy()
    job.outside.source = source
    note("put back remedied")
    run(SLOW)
    note("end")
    return sightings


@pytest.fixture(scope="module")
def sightings() -> Sightings:
    return killed_and_put_back()


def test_what_is_seen_of_a_job_between_its_runs_is_steps_of_the_model(sightings: Sightings) -> None:
    history = SeenHistory(sightings)
    history.replay()
    assert len(history.steps) > 200
    assert set(Batches.actions) <= set(history.reached)


def without_commit(sight: dict[str, Any]) -> None:
    sight["committed"] -= 2


def without_report(sight: dict[str, Any]) -> None:
    sight["reports"].pop()


def counted_twice(sight: dict[str, Any]) -> None:
    sight["log"][-1][2] -= 1


def of_no_run(sight: dict[str, Any]) -> None:
    sight["owner"] = None


def with_another_past(sight: dict[str, Any]) -> None:
    sight["log"][0][3] += 1


@pytest.mark.parametrize("fault", [without_commit, without_report, counted_twice, of_no_run, with_another_past])
def test_files_that_no_run_leaves_so_are_not_allowed(
    fault: Callable[[dict[str, Any]], None], sightings: Sightings
) -> None:
    others = copy.deepcopy(sightings[:20])
    fault(others[-1]["seen"])
    with pytest.raises(NotAllowedError, match="sighting 1"):
        SeenHistory(others).replay()
