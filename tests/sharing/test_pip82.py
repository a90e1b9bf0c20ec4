"""PIP-82's policies give its worked numbers."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.sharing.pip82 import drifted, proportional, residual, steal


def rule(policy: object, quota: int, *usages: int) -> list[int]:
    usage = np.array(usages)
    return policy(np.full_like(usage, quota), usage, np.full_like(usage, usage.sum())).tolist()  # type: ignore[operator]


def test_proportional_divides_10_50_30_of_100_as_pip_82_says() -> None:
    # In hundredths of a message, because Pulsar's formula gives whole numbers.
    assert rule(proportional, 10_000, 1_000, 5_000, 3_000) == [1_111, 5_555, 3_333]


def test_proportional_leaves_what_has_no_quota_unlimited_and_gives_of_a_quota_of_0_what_pulsar_does() -> None:
    # Pulsar's calculator answers -1 for a quota below 0, and never less than 1 where anything is used.
    assert rule(proportional, -1, 5, 5) == [-1, -1]
    assert rule(proportional, 0, 5, 5) == [1, 1]
    assert rule(proportional, 0, 0, 0) == [0, 0]


def test_residual_gives_each_the_whole_of_what_is_unused() -> None:
    assert rule(residual, 100, 10, 50, 30) == [20, 60, 40]
    assert rule(residual, 100, 100, 60) == [62, 37]


def test_steal_lets_the_low_one_of_80_and_20_rise_to_50() -> None:
    assert steal(np.zeros(2, dtype=int), np.full(2, 100), np.array([80, 20]), np.full(2, 100)).tolist() == [80, 50]


def test_steal_pairs_the_lowest_with_the_highest_and_the_second_lowest_with_the_second_highest() -> None:
    usage = np.array([60, 10, 30, 0])
    got = steal(np.zeros(4, dtype=int), np.full(4, 100), usage, np.full(4, 100))
    assert got.tolist() == [60, 10 + (30 - 10) // 2, 30, 0 + (60 - 0) // 2]


def test_stealing_ends_at_the_equilibrium() -> None:
    usage, demand = np.array([80, 20]), np.array([100, 100])
    for _ in range(20):
        usage = np.minimum(demand, steal(np.zeros(2, dtype=int), np.full(2, 100), usage, np.full(2, usage.sum())))
    assert usage.tolist() == pytest.approx([50, 50], abs=1)


def test_usage_is_told_when_it_moved_by_over_5_percent_or_the_time_is_over_and_none_is_no_drift() -> None:
    reported = np.array([[100, 100]] * 6)
    now = np.array([[105, 95], [106, 100], [100, 94], [0, 100], [0, 94], [100, 100]])
    since_ms = np.array([0, 0, 0, 0, 0, 1_000])
    assert drifted(now, reported, since_ms, np.array(1_000)).tolist() == [False, True, True, False, True, True]
