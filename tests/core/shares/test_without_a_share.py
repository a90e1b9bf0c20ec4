"""A job without a share of a quota waits for one, and a job with a part of it owes no more than that part's burst."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.reasons import TIME
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.quota import MICRO, NEVER_MS, UNLIMITED, CompiledPolicy, OnExcess, Verdict
from spark_throttle.core.shared_buckets import SharedBuckets, has_no_time, under_share
from spark_throttle.core.state import DeciderState, Flows
from spark_throttle.core.time_quota.time_in_force import limits_in_force
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.testing.oracle.worlds import limit, make_arrivals, make_policy

START_MS = 1_000


def without_time(policy: CompiledPolicy) -> DeciderState:
    """Return the state of a job that has no share of the job's processing time, as an epoch pins it."""
    share_micro_per_ms, share_ns_per_ms = policy.shared.rate_micro_per_ms, np.array([0])
    shared = under_share(policy, share_micro_per_ms, share_ns_per_ms)
    state = DeciderState.initial(policy, share_micro_per_ms, now_ms=START_MS)
    ledger, is_unleased = TimeLedger.opened(shared, now_ms=START_MS), has_no_time(share_ns_per_ms, policy)
    time = limits_in_force(shared, state.shared.balance_micro, ledger, None, is_unleased)
    return replace(state, shared=replace(state.shared, time=time))


def without_messages(policy: CompiledPolicy) -> DeciderState:
    """Return the state of a job that has no share of the job's messages."""
    return DeciderState.initial(policy, np.where(policy.shared.is_limited, 0, UNLIMITED), now_ms=START_MS)


@pytest.mark.parametrize("on_excess", [OnExcess.DELAY, OnExcess.REJECT])
@pytest.mark.parametrize("is_of_time", [True, False])
def test_without_a_share_nothing_leaves_and_nothing_is_rejected_however_long_it_takes(
    on_excess: OnExcess, *, is_of_time: bool
) -> None:
    if is_of_time:
        policy = make_policy(job=limit(request_percentage=50, burst_seconds=2, on_excess=on_excess))
        state = without_time(policy)
    else:
        policy = make_policy(job=limit(messages_per_second=10, on_excess=on_excess))
        state = without_messages(policy)
    for at_ms in (START_MS, START_MS + 1, START_MS + 86_400_000):
        plan = plan_admission(state, make_arrivals([("a/x", 1)] * 3), policy, now_ms=at_ms)
        assert set(plan.decisions.verdict.tolist()) == {Verdict.DELAY}
        assert plan.usage.due_ms == NEVER_MS
        assert plan.usage.due_with_quotas_ms < NEVER_MS
        state = plan.state


@pytest.mark.parametrize(("share", "burst"), [(100_000, 1_000), (50_000, 500), (1_000, 10)])
def test_observing_scope_owes_a_burst_of_the_share_at_most(share: int, burst: int) -> None:
    policy = make_policy(job=limit(messages_per_second=100, burst_seconds=10, on_excess=OnExcess.OBSERVE))
    state = DeciderState.initial(policy, np.array([[share, UNLIMITED]]), now_ms=START_MS)
    for second in range(30):
        arrivals = make_arrivals([("a/x", 1)] * 500)
        state = plan_admission(state, arrivals, policy, now_ms=START_MS + 1_000 * second).state
    assert -state.shared.balance_micro[0, 0] == pytest.approx(burst * MICRO, abs=2)


def test_share_that_repays_a_debt_later_than_time_does_is_what_a_row_waits_for() -> None:
    """A message is owed at 10 a second, of which the job has 1, and half a second of time."""
    policy = make_policy(job=limit(messages_per_second=10))
    nothing = np.zeros(0, dtype=np.int64)
    time = MessageLimits(
        MessageBuckets(np.array([-500_000]), np.array([1_000]), np.array([MICRO])), np.array([False]),
        Flows.empty().names, MessageBuckets(nothing, nothing, nothing),
    )  # fmt: skip
    owed = np.array([[-MICRO, 0]])
    for share, waits_ms, dimension in ((1_000, 1_000, 0), (10_000, 500, TIME)):
        state = DeciderState.initial(policy, now_ms=START_MS)
        shared = SharedBuckets(owed, START_MS, np.array([[share, UNLIMITED]]), time)
        plan = plan_admission(replace(state, shared=shared), make_arrivals([("a/x", 1)]), policy, now_ms=START_MS)
        assert plan.decisions.throttle_time_ms.tolist() == [waits_ms]
        assert plan.decisions.dimension.tolist() == [dimension]
