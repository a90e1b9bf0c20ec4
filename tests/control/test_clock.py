"""Tokens are paid by time that really passed: a wall clock that is set pays nothing and stops nothing."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spark_throttle.control.clock import MOST_DRIFT_MS, Clock
from spark_throttle.control.epochs import EpochName
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.limits.token_bucket import MOST_LAG_MS
from spark_throttle.core.usage import unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.move.decider_batch import BatchOutcome
from tests.control.queries import START_MS, per_second
from tests.control.whole_job import Rows, WholeJob
from tests.effort import IS_SEARCH, crossed
from tests.object_store import object_store

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
RATE, BURST = 5, 50

GROUP: dict[str, object] = {
    "resource_groups": {"g": per_second(RATE, burst_seconds=10)},
    "defaults": {"resource_group": "g"},
}
OWN: dict[str, object] = {"namespaces": {"a/x": per_second(RATE, burst_seconds=10)}}
MANY = [("a/x", 1)] * 400


@pytest.fixture(params=[GROUP, OWN], ids=["group", "namespace"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> WholeJob:
    """Return a job with a long backlog, whose first burst is used up."""
    job = WholeJob(tmp_path, request.param)
    job.trigger(MANY)
    assert len(job.admitted) == BURST + 1
    return job


def drained(job: WholeJob) -> int:
    """Return how many rows leave in the batches that are due now."""
    before = len(job.admitted)
    while job.trigger(after_ms=0):
        pass
    return len(job.admitted) - before


def passes(job: WholeJob, seconds: int) -> int:
    """Return how many rows leave while time passes."""
    before = len(job.admitted)
    for _ in range(4 * seconds):
        job.trigger(after_ms=250)
    return len(job.admitted) - before


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("jump_ms", [150, 20_000, HOUR_MS, YEAR_MS])
def test_jumps_forth_and_back_pay_nothing_and_stop_nothing(job: WholeJob, jump_ms: int) -> None:
    for step in range(6):
        job.shift_ms += jump_ms if step % 2 == 0 else -jump_ms
        assert drained(job) == 0
    for by_ms in (-jump_ms, 2 * jump_ms, -jump_ms):
        job.shift_ms += by_ms
        assert passes(job, 4) == 4 * RATE


@pytest.mark.slow
@pytest.mark.parametrize("by_ms", [0, HOUR_MS, -HOUR_MS, YEAR_MS])
def test_job_that_was_down_for_an_hour_is_paid_its_burst_once(job: WholeJob, by_ms: int) -> None:
    job.now_ms += HOUR_MS
    job.shift_ms += by_ms
    job.restart()
    assert drained(job) == BURST + 1  # and a message on credit (KIP-599)
    assert passes(job, 4) == 4 * RATE


@pytest.mark.slow
def test_job_that_goes_on_on_another_machine_is_paid_what_the_wall_clock_shows_once(job: WholeJob) -> None:
    for machine in ("another", "a third"):
        job.now_ms += HOUR_MS
        job.machine = machine
        job.restart()
        assert drained(job) == BURST + 1
        assert passes(job, 2) == 2 * RATE


@pytest.mark.slow
def test_two_machines_whose_clocks_differ_pay_their_difference_once(job: WholeJob) -> None:
    admitted, legs, seconds = len(job.admitted), 2, 10
    for leg in range(legs):
        job.machine, job.shift_ms = ("another", HOUR_MS) if leg % 2 == 0 else ("this", 0)
        job.restart()
        passes(job, seconds)
    # The backlog has more than would leave if each change of the machine paid a burst.
    assert job.waiting > 0
    assert len(job.admitted) - admitted <= legs * seconds * RATE + BURST + 1


@pytest.mark.slow
def test_machine_whose_clock_is_behind_pays_nothing_and_goes_on(job: WholeJob) -> None:
    job.machine, job.shift_ms = "another", -YEAR_MS
    job.restart()
    assert drained(job) == 0
    assert passes(job, 4) == 4 * RATE


@pytest.mark.slow
def test_machine_whose_clock_is_ahead_is_paid_the_difference_once_and_a_burst_at_most(job: WholeJob) -> None:
    """On a disk, nothing but the wall clock says how long no process ran."""
    job.machine, job.shift_ms = "another", 2_000
    job.restart()
    assert drained(job) == 2 * RATE
    assert passes(job, 4) == 4 * RATE
    job.machine, job.shift_ms = "a third", HOUR_MS
    job.restart()
    assert drained(job) == BURST + 1
    assert passes(job, 4) == 4 * RATE


@pytest.mark.parametrize("seconds", [5, 50])
def test_machine_whose_clock_is_behind_goes_on_from_what_batches_were_paid(tmp_path: Path, seconds: int) -> None:
    """A debt of 100 s is being repaid, and no epoch is due before it is."""
    group = {"resource_groups": {"g": {"publish": {"bytes_per_second": 10, "burst_seconds": 1}}}}
    job = WholeJob(tmp_path, group | {"defaults": {"resource_group": "g"}})
    job.trigger([("a/x", 1_010)])
    name = job.name
    job.trigger([("a/x", 1)], after_ms=1_000 * seconds)
    assert job.name == name
    job.machine, job.shift_ms = "another", -YEAR_MS
    job.restart()
    assert drained(job) == 0
    left_ms = 1_000 * (100 - seconds)
    job.trigger(after_ms=left_ms - 1)
    assert len(job.admitted) == 1
    job.trigger(after_ms=1)
    assert len(job.admitted) == 2


class StoredJob(WholeJob):
    """A job whose control directory is on an object store, which has a clock of its own."""

    @property
    def directory(self) -> Directory:
        return Directory("s3://lake/control")

    def decide(self, end: EpochName, rows: Rows) -> BatchOutcome:
        self.plane.note_batch()
        return super().decide(end, rows)

    def restart(self) -> None:
        self.fence = RunFence(self.directory)
        super().restart()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ahead_ms", "down_ms"), crossed([0, 11_000, HOUR_MS, -HOUR_MS], [0, 900, 4_000, HOUR_MS], of=4)
)
def test_job_on_an_object_store_is_paid_on_another_machine_what_passed_by_the_stores_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ahead_ms: int, down_ms: int
) -> None:
    written_ms: dict[str, int] = {}
    write, began_ms = Directory.write, START_MS + 777_123  # the store's clock is not the machine's

    with object_store(monkeypatch):
        job = StoredJob(tmp_path, OWN)

        def noted(directory: Directory, name: str, content: bytes) -> None:
            written_ms[name] = (began_ms + job.now_ms - START_MS) // 1_000 * 1_000  # it tells whole seconds
            write(directory, name, content)

        monkeypatch.setattr(Directory, "write", noted)
        monkeypatch.setattr(Directory, "written_ms", lambda _, name: written_ms.get(name))
        job.restart()
        job.trigger(MANY)
        assert passes(job, 4) == 4 * RATE
        job.now_ms += down_ms
        job.machine, job.shift_ms = "another", ahead_ms
        job.restart()
        paid = drained(job)
        assert paid <= down_ms * RATE / 1000 + 1
        if ahead_ms >= 0:
            assert paid >= min(BURST, (down_ms - 2_000) * RATE / 1000)
        assert passes(job, 4) == 4 * RATE


def test_jump_while_a_batch_is_planned_is_paid_once_and_no_more_than_the_lag_that_is_thought_possible(
    job: WholeJob,
) -> None:
    for _ in range(5):
        job.now_ms += 200
        end = job.plane.next_epoch(job.name)
        job.shift_ms += YEAR_MS
        outcome = job.decide(end, ())
        job.shift_ms -= YEAR_MS
        report = unpack_usage(outcome.usage, "it")
        assert report.as_of_ms == job.plane.epochs.load(end).paid_ms + MOST_LAG_MS
        assert report.now_ms == job.wall_ms() + YEAR_MS


def test_idle_job_plans_no_batch_till_the_clock_is_set_and_one_then(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, GROUP)
    job.trigger([("a/x", 1)])
    assert drained(job) == 0
    assert [job.trigger(after_ms=10_000) for _ in range(50)] == [None] * 50
    job.shift_ms += MOST_DRIFT_MS
    assert job.trigger() is None
    job.shift_ms += 1
    assert [job.trigger(), job.trigger()] == [0, None]
    job.restart()
    assert job.trigger() is None


def test_batch_without_an_epoch_goes_by_the_time_since_the_last_one(tmp_path: Path) -> None:
    job = WholeJob(tmp_path, GROUP)
    job.trigger()
    while job.trigger(after_ms=0) is not None:
        pass
    job.shift_ms = -YEAR_MS
    assert job.trigger() == 0
    name = job.name
    paid_ms = job.plane.epochs.load(name).paid_ms
    assert paid_ms == job.now_ms
    assert job.trigger([("a/x", 1)], after_ms=4_321) == 1
    assert job.name == name
    assert job.stored.state.advanced_to_ms == paid_ms + 4_321


def test_batch_that_is_run_again_gives_the_same_bytes_whatever_the_clocks_say_by_then(job: WholeJob) -> None:
    job.now_ms += 3_000
    end = job.plane.next_epoch(job.name)
    assert end != job.name
    first = job.decide(end, MANY[:9])
    wall_ms = job.wall_ms()
    job.now_ms += HOUR_MS
    job.machine, job.shift_ms = "another", wall_ms - job.now_ms  # Spark logged the batch's time
    job.restart()
    again = job.decide(end, MANY[:9])
    assert (again.state, again.usage) == (first.state, first.usage)


JUMPS_MS = (1, 20, 90, 99, 101, 150, 3_000, 60_000, HOUR_MS, 30 * 24 * HOUR_MS, YEAR_MS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20 if IS_SEARCH else 2))
def test_no_window_of_real_time_gets_more_than_its_rate_and_a_burst_whatever_the_clocks_do(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    job = WholeJob(tmp_path, (GROUP, OWN)[seed % 2])
    planned_shift_ms = 0
    for _ in range(100):
        event = rng.random()
        if event < 0.3:
            job.shift_ms += rng.choice((-1, 1)) * rng.choice(JUMPS_MS)
        elif event < 0.4:
            job.now_ms += rng.choice((10, 5_000, HOUR_MS))
            if rng.random() < 0.5:
                # No later than the machine before would say: of more, no clock could tell that it did not pass.
                job.machine += "'"
                job.shift_ms = planned_shift_ms - rng.choice((0, 0, 500, HOUR_MS))
            job.restart()
        before = job.name
        rows = [("a/x", 1)] * rng.choice((0, 0, 1, 40))
        job.trigger(rows, after_ms=rng.choice((1, 10, 100, 1_000, 1_000, 20_000)), lasts_ms=rng.choice((0, 5, 900)))
        planned_shift_ms = job.shift_ms if job.name != before else planned_shift_ms
    at_ms = np.array([at for at, _ in job.admitted])
    assert len(at_ms) > 150
    for first in range(len(at_ms)):
        counts = np.arange(1, len(at_ms) - first + 1)
        most = BURST + RATE * (at_ms[first:] - at_ms[first] + MOST_DRIFT_MS) / 1000 + 1
        assert (counts <= most).all(), first
    # And it is not stopped: a backlog gets its rate.
    job.trigger(MANY)
    while job.trigger(after_ms=0):
        pass
    assert passes(job, 5) >= 5 * RATE - 1


def test_machines_own_clock_does_not_go_back_and_names_its_boot() -> None:
    clock = Clock.system()
    steady_ms = [clock.steady_ms() for _ in range(100)]
    assert all(before <= after for before, after in pairwise(steady_ms))
    assert clock.boot == Clock.system().boot != ""
    assert clock.wall_ms() > START_MS - YEAR_MS


def test_object_store_says_when_it_wrote_a_file_and_a_disk_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with object_store(monkeypatch):
        for directory in (Directory("s3://lake/control"), Directory(str(tmp_path))):
            directory.write("run", b"x")
            assert (directory.written_ms("run") is None) == directory.is_on_disk
            assert directory.written_ms("gone") is None
