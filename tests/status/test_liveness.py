"""Whether a job lives: ages by a steady clock wherever that is possible, whatever the wall clocks say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spark_throttle.checkpoint.manifest import Drained, write_drained
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import (
    NAME,
    SIGN_INTERVAL_MS,
    Pulse,
    read_sign_of_life,
    write_sign_of_life,
)
from spark_throttle.control.run_fence import RunFence
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.status.liveness import HANGS_AFTER_MS, SIGNS_MISSED, LifeBounds, SignWatch

BOUND_MS = SIGNS_MISSED * SIGN_INTERVAL_MS


@dataclass
class Machine:
    """The clocks of a machine."""

    boot: str
    wall_ms: int = 1_760_000_000_000
    steady_ms: int = 5_000_000

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall_ms, lambda: self.steady_ms, self.boot)


@dataclass
class World:
    """A job on one machine, and a watcher on the same or another."""

    directory: Directory
    job: Machine
    watcher: Machine
    bounds: LifeBounds = field(default_factory=LifeBounds)

    def __post_init__(self) -> None:
        self.fence = RunFence(self.directory)
        self.fence.begin()
        self.pulse = Pulse(self.directory, self.fence, self.job.clock)
        self.watch = SignWatch(self.directory, self.watcher.clock, self.bounds)

    def pass_ms(self, passed_ms: int) -> None:
        for machine in (self.job, self.watcher) if self.job is not self.watcher else (self.job,):
            machine.wall_ms += passed_ms
            machine.steady_ms += passed_ms

    def beat(self) -> None:
        self.pulse.note_call()
        self.pulse.beat()

    def state(self) -> tuple[str, int | None]:
        self.watch.look()
        found = self.watch.liveness()
        return found.state, found.sign_age_ms


@pytest.fixture
def near(tmp_path: Path) -> World:
    machine = Machine("here")
    return World(Directory(str(tmp_path)), machine, machine)


@pytest.fixture
def far(tmp_path: Path) -> World:
    return World(Directory(str(tmp_path)), Machine("there"), Machine("here", steady_ms=70))


def test_job_is_silent_a_few_intervals_after_its_last_sign(near: World) -> None:
    near.beat()
    assert near.state() == ("reporting", 0)
    near.pass_ms(BOUND_MS)
    assert near.state() == ("reporting", BOUND_MS)
    near.pass_ms(1)
    assert near.state() == ("silent", BOUND_MS + 1)
    assert not near.watch.liveness().is_listening
    near.beat()
    assert near.state() == ("reporting", 0)


def test_job_falls_silent_also_while_nobody_can_read_its_directory(near: World) -> None:
    near.beat()
    near.state()
    near.pass_ms(BOUND_MS + 1)
    assert near.watch.liveness().state == "silent"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_wall_clock_that_is_set_changes_no_age_on_the_jobs_machine(near: World, step_ms: int) -> None:
    near.beat()
    near.job.wall_ms += step_ms
    near.pass_ms(4_000)
    assert near.state() == ("reporting", 4_000)
    near.pass_ms(BOUND_MS)
    assert near.state()[0] == "silent"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_watcher_elsewhere_goes_by_the_change_of_the_sign_and_its_own_steady_clock(far: World, step_ms: int) -> None:
    far.beat()
    far.state()
    far.pass_ms(SIGN_INTERVAL_MS)
    far.beat()
    far.watcher.wall_ms += step_ms
    assert far.state() == ("reporting", 0)
    far.pass_ms(BOUND_MS + 1)
    assert far.state() == ("silent", BOUND_MS + 1)


def test_sign_that_was_there_at_the_first_look_is_dated_by_the_wall_clocks(far: World) -> None:
    far.beat()
    far.pass_ms(60_000)
    assert far.state() == ("silent", 60_000)


def test_sign_that_is_dated_in_the_future_is_of_unknown_age_until_it_changes(far: World) -> None:
    far.beat()
    far.watcher.wall_ms -= 3_600_000
    assert far.state() == ("unknown", None)
    far.beat()
    assert far.state() == ("reporting", 0)


def test_dead_job_whose_sign_is_dated_in_the_future_falls_silent_all_the_same(far: World) -> None:
    far.beat()
    far.watcher.wall_ms -= 3_600_000
    far.state()
    far.pass_ms(BOUND_MS + 1)
    assert far.state() == ("silent", BOUND_MS + 1)


def test_job_that_hangs_gives_signs_and_is_not_listening(near: World) -> None:
    near.beat()
    near.pass_ms(HANGS_AFTER_MS + 1)
    near.pulse.beat()
    assert near.state() == ("hanging", 0)
    found = near.watch.liveness()
    assert (found.is_listening, found.asked_age_ms) == (False, HANGS_AFTER_MS + 1)
    assert "Spark has asked for no batch for 600 s" in found.detail


def test_job_with_long_triggers_does_not_hang_between_them(near: World) -> None:
    near.beat()
    near.pass_ms(HANGS_AFTER_MS)
    near.beat()
    near.pass_ms(2 * HANGS_AFTER_MS)
    near.pulse.beat()
    assert near.state() == ("reporting", 0)


def test_job_that_ended_in_good_order_is_not_listening(near: World) -> None:
    near.beat()
    near.pulse.beat(has_ended=True)
    near.pass_ms(1_000)
    assert near.state() == ("ended", 1_000)
    assert not near.watch.liveness().is_listening


def test_job_that_was_drained_says_that_nothing_waits_there(near: World) -> None:
    near.beat()
    near.pulse.beat(has_ended=True)
    told = []
    for is_finished in (False, True):
        write_drained(near.directory, Drained(108, "/lake/waiting", "parquet", "5eed", is_finished))
        near.state()
        told.append(near.watch.liveness().detail)
    assert told == [
        "the query ended 0.0 s ago",
        "the query ended 0.0 s ago, and the rows that waited after batch 108 were drained: none waits here",
    ]


def test_of_two_runs_only_the_owner_of_the_directory_counts(near: World) -> None:
    near.beat()
    of_first = read_sign_of_life(near.directory)
    assert of_first is not None
    assert near.state() == ("reporting", 0)
    second = RunFence(near.directory)
    second.begin()
    assert near.state() == ("unknown", None)
    pulse = Pulse(near.directory, second, near.job.clock)
    pulse.beat()
    assert near.state() == ("reporting", 0)
    near.pass_ms(5_000)
    write_sign_of_life(near.directory, replace(of_first, number=99))  # the zombie's last write came late
    assert near.state() == ("reporting", 5_000)


def test_job_of_an_older_release_is_neither_silent_nor_reporting(near: World) -> None:
    assert near.state() == ("unknown", None)
    assert near.watch.liveness().is_listening


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 99}', b'{"format": 1, "run": "x"}'])
def test_sign_that_cannot_be_read_is_no_sign_and_no_failure(near: World, content: bytes) -> None:
    near.beat()
    near.state()
    near.directory.write(NAME, content)
    assert near.state() == ("unknown", None)
    assert "sign of life" in near.watch.liveness().detail


def test_bound_is_the_users_or_a_few_of_the_jobs_intervals(near: World) -> None:
    near.beat()
    strict = SignWatch(near.directory, near.watcher.clock, LifeBounds.of_seconds(2, 5))
    strict.look()
    near.pass_ms(2_001)
    assert strict.liveness().state == "silent"
    near.pass_ms(4_000)
    near.pulse.beat()
    strict.look()
    assert strict.liveness().state == "hanging"
    assert near.state()[0] == "reporting"
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="give a number of seconds above 0"):
            LifeBounds.of_seconds(wrong, None)
