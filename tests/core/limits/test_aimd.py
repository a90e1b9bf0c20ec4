"""The rate of a destination: never outside its bounds, up while nothing is refused, down at once when something is."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.aimd import Aimd

RATES = st.integers(1, 2**50)
TIMES_MS = st.integers(0, 10**6)
AIMDS = st.builds(Aimd, RATES, TIMES_MS)


@given(AIMDS, RATES, RATES)
def test_rate_is_within_its_bounds_and_a_refusal_lowers_it_unless_it_is_at_the_floor(
    aimd: Aimd, one: int, other: int
) -> None:
    floor, ceiling = min(one, other), max(one, other)
    before = aimd.rate(floor=floor, ceiling=ceiling)
    after = aimd.after_refusal(floor=floor, ceiling=ceiling).rate(floor=floor, ceiling=ceiling)
    assert floor <= after <= before <= ceiling
    assert after < before or before - before // 8 == before or before == floor


@given(AIMDS, st.lists(TIMES_MS, max_size=5))
def test_it_makes_no_difference_in_how_many_parts_the_quiet_time_is_told(aimd: Aimd, times_ms: list[int]) -> None:
    parts = aimd
    for time_ms in times_ms:
        parts = parts.after_quiet(time_ms)
    bounds = {"floor": 1, "ceiling": 2**60}
    assert parts.rate(**bounds) == aimd.after_quiet(sum(times_ms)).rate(**bounds)


@given(RATES, st.integers(0, 60_000), st.integers(0, 60_000))
def test_rate_grows_with_the_quiet_time(base: int, one_ms: int, other_ms: int) -> None:
    early, late = (Aimd(base, ms).rate(floor=1, ceiling=2**60) for ms in sorted((one_ms, other_ms)))
    assert early <= late


@given(RATES, st.integers(0, 30_000))
def test_rate_is_that_of_steps_which_double_every_second(base: int, quiet_ms: int) -> None:
    rate, step = Fraction(base), Fraction(base, 128)
    for _ in range(quiet_ms // 1_000):
        rate, step = rate + step, 2 * step
    rate += step * (quiet_ms % 1_000) / 1_000
    assert Aimd(base, quiet_ms).rate(floor=1, ceiling=2**200) == int(rate)


def test_destination_that_allows_four_times_as_much_is_found_within_ten_seconds() -> None:
    aimd = Aimd(1_000).after_refusal(floor=1, ceiling=1_000)
    assert aimd.after_quiet(10_000).rate(floor=1, ceiling=10**9) >= 4_000
