"""What the simulated job promises: Spark's order, a death at every write, one history from one sequence of calls."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    EpochMissingError,
    QueueOverflowError,
    TakenOverError,
)
from spark_throttle.testing.simulation.disk import CRASH_POINTS, ConcurrentRunError, CrashPoint
from spark_throttle.testing.simulation.exchange import START_MS
from spark_throttle.testing.simulation.job import SimulatedJob

ROWS = [("acme/a", 10), ("blue/a", 20), ("acme/b", 30)] * 4


def limited(rate: float = 2) -> dict[str, Any]:
    """Return a group of `rate` messages a second for all, with a burst of one second."""
    group = {"publish": {"messages_per_second": rate, "burst_seconds": 1}}
    return {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}


def ids(rows: list[Any]) -> list[int]:
    return sorted(row.id for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("at", CRASH_POINTS)
def test_a_crash_at_any_write_leaves_what_an_undisturbed_job_leaves(at: CrashPoint) -> None:
    jobs = []
    for point in (None, at):
        job = SimulatedJob(limited())
        job.offer(ROWS)
        job.trigger()
        if point is not None:
            job.crash(at=point)
        job.offer([(None, 1)])  # so that there is a dead letter
        died = job.trigger() is None
        assert died is (point is not None)
        if died:
            job.set_policies({"version": 1})  # what is planned is not planned anew
            job.restart()
            job.set_policies(limited())
            if len(job.checkpoint.log) < 2:  # it died before it was planned
                job.trigger(0)
        jobs.append(job)
    undisturbed, restarted = jobs
    assert ids(restarted.admitted) == ids(undisturbed.admitted)
    assert restarted.rejected == undisturbed.rejected
    assert restarted.waiting == undisturbed.waiting
    assert set(ids(restarted.written)) == set(ids(undisturbed.written))


@pytest.mark.slow
def test_attempts_at_a_batch_decide_the_same_bytes() -> None:
    """<https://github.com/apache/datafusion-comet/pull/5449>, SPARK-38160: each attempt has the rows in other tasks."""
    job = SimulatedJob(limited())
    job.offer(ROWS)
    for point in ("after state", "after plain sink", "before commit"):
        job.crash(at=point)
        assert (job.trigger() if not job.is_down else job.restart()) is None
    job.restart()
    assert len(job.attempts) == 4
    assert len({attempt.digest for attempt in job.attempts}) == 1
    assert len(job.written) == 3 * len(job.admitted), "three attempts came as far as the sink without transactions"


@pytest.mark.slow
def test_equal_calls_make_equal_histories() -> None:
    histories = []
    for _ in range(2):
        job = SimulatedJob(limited())
        for _ in range(4):
            job.offer(ROWS)
            job.trigger(700)
        histories.append([attempt.digest for attempt in job.attempts])
    assert histories[0] == histories[1]


def test_a_batch_that_leaves_no_row_is_a_batch() -> None:
    job = SimulatedJob({"version": 1})
    dropped = job.drop()
    assert dropped is not None
    assert not dropped.arrived


@pytest.mark.slow
def test_an_idle_job_runs_no_batch() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    while job.waiting:
        job.trigger()
    job.trigger()
    assert [job.trigger(), job.trigger(86_400_000)] == [None, None]


def test_the_wall_clock_may_be_set_while_no_time_passes() -> None:
    job = SimulatedJob({"version": 1})
    job.offer(ROWS)
    job.set_clock(-60_000)
    batch = job.trigger(1_000)
    assert batch is not None
    assert (batch.now_ms, batch.steady_ms) == (START_MS - 59_000, 1_000)


def test_a_source_may_give_few_rows_to_a_batch() -> None:
    job = SimulatedJob({"version": 1})
    job.offer(ROWS)
    batch = job.trigger(most_rows=5)
    assert batch is not None
    assert len(batch.arrived) == len(job.admitted) == 5


def test_text_that_is_no_utf8_and_broken_rows_are_rows() -> None:
    job = SimulatedJob(limited(100))
    job.offer([(b"k\xe9", 1), ("", 1), ("acme/a", None), ("acme/a", -1)])
    job.trigger()
    assert [row.namespace for row in job.admitted] == [b"k\xe9"]
    assert sorted(letter.reason for letter in job.rejected) == ["namespace_missing", "size_missing", "size_negative"]


def test_a_job_whose_queue_may_not_overflow_goes_on_with_more_room() -> None:
    job = SimulatedJob(limited() | {"queue": {"messages": 1, "on_overflow": "fail"}})
    job.offer(ROWS)
    with pytest.raises(QueueOverflowError):
        job.trigger()
    assert job.is_down
    job.set_policies(limited() | {"queue": {"messages": 100, "on_overflow": "fail"}})
    again = job.restart()
    assert again is not None
    assert len(again.admitted) + len(job.waiting) == len(ROWS)


def test_a_queue_whose_bound_shrinks_is_cut_in_the_batch_in_which_it_acts() -> None:
    shut = {"defaults": {"publish": {"messages_per_second": 0}}}
    job = SimulatedJob(shut)
    job.offer([("a/x", 1)] * 6 + [("b/y", 1)])
    job.trigger()
    job.set_policies(shut | {"queue": {"messages": 4}})
    batch = job.trigger()
    assert batch is not None
    assert [letter.reason for letter in batch.rejected] == ["queue_full"] * 3
    assert [letter.row.id for letter in batch.rejected] == [3, 4, 5]
    assert [row.id for row in job.waiting] == [0, 1, 2, 6]
    for _ in range(5):
        job.trigger()
    assert len(job.rejected) == 3


def test_a_queue_that_may_not_overflow_is_not_cut_to_a_bound_that_shrinks() -> None:
    shut = {"defaults": {"publish": {"messages_per_second": 0}}}
    job = SimulatedJob(shut)
    job.offer([("a/x", 1)] * 6)
    job.trigger()
    job.set_policies(shut | {"queue": {"messages": 4, "on_overflow": "fail"}})
    job.trigger()
    job.restart()
    assert len(job.waiting) == 6
    assert not job.rejected
    job.offer([("a/x", 1)])
    with pytest.raises(QueueOverflowError, match="would hold 7 delayed messages, over its bound of 4"):
        job.trigger()


def test_a_job_that_is_down_says_so() -> None:
    job = SimulatedJob({"version": 1})
    job.stop()
    with pytest.raises(ConfigurationError, match=r"call restart\(\)"):
        job.trigger()


def test_a_crash_point_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="before epoch"):
        SimulatedJob({"version": 1}).crash(at="at lunch")  # type: ignore[arg-type]


def test_a_checkpoint_without_its_control_directory_is_refused() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    job.lose_control()

    def go_on() -> None:
        job.restart()
        job.trigger()

    with pytest.raises((EpochMissingError, ConfigurationError, DamagedError)):
        go_on()


def test_a_job_that_was_put_back_has_the_state_of_then() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    before = job.waiting
    job.trigger()
    assert job.waiting != before
    job.put_back(1)
    assert job.is_down
    assert job.waiting == before


# Two runs in one control directory


def test_a_run_that_was_taken_over_ends_and_the_other_goes_on() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    twin = job.twin()
    twin.restart()
    twin.trigger()
    with pytest.raises(TakenOverError):
        job.trigger()
    assert job.is_down
    assert twin.trigger() is not None


def test_a_run_that_is_held_up_in_a_batch_writes_what_the_other_run_wrote() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    twin = job.twin()

    def start_again() -> None:
        twin.restart()

    job.hold_up("before table", start_again)
    batch = job.trigger()
    assert batch is not None
    assert ids(job.admitted) == ids(list(batch.admitted))
    assert len(job.written) == 2 * len(job.admitted)


def test_a_run_that_is_held_up_before_its_batch_is_logged_ends_when_the_other_has_logged_one() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    twin = job.twin()

    def go_on() -> None:
        twin.restart()
        twin.trigger()

    job.hold_up("before offset", go_on)
    with pytest.raises(ConcurrentRunError, match="batch 1 was logged by another run"):
        job.trigger()


def test_another_query_in_the_control_directory_is_refused_and_ends_nobody() -> None:
    job = SimulatedJob(limited())
    job.offer(ROWS)
    job.trigger()
    other = job.twin(is_other_query=True)
    other.restart()
    other.offer(ROWS)
    with pytest.raises(ConfigurationError, match="has run batch 0"):
        other.trigger()
    assert job.trigger() is not None
    assert not other.admitted
