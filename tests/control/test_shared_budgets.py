"""Whole jobs that share budgets: together exact, all of it, whoever comes, dies, is copied or put back."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from spark_throttle.control.shared_budgets import NamedWindows, SharedBudgets
from spark_throttle.core.limits.budgets import BudgetClaims, CalendarWindows, UsedBudgets
from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import ConfigurationError, DamagedError
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.disk import CRASH_POINTS
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.effort import IS_SEARCH
from tests.oracle.worlds import limit, make_policy

HOUR_MS: Final = 3_600_000
BUDGET: Final = 24


def policies(on_excess: str = "delay", key: str = "messages_per_hour") -> dict[str, Any]:
    group = {"publish": {key: BUDGET, "on_excess": on_excess}}
    return {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}


class Jobs:
    """Jobs that share a budget from the beginning of an hour, and a count of all that they admit, by hour."""

    def __init__(self, count: int, document: dict[str, Any] | None = None) -> None:
        self.exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
        self.document = document or policies()
        self.exchange.time.now_ms = -START_IN_HOUR_MS % HOUR_MS + 1
        self.jobs: list[SimulatedJob] = []
        self.used: dict[int, int] = defaultdict(int)
        self._counted: set[tuple[int, int, object]] = set()
        for _ in range(count):
            self.start()

    def start(self) -> SimulatedJob:
        self.jobs.append(SimulatedJob(self.document, exchange=self.exchange))
        return self.jobs[-1]

    def count(self, job: SimulatedJob, batch: SimulatedBatch | None) -> None:
        """Count what a batch admitted, but once if it runs again and decides the same."""
        if batch is None or not batch.usage:
            return
        report = unpack_usage(batch.usage, "a usage report")
        assert report.budgets is not None
        since_ms = int(report.budgets.windows.since_ms[0]) - report.as_of_ms + batch.now_ms
        which = id(job), batch.number, batch.digest
        if which not in self._counted:
            self._counted.add(which)
            self.used[(since_ms + HOUR_MS // 2) // HOUR_MS] += len(batch.admitted)
        assert max(self.used.values()) <= BUDGET, dict(self.used)

    def run(self, rounds: int, rows: int = 10, after_ms: int = 1_000) -> None:
        for _ in range(rounds):
            self.exchange.time.pass_by(after_ms)
            for job in list(self.jobs):
                if not job.is_down:
                    if rows:
                        job.offer([("acme/a", 1)] * rows)
                    self.run_one(job, partial(job.trigger, 0))

    def run_one(self, job: SimulatedJob, step: Callable[[], SimulatedBatch | None]) -> None:
        """Count what a step admits; a job that is refused ends, as one whose first batch was undone."""
        try:
            self.count(job, step())
        except (ConfigurationError, DamagedError):
            job.stop()
            self.jobs.remove(job)

    @property
    def last(self) -> int:
        """What is used in the last hour."""
        return self.used[max(self.used)]


START_IN_HOUR_MS: Final = 1_760_000_000_000 % HOUR_MS


def test_jobs_together_admit_exactly_their_budget_and_again_in_the_next_hour() -> None:
    jobs = Jobs(2)
    jobs.run(13)
    assert list(jobs.used.values()) == [BUDGET]
    jobs.exchange.time.pass_by(HOUR_MS)
    jobs.run(13, rows=0)
    assert list(jobs.used.values()) == [BUDGET, BUDGET]


def test_excess_waits_while_something_is_left_for_any_job_and_is_rejected_when_all_is_used() -> None:
    jobs = Jobs(2, policies("reject"))
    jobs.run(2)
    assert not any(job.rejected for job in jobs.jobs)
    jobs.run(13)
    assert jobs.last == BUDGET
    assert all(job.rejected for job in jobs.jobs)
    assert {each.dimension for job in jobs.jobs for each in job.rejected} == {"messages_per_hour"}


def test_account_of_a_window_counts_what_this_run_used_until_the_next_window_has_ended() -> None:
    """The run is that of a copy: what the checkpoint had used before is the other job's."""
    policy = make_policy(groups={"g": limit(messages_per_hour=BUDGET)})
    budgets = SharedBudgets("copy", "publish", 10_000)
    nothing, seen = np.zeros((2, 1), dtype=np.int64), []
    budgets.begin_after(BudgetClaims(nothing, nothing > 0, nothing, "copied"))
    for hour, used in ((5, 7), (5, 9), (5, 12), (6, 1), (6, 3), (7, 0)):
        windows = CalendarWindows(*np.full((3, 3), hour))
        budgets.add(policy.revision, UsedBudgets(windows, shared_used=np.array([[0], [used]])))
        told = budgets.measure(policy, NamedWindows(windows, windows.number), None)
        seen.append(sorted(told.usage.tolist()))
    assert seen == [[[0, 0]], [[2, 0]], [[5, 0]], [[0, 0], [5, 0]], [[2, 0], [5, 0]], [[2, 0]]]


@pytest.mark.thorough
@pytest.mark.slow
def test_what_a_job_claimed_that_dies_counts_as_used_and_all_else_is_given_out() -> None:
    jobs = Jobs(2)
    jobs.run(4)
    dies = jobs.jobs.pop()
    claimed = dies_claims(jobs, dies)
    assert claimed > 0
    dies.stop()
    jobs.run(30)
    used = len(jobs.jobs[0].admitted)
    assert used == BUDGET - claimed
    jobs.exchange.time.pass_by(120 * jobs.exchange.settings.lease_ms)  # its share of rates is free by now
    jobs.start()
    jobs.run(13)
    assert len(jobs.jobs[0].admitted) + len(jobs.jobs[1].admitted) == used


def dies_claims(jobs: Jobs, job: SimulatedJob) -> int:
    """Return what the other jobs take a job to have claimed."""
    running = jobs.jobs[0]._running
    assert running is not None
    assert running.lease is not None
    (peer,) = running.lease.keeper._sharing._peers.everyone
    assert len(job.admitted) <= int(peer.report.rows.amount.max())
    return int(peer.report.rows.amount.max())


@pytest.mark.slow
def test_a_job_that_starts_again_goes_on_with_what_is_left() -> None:
    jobs = Jobs(1)
    jobs.run(3)
    before = jobs.last
    for _ in range(3):
        jobs.count(jobs.jobs[0], jobs.jobs[0].restart(100))
        jobs.run(6)
    assert before < jobs.last <= BUDGET
    assert jobs.last > BUDGET // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8 if IS_SEARCH else 1))
def test_no_hour_has_more_than_its_budget_whatever_happens_to_jobs(seed: int) -> None:
    draw = random.Random(seed)
    jobs = Jobs(2)
    for _ in range(25):
        job, what = draw.choice(jobs.jobs or [jobs.start()]), draw.random()
        if job.is_down:
            jobs.run_one(job, partial(job.restart, draw.choice([0, 3_000])))
        elif what < 0.1:
            job.crash(draw.choice(CRASH_POINTS))
        elif what < 0.16:
            job.stop()
        elif what < 0.24:
            job.put_back(draw.randint(1, 3), with_control=job.checkpoint.copy() if draw.random() < 0.5 else None)
        elif what < 0.3 and len(jobs.jobs) < 4:
            jobs.jobs.append(job.clone(with_sinks=True))
        elif what < 0.34 and len(jobs.jobs) < 4:
            jobs.start()
        elif what < 0.38:
            jobs.exchange.time.pass_by(HOUR_MS - jobs.exchange.time.now_ms % HOUR_MS - START_IN_HOUR_MS + 1)
        jobs.run(1, rows=draw.choice([0, 1, 5, 40]), after_ms=draw.choice([200, 1_000, 3_000]))
    assert jobs.used
