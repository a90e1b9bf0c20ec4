"""Jobs that share a quota have its burst once, together, and a job that joins brings none of its own."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob

pytestmark = pytest.mark.slow

POLICIES: dict[str, Any] = {
    "version": 1,
    "resource_groups": {"g": {"publish": {"messages_per_second": 20, "burst_seconds": 5}}},
    "defaults": {"resource_group": "g"},
}


@pytest.mark.parametrize("count", [1, 2])
def test_any_number_of_jobs_has_one_burst_after_an_idle_time_and_one_that_joins_has_none(count: int) -> None:
    """<https://github.com/grafana/mimir/issues/8746> (and #14471): the rate is of all instances, the burst of each."""
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    jobs = [SimulatedJob(POLICIES, exchange=exchange) for _ in range(count)]

    def second(offered: int) -> None:
        for job in jobs:
            job.offer([("t/x", 1)] * (offered // len(jobs)))
            job.trigger(1000 // len(jobs))

    for _ in range(5):
        second(count)
    exchange.time.pass_by(6_000)
    began_ms, before = exchange.time.now_ms, sum(len(job.admitted) for job in jobs)
    admitted = 0
    for at in range(9):
        if at == 5:
            jobs.append(SimulatedJob(POLICIES, exchange=exchange))
        second(60)
        admitted = sum(len(job.admitted) for job in jobs) - before
        assert admitted <= 5 * 20 + 20 * (exchange.time.now_ms - began_ms) / 1000 + len(jobs)
    assert admitted >= 20 * 9, "nor is the limit less than it says"
