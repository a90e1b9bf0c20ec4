"""A shard that no epoch has reached yet: nothing is lent to it, so nothing passes that a shared quota limits."""

from __future__ import annotations

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.quota import Verdict
from spark_throttle.core.state import DeciderState
from spark_throttle.testing.oracle.worlds import limit, make_arrivals, make_policy

POLICY = make_policy(job=limit(messages_per_second=1_000_000, bytes_per_second=1_000_000_000))


def test_no_row_passes_a_shared_quota_before_an_epoch_lent_some_of_it() -> None:
    state = DeciderState.initial(len(POLICY.shared))
    for now_ms in (1_000, 60_000):
        plan = plan_admission(state, make_arrivals([("acme/a", 1), ("acme/b", 1)]), POLICY, now_ms=now_ms, shards=1)
        assert set(plan.decisions.verdict.tolist()) == {Verdict.DELAY}
        state = plan.state


def test_report_of_such_a_batch_names_epoch_0() -> None:
    state = DeciderState.initial(len(POLICY.shared))
    plan = plan_admission(state, make_arrivals([("acme/a", 1)]), POLICY, now_ms=1_000, shards=1)
    assert plan.usage.epoch == 0


def test_the_balance_is_the_largest_that_lets_nothing_pass_and_does_not_grow() -> None:
    grants = DeciderState.initial(len(POLICY.shared)).grants
    assert (grants.balance_micro == -1).all()
    later = grants.grown(POLICY, now_ms=2**50, shards=1)
    assert (later.balance_micro == -1).all()
