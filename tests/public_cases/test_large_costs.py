"""A message that costs more than a bucket holds passes once its debt is paid, and no change of a policy forgives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.rows import Row

pytestmark = pytest.mark.slow

MIB = 2**20
LARGE = [("a/x", 16 * MIB)]
PRICES = (58, 80, 175, 175, 175)
"""What five calls cost, which is known only afterwards; here in units of 10 ms."""


def limited(rate: int = 10 * MIB, burst_seconds: float = 1, on_excess: str = "delay") -> dict[str, Any]:
    quota = {"bytes_per_second": rate, "burst_seconds": burst_seconds, "on_excess": on_excess}
    return {"version": 1, "namespaces": {"a/x": {"publish": quota}}}


def cost_ns(rows: Sequence[Row]) -> dict[str, int]:
    """Return what rows take: 10 ms for each byte of their size."""
    out: Counter[str] = Counter()
    for row in rows:
        out[str(row.namespace)] += 10_000_000 * (row.size_bytes or 0)
    return out


def test_a_message_larger_than_the_burst_passes_as_often_as_the_rate_lets_it() -> None:
    """<https://github.com/milvus-io/talon/pull/551>: 16 MiB at 10 MiB/s is told to come back in 0.6 s, for ever."""
    job, passed_ms = SimulatedJob(limited()), []
    for at_ms in range(0, 15_000, 100):
        job.offer(LARGE if at_ms % 1_000 == 0 and len(job.waiting) < 9 else [])
        batch = job.trigger(100)
        passed_ms += [job.steady_ms] * (0 if batch is None else len(batch.admitted))
    assert {later - earlier for earlier, later in pairwise(passed_ms[3:])} == {1_600}


def test_a_rejected_message_that_comes_back_when_it_is_told_passes_and_a_millisecond_earlier_does_not() -> None:
    """
    <https://github.com/milvus-io/talon/pull/551> and <https://github.com/apache/kafka/pull/19318>: who obeys the time
    that it is told is refused again, and told the same.
    """
    job = SimulatedJob(limited(on_excess="reject"))
    job.offer(LARGE)
    job.trigger()
    for _ in range(8):
        job.offer(LARGE)
        job.trigger(0)
        told_ms = job.rejected[-1].throttle_time_ms
        assert told_ms is not None
        passed = len(job.admitted)
        job.offer(LARGE)
        job.trigger(told_ms - 1)
        assert job.rejected[-1].throttle_time_ms == 1
        assert len(job.admitted) == passed
        job.offer(LARGE)
        job.trigger(1)
        assert len(job.admitted) == passed + 1


@pytest.mark.parametrize("on_excess", ["delay", "reject"])
def test_a_policy_that_changes_every_second_grants_nothing(on_excess: str) -> None:
    """`thingsboard/tbmq#356`: each change of the configuration grants a fresh interval."""
    job, admitted = SimulatedJob(limited(on_excess=on_excess)), 0
    for second in range(40):
        job.set_policies(limited(10 * MIB + second % 2, 1 if second // 2 % 2 else 1.001, on_excess))
        job.offer(LARGE if len(job.waiting) < 9 else [])
        job.trigger()
        admitted = sum(row.size_bytes or 0 for row in job.admitted)
        assert admitted <= 16 * MIB + 10.011 * MIB + (10 * MIB + 1) * (job.steady_ms - 1_000) / 1000
    assert admitted >= (24 if on_excess == "delay" else 19) * 16 * MIB


def test_costs_that_are_known_before_stop_the_message_behind_the_one_on_credit() -> None:
    """<https://github.com/BerriAI/litellm/issues/18730>, with sizes: 58 and 80 pass of 100 a second."""
    job = SimulatedJob(limited(100))
    job.offer(("a/x", price) for price in PRICES)
    job.trigger()
    assert [row.size_bytes for row in job.admitted] == [58, 80]


@pytest.mark.parametrize("is_each_a_batch", [False, True])
def test_costs_that_are_known_afterwards_overdraw_by_a_batch_and_are_repaid(*, is_each_a_batch: bool) -> None:
    """<https://github.com/BerriAI/litellm/issues/18730>: 663 against 100 a minute pass, and 563 of it are forgiven."""
    quota = {"request_percentage": 10, "burst_seconds": 1}
    job = SimulatedJob({"version": 1, "namespaces": {"a/x": {"publish": quota}}}, cost_ns=cost_ns)
    used_ms = largest_ms = 0
    for second in range(140):
        due = ([PRICES[second % 5]] if second < 40 else []) if is_each_a_batch else (PRICES if second % 20 == 0 else [])
        job.offer(("a/x", price) for price in due)
        batch = job.trigger()
        batch_ms = 0 if batch is None else 10 * sum(row.size_bytes or 0 for row in batch.admitted)
        used_ms, largest_ms = used_ms + batch_ms, max(largest_ms, batch_ms)
        assert used_ms <= 100 * (second + 2) + largest_ms
    assert used_ms >= 100 * 139, "what was overdrawn is repaid, and no more than that"


def test_jobs_that_share_a_quota_on_time_overdraw_it_by_a_batch_each_and_repay_it() -> None:
    """<https://github.com/BerriAI/litellm/issues/18730>, in three jobs of one exchange, one call in each at once."""
    exchange = SimulatedExchange(ShareSettings(interval_ms=2_000, lease_ms=20_000))
    policies = {"version": 1, "tenants": {"a": {"publish": {"request_percentage": 10, "burst_seconds": 1}}}}
    jobs = [SimulatedJob(policies, exchange=exchange, cost_ns=cost_ns) for _ in range(3)]
    batches: list[list[int]] = [[] for _ in jobs]
    began_ms, rows = exchange.time.now_ms, [("a/x", 58)] * 9
    for _ in range(14):
        for job, used in zip(jobs, batches, strict=True):
            job.offer(rows)
            batch = job.trigger(1_000)
            used.append(0 if batch is None else 10 * sum(row.size_bytes or 0 for row in batch.admitted))
        rows = []
    passed_ms = exchange.time.now_ms - began_ms
    assert 0 < sum(map(sum, batches)) <= passed_ms / 10 + 100 + sum(map(max, batches))
