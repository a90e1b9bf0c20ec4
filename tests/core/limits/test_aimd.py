"""The rate of a destination: never outside its bounds, up while nothing is refused, down at once when something is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.aimd import Aimd

RATES = st.integers(1, 2**50)
TIMES_MS = st.integers(0, 10**6)
AIMDS = st.builds(Aimd, RATES, TIMES_MS)


@pytest.mark.slow
@given(AIMDS, RATES, RATES)
def test_rate_is_within_its_bounds_and_a_refusal_lowers_it_unless_it_is_at_the_floor(
    aimd: Aimd, one: int, other: int
) -> None:
    floor, ceiling = min(one, other), max(one, other)
    before = aimd.rate(floor=floor, ceiling=ceiling)
    after = aimd.after_refusal(floor=floor, ceiling=ceiling).rate(floor=floor, ceiling=ceiling)
    assert floor <= after <= before <= ceiling
    assert after < before or before - before // 8 == before or before == floor


@pytest.mark.slow
@given(AIMDS, st.lists(TIMES_MS, max_size=5))
def test_it_makes_no_difference_in_how_many_parts_the_quiet_time_is_told(aimd: Aimd, times_ms: list[int]) -> None:
    parts = aimd
    for time_ms in times_ms:
        parts = parts.after_quiet(time_ms)
    bounds = {"floor": 1, "ceiling": 2**60}
    assert parts.rate(**bounds) == aimd.after_quiet(sum(times_ms)).rate(**bounds)


@pytest.mark.slow
@given(RATES, st.integers(0, 60_000), st.integers(0, 60_000))
def test_rate_grows_with_the_quiet_time(base: int, one_ms: int, other_ms: int) -> None:
    early, late = (Aimd(base, ms).rate(floor=1, ceiling=2**60) for ms in sorted((one_ms, other_ms)))
    assert early <= late


@given(RATES, st.integers(0, 30_000))
def test_rate_comes_back_to_what_was_refused_in_two_seconds_and_leaves_it_by_a_third_power(
    base: int, quiet_ms: int
) -> None:
    before = base * Fraction(8, 7)
    expected = before * (1 + Fraction(quiet_ms - 2_000, 2_000) ** 3 / 8)
    assert Aimd(base, quiet_ms).rate(floor=1, ceiling=2**200) == int(expected)


def test_destination_that_allows_four_times_as_much_is_found_within_eight_seconds() -> None:
    aimd = Aimd(1_000).after_refusal(floor=1, ceiling=1_000)
    assert aimd.after_quiet(8_000).rate(floor=1, ceiling=10**9) >= 4_000


@pytest.mark.parametrize("saved_seconds", [0.2, 0.5, 2])
@pytest.mark.parametrize("allowed", [30, 120, 1_000])
def test_destination_with_a_bucket_is_used_for_nine_tenths_and_refuses_a_few_calls_from_whatever_rate_it_began(
    allowed: int, saved_seconds: float
) -> None:
    """Calls of one row each, in steps of 10 ms; a refusal is followed by a pause of 100 ms."""
    for began in (allowed // 4, allowed, 4 * allowed):
        aimd, saved, due, taken, refused, pause_ms = Aimd(1_000 * began, 0), 0.0, 0.0, 0, 0, 0
        for at_ms in range(0, 60_000, 10):
            saved = min(max(1.0, allowed * saved_seconds), saved + allowed / 100)
            if pause_ms:
                pause_ms -= 10
                continue
            due += aimd.rate(floor=1, ceiling=10**9) / 100_000
            is_refused = False
            while due >= 1 and not is_refused:
                due, is_refused = due - 1, saved < 1
                saved -= not is_refused
                if at_ms >= 10_000:
                    taken, refused = taken + (not is_refused), refused + is_refused
            aimd = aimd.after_quiet(10)
            if is_refused:
                aimd, pause_ms, due = aimd.after_refusal(floor=1, ceiling=10**9), 100, 0.0
        assert taken >= 0.9 * allowed * 50, (began, taken)
        assert refused <= 0.02 * taken, (began, refused)
