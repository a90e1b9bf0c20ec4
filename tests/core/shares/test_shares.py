"""A job's shares of quotas, as rates, bursts and balances: the jobs together hold and earn no more than one bucket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.rate_codes import MAX_RATE, decode, encode
from spark_throttle.core.quota import MICRO, UNLIMITED
from spark_throttle.core.shared_buckets import SharedBuckets, has_no_share, rates_of_shares, under_share
from tests.oracle.worlds import limit, make_policy

POLICY = make_policy(groups={"gold": limit(messages_per_second=100, burst_seconds=10), "free": limit()})
GOLD, FREE = 1, 2
RATE = int(POLICY.shared.rate_micro_per_ms[GOLD, 0])
BURST = int(POLICY.shared.burst_micro[GOLD, 0])


def shares(gold: int) -> np.ndarray:
    out = POLICY.shared.rate_micro_per_ms.copy()
    out[GOLD, 0] = gold
    return out


def held(micro: int, share: int) -> SharedBuckets:
    balance = np.zeros((3, 3), dtype=np.int64)
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
    assert limits.rate_micro_per_ms[FREE].tolist() == [UNLIMITED] * 3
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
        shared = under_share(TIMED, np.array([[-1, -1, -1], [-1, -1, share], [-1, -1, -1]])).shared
        assert shared.rate_micro_per_ms[:, 2].tolist() == [UNLIMITED, rate, UNLIMITED]
        assert shared.burst_micro[:, 2].tolist() == [0, WINDOW_NS * rate // HALF_A_CORE, 0]


def test_scope_without_a_share_is_told_from_one_whose_quota_is_0() -> None:
    none = np.zeros((3, 3), dtype=np.int64)
    assert np.argwhere(has_no_share(none, TIMED)).tolist() == [[GOLD, 2]]
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
