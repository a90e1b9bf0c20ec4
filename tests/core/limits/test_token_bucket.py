"""Token buckets by exact integers: refilling in steps, what passes, and when a debt ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.token_bucket import (
    debit,
    full,
    in_micro,
    refill,
    room_before,
    throttle_time_ms,
)
from spark_throttle.core.quota import (
    MAX_BURST_TOKENS,
    MICRO,
    MIN_BALANCE_MICRO,
    NEVER_MS,
    UNLIMITED,
    Dimension,
)

LARGEST = MAX_BURST_TOKENS * MICRO
rates = st.one_of(st.sampled_from([UNLIMITED, 0, 1, 200, 5_000, 1_000 * MAX_BURST_TOKENS]), st.integers(1, 10**9))
bursts = st.one_of(st.sampled_from([0, 1, MICRO, LARGEST]), st.integers(0, 10**12))
balances = st.one_of(st.sampled_from([0, -1, -LARGEST, MIN_BALANCE_MICRO]), st.integers(-(10**12), 10**12))
spans_ms = st.one_of(st.sampled_from([0, 1, 2**42]), st.integers(0, 10**7))


def refilled(balance: int, rate: int, burst: int, elapsed_ms: int) -> int:
    return int(refill(np.array([balance]), np.array([rate]), np.array([burst]), elapsed_ms)[0])


@pytest.mark.slow
@given(balances, rates, bursts, spans_ms)
def test_refill_is_what_exact_integers_give(balance: int, rate: int, burst: int, elapsed_ms: int) -> None:
    expected = min(balance + max(rate, 0) * elapsed_ms, burst)
    expected = {UNLIMITED: 0, 0: min(balance, -1)}.get(rate, expected)  # a rate of 0 forgives no debt
    assert refilled(balance, rate, burst, elapsed_ms) == expected


@pytest.mark.slow
@given(balances, rates, bursts, spans_ms, spans_ms)
def test_refill_in_two_steps_is_refill_in_one(
    balance: int, rate: int, burst: int, first_ms: int, second_ms: int
) -> None:
    twice = refilled(refilled(balance, rate, burst, first_ms), rate, burst, second_ms)
    assert twice == refilled(balance, rate, burst, first_ms + second_ms)


@pytest.mark.parametrize("balance", [0, 5 * MICRO])
def test_bucket_whose_rate_became_0_lets_nothing_pass_whatever_it_held(balance: int) -> None:
    left = refilled(balance, 0, 10 * MICRO, 1_000)
    assert left == -1
    assert room_before(np.array([left]), Dimension.MESSAGES).tolist() == [-1]


def test_clock_that_went_back_pays_nothing() -> None:
    assert refilled(-5, 100, 1_000, -3_600_000) == -5


@pytest.mark.slow
@given(st.integers(MIN_BALANCE_MICRO, -1), st.integers(1, 1_000 * MAX_BURST_TOKENS))
def test_bucket_is_out_of_debt_at_its_throttle_time_and_not_before(balance: int, rate: int) -> None:
    wait_ms = int(throttle_time_ms(np.array([balance]), np.array([rate]))[0])
    assert balance + rate * wait_ms >= 0
    assert balance + rate * (wait_ms - 1) < 0


def test_rate_of_0_is_throttled_for_ever_and_no_debt_not_at_all() -> None:
    assert throttle_time_ms(np.array([-1, 0, 5]), np.array([0, 0, 7])).tolist() == [NEVER_MS, 0, 0]
    assert full(np.array([0]), np.array([0])).tolist() == [-1]


@pytest.mark.slow
@given(st.integers(-3 * MICRO, 9 * MICRO), st.lists(st.integers(0, 4), max_size=20))
def test_what_passes_is_what_the_rule_lets_through_one_by_one(balance: int, sizes: list[int]) -> None:
    before = [sum(sizes[:n]) for n in range(len(sizes))]
    by_count = [balance - n * MICRO >= 0 for n in range(len(sizes))]
    by_size = [balance - size_bytes * MICRO >= 0 for size_bytes in before]
    by_time = [balance - time_ns >= 0 for time_ns in before]
    messages, in_bytes, units, in_ns = (room_before(np.array([balance]), dimension)[0] for dimension in Dimension)
    assert [n <= messages for n in range(len(sizes))] == by_count
    assert [size_bytes <= in_bytes for size_bytes in before] == by_size
    assert units == in_bytes
    assert [time_ns <= in_ns for time_ns in before] == by_time


def test_debt_stops_growing_at_its_floor() -> None:
    balance = np.array([0, 0, 0, 0])
    for _ in range(64):
        balance = debit(balance, in_micro(np.array([2**62, 2**62, 2**62, 2**62])))
    assert balance.tolist() == [MIN_BALANCE_MICRO] * 4
