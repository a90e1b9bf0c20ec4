"""Jobs that share a quota hold and earn no more than one bucket together; one without a share waits, unrefused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.rate_codes import MAX_RATE, decode, encode
from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.quota import MICRO, NEVER_MS, UNLIMITED, CompiledPolicy, Dimension, OnExcess, Verdict
from spark_throttle.core.shared_buckets import SharedBuckets, has_no_share, rates_of_shares, under_share
from spark_throttle.core.state import DeciderState
from tests.oracle.worlds import limit, make_arrivals, make_policy

POLICY = make_policy(groups={"gold": limit(messages_per_second=100, burst_seconds=10), "free": limit()})
GOLD, FREE = 1, 2
RATE = int(POLICY.shared.rate_micro_per_ms[GOLD, 0])
BURST = int(POLICY.shared.burst_micro[GOLD, 0])


def shares(gold: int) -> np.ndarray:
    out = POLICY.shared.rate_micro_per_ms.copy()
    out[GOLD, 0] = gold
    return out


def held(micro: int, share: int) -> SharedBuckets:
    balance = np.zeros((3, 4), dtype=np.int64)
    balance[GOLD, 0] = micro
    return SharedBuckets(balance, 0, shares(share))


@pytest.mark.parametrize(("share", "rate"), [(-1, 0), (0, 0), (1, 1), (RATE, RATE), (RATE + 1, RATE)])
def test_rate_of_a_share_is_the_share_and_at_most_the_quota(share: int, rate: int) -> None:
    rates = rates_of_shares(shares(share), POLICY)
    assert (rates[GOLD, 0], rates[FREE, 0]) == (rate, UNLIMITED)


@pytest.mark.slow
@given(st.lists(st.integers(0, RATE), min_size=1, max_size=6))
def test_bursts_of_shares_sum_to_no_more_than_the_burst(parts: list[int]) -> None:
    scale = max(1, sum(parts))
    leased = [part * RATE // scale for part in parts]
    bursts = [int(under_share(POLICY, shares(each)).shared.burst_micro[GOLD, 0]) for each in leased]
    assert sum(bursts) <= BURST
    assert all(burst >= BURST * each // RATE - BURST // 2**20 for burst, each in zip(bursts, leased, strict=True))


def test_whole_share_is_the_policy_itself_and_what_has_no_limit_keeps_none() -> None:
    limits = under_share(POLICY, shares(RATE)).shared
    assert limits.burst_micro.tolist() == POLICY.shared.burst_micro.tolist()
    assert limits.rate_micro_per_ms[FREE].tolist() == [UNLIMITED] * 4
    assert under_share(POLICY, None) is POLICY


@pytest.mark.slow
@given(st.integers(-BURST, BURST), st.integers(0, RATE), st.integers(0, 10**6))
def test_no_bucket_gains_by_a_change_of_shares_but_what_its_share_earns(balance: int, share: int, ms: int) -> None:
    after = int(held(balance, share).refilled(POLICY, now_ms=ms).balance_micro[GOLD, 0])
    assert after <= max(balance + share * ms, -1)
    assert after <= max(int(under_share(POLICY, shares(share)).shared.burst_micro[GOLD, 0]), -1)


TIMED = make_policy(groups={"gold": limit(request_percentage=50, burst_seconds=2), "free": limit()})
HALF_A_CORE, WINDOW_NS = 500_000, 10**9


def test_share_of_time_is_a_part_of_the_rate_and_the_same_part_of_the_window() -> None:
    for share, rate in ((-1, 0), (0, 0), (125_000, 125_000), (HALF_A_CORE + 1, HALF_A_CORE)):
        shared = under_share(TIMED, np.array([[-1, -1, -1, -1], [-1, -1, -1, share], [-1, -1, -1, -1]])).shared
        assert shared.rate_micro_per_ms[:, Dimension.TIME].tolist() == [UNLIMITED, rate, UNLIMITED]
        assert shared.burst_micro[:, Dimension.TIME].tolist() == [0, WINDOW_NS * rate // HALF_A_CORE, 0]


def test_scope_without_a_share_is_told_from_one_whose_quota_is_0() -> None:
    none = np.zeros((3, 4), dtype=np.int64)
    assert np.argwhere(has_no_share(none, TIMED)).tolist() == [[GOLD, Dimension.TIME]]
    assert not has_no_share(none + 1, TIMED).any()
    shut = make_policy(groups={"gold": limit(request_percentage=0), "free": limit()})
    assert not has_no_share(none, shut).any()
    assert np.argwhere(has_no_share(shares(0), POLICY)).tolist() == [[GOLD, 0]]


def test_share_of_nothing_admits_nothing_and_keeps_a_debt() -> None:
    for before, after in ((5 * MICRO, -1), (-5 * MICRO, -5 * MICRO)):
        assert held(before, 0).refilled(POLICY, now_ms=10**6).balance_micro[GOLD, 0] == after


@pytest.mark.slow
@given(st.lists(st.integers(0, MAX_RATE), min_size=1))
def test_codes_lose_one_part_in_two_to_the_25th_and_never_round_up(rates: list[int]) -> None:
    given_, back = np.array(rates), decode(encode(np.array(rates)))
    assert (back <= given_).all()
    assert (given_ - back <= given_ >> 25).all()
    assert decode(encode(back)).tolist() == back.tolist()


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
    state = DeciderState.initial(policy, np.array([[share, UNLIMITED, UNLIMITED, UNLIMITED]]), now_ms=START_MS)
    for second in range(30):
        arrivals = make_arrivals([("a/x", 1)] * 500)
        state = plan_admission(state, arrivals, policy, now_ms=START_MS + 1_000 * second).state
    assert -state.shared.balance_micro[0, 0] == pytest.approx(burst * MICRO, abs=2)


def test_debt_that_is_repaid_last_is_what_a_row_waits_for() -> None:
    """A message is owed at 10 a second, of which the job has 1, and half a second of time at half a core."""
    policy = make_policy(job=limit(messages_per_second=10, request_percentage=50))
    for share, waits_ms in ((1_000, 1_000), (10_000, 500)):
        state = DeciderState.initial(policy, now_ms=START_MS)
        owed, shares = np.array([[-MICRO, 0, 0, -250_000_000]]), np.array([[share, UNLIMITED, UNLIMITED, 500_000]])
        shared = SharedBuckets(owed, START_MS, shares)
        plan = plan_admission(replace(state, shared=shared), make_arrivals([("a/x", 1)]), policy, now_ms=START_MS)
        assert plan.decisions.throttle_time_ms.tolist() == [waits_ms]
        assert plan.decisions.dimension.tolist() == [Dimension.MESSAGES]
