"""A job without a share of a quota waits for one, and a job with a part of it owes no more than that part's burst."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.quota import MICRO, NEVER_MS, UNLIMITED, CompiledPolicy, Dimension, OnExcess, Verdict
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import DeciderState
from tests.oracle.worlds import limit, make_arrivals, make_policy

START_MS = 1_000


def without_a_share(policy: CompiledPolicy) -> DeciderState:
    """Return the state of a job that has no share of the job's quota."""
    return DeciderState.initial(policy, np.where(policy.shared.is_limited, 0, UNLIMITED), now_ms=START_MS)


@pytest.mark.parametrize("on_excess", [OnExcess.DELAY, OnExcess.REJECT])
@pytest.mark.parametrize("is_of_time", [True, False])
def test_without_a_share_nothing_leaves_and_nothing_is_rejected_however_long_it_takes(
    on_excess: OnExcess, *, is_of_time: bool
) -> None:
    quota = {"request_percentage": 50} if is_of_time else {"messages_per_second": 10}
    policy = make_policy(job=limit(**quota, burst_seconds=2, on_excess=on_excess))
    state = without_a_share(policy)
    for at_ms in (START_MS, START_MS + 1, START_MS + 86_400_000):
        plan = plan_admission(state, make_arrivals([("a/x", 1)] * 3), policy, now_ms=at_ms)
        assert set(plan.decisions.verdict.tolist()) == {Verdict.DELAY}
        assert plan.usage.due_ms == NEVER_MS
        assert plan.usage.due_with_quotas_ms < NEVER_MS
        state = plan.state


@pytest.mark.parametrize(("share", "burst"), [(100_000, 1_000), (50_000, 500), (1_000, 10)])
def test_observing_scope_owes_a_burst_of_the_share_at_most(share: int, burst: int) -> None:
    policy = make_policy(job=limit(messages_per_second=100, burst_seconds=10, on_excess=OnExcess.OBSERVE))
    state = DeciderState.initial(policy, np.array([[share, UNLIMITED, UNLIMITED]]), now_ms=START_MS)
    for second in range(30):
        arrivals = make_arrivals([("a/x", 1)] * 500)
        state = plan_admission(state, arrivals, policy, now_ms=START_MS + 1_000 * second).state
    assert -state.shared.balance_micro[0, 0] == pytest.approx(burst * MICRO, abs=2)


def test_debt_that_is_repaid_last_is_what_a_row_waits_for() -> None:
    """A message is owed at 10 a second, of which the job has 1, and half a second of time at half a core."""
    policy = make_policy(job=limit(messages_per_second=10, request_percentage=50))
    for share, waits_ms in ((1_000, 1_000), (10_000, 500)):
        state = DeciderState.initial(policy, now_ms=START_MS)
        owed, shares = np.array([[-MICRO, 0, -250_000_000]]), np.array([[share, UNLIMITED, 500_000]])
        shared = SharedBuckets(owed, START_MS, shares)
        plan = plan_admission(replace(state, shared=shared), make_arrivals([("a/x", 1)]), policy, now_ms=START_MS)
        assert plan.decisions.throttle_time_ms.tolist() == [waits_ms]
        assert plan.decisions.dimension.tolist() == [Dimension.MESSAGES]
