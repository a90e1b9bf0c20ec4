"""Costs that are known late, in whole jobs: policies change between the estimate and the cost, and jobs share."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.core.quota import MICRO, Dimension
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import StoredState
from spark_throttle.record import unpack
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.exchange import START_MS, SimulatedExchange

QUOTA = {"publish": {"units_per_second": 10, "burst_seconds": 10}}
OTHERS = {"version": 1, "tenants": {"blue": QUOTA}}
GROUPS = {"version": 1, "resource_groups": {"gold": QUOTA, "iron": QUOTA}}


def in_group(name: str) -> dict[str, Any]:
    return {**GROUPS, "tenants": {"acme": {"resource_group": name}, "blue": {"resource_group": "iron"}}}


def shared(job: SimulatedJob) -> SharedBuckets:
    """Return the shared buckets as the last batch left them."""
    block = job.checkpoint.states[job.checkpoint.committed]
    assert block is not None
    return unpack(StoredState, block, "the state").state.shared


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OTHERS, {**OTHERS, "namespaces": {"acme/x": QUOTA}}),
        (OTHERS, {**OTHERS, "namespaces": {"acme/x": {"publish": {"units_per_day": 101}}}}),
        ({**OTHERS, "exempt": ["acme/*"], "job": QUOTA}, {**OTHERS, "job": QUOTA}),
        (in_group("gold"), in_group("iron")),
        (
            {**OTHERS, "tenants": {"acme": {"publish": {**QUOTA["publish"], "on_excess": "observe"}}}},
            {**OTHERS, "tenants": {"acme": QUOTA}},
        ),
    ],
    ids=["first limit", "first budget", "exempt before", "another group", "observed before"],
)
def test_nothing_is_given_back_where_nothing_was_charged(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Rows leave for estimates that were far too high; then something limits them that did not before."""
    first = 0 if before == in_group("gold") else 1_000
    job = SimulatedJob(before)
    job.offer([("acme/x", 1, 1_000 if number == 0 else first, f"r{number}") for number in range(10)])
    assert job.trigger() is not None
    job.set_policies(after)
    job.offer([("acme/x", 1, 1)] * 2_000 + [("blue/x", 1, 1)] * 100)
    job.trigger(0)
    for number in range(10):
        job.settle(f"r{number}", 0)
        job.trigger(0)
    assert sum(row.units or 0 for row in job.admitted if row.identity is None and row.namespace == "acme/x") <= 101


def test_what_a_row_cost_beyond_a_claim_is_not_taken_off_a_budget_that_all_jobs_together_kept() -> None:
    policies = {"version": 1, "tenants": {"acme": {"publish": {"units_per_hour": 100_000}}}}
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    exchange.time.pass_by(-START_MS % 3_600_000 - 60_000)  # a minute before the next hour
    jobs = [SimulatedJob(policies, exchange=exchange) for _ in range(2)]

    def run(batches: int) -> None:
        for _ in range(batches):
            for job in jobs:
                job.offer([("acme/x", 1, 10, "last")])
                job.trigger(500)

    run(10)
    jobs[0].settle("last", 40_000)
    run(1)
    exchange.time.pass_by(60_000)  # the next hour begins
    run(10)
    spent = shared(jobs[0]).spent
    assert spent is not None
    assert spent.used[1, 0] < 1_000


def test_debt_by_a_late_cost_is_repaid_by_a_job_that_had_given_the_quota_up() -> None:
    policies = {"version": 1, "tenants": {"acme": {"publish": {"units_per_second": 100, "burst_seconds": 10}}}}
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    exchange.join("other", policies)
    job = SimulatedJob(policies, exchange=exchange)
    for number in range(10):
        job.offer([("acme/x", 1, 0, f"r{number}")])
        job.trigger()
    for _ in range(20):
        job.trigger(2_000)
    job.settle("r0", 5_000)
    job.trigger()
    owed = -shared(job).balance_micro[1, Dimension.UNITS]
    for _ in range(30):
        job.trigger()
    job.settle("r1", 0)
    job.trigger()
    assert owed >= 5_000 * MICRO
    assert -shared(job).balance_micro[1, Dimension.UNITS] < owed - 10 * MICRO
