"""KIP-599's numbers of the rates that its token bucket replaces, and the law of the rate that it proposed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.sampled_rate import SampledRate
from tests.conformance.spread_rate import SpreadRate

QUOTA, SAMPLES, SAMPLE_MS = 5, 100, 1_000
BURST = 7 * 80


@pytest.mark.parametrize(
    ("now_ms", "throttle_ms"), [(0, 13_000), (999, 12_001), (12_001, 12_999), (99_999, 12_001), (100_000, 0)]
)
def test_sampled_rate_tells_12_s_and_takes_100_s(now_ms: int, throttle_ms: int) -> None:
    rate = SampledRate(QUOTA, SAMPLES, SAMPLE_MS)
    rate.record(BURST, 0)
    assert rate.read(now_ms).throttle_time_ms == throttle_ms


def test_sampled_rate_is_that_of_560_in_100_s_at_the_end_of_its_second() -> None:
    rate = SampledRate(QUOTA, SAMPLES, SAMPLE_MS)
    rate.record(BURST, 0)
    assert rate.read(0).per_second == Fraction(560, 99)
    assert rate.read(999).per_second == Fraction(560_000, 99_999)


def test_read_before_the_first_record_begins_the_window_as_in_kafka() -> None:
    rate = SampledRate(QUOTA, SAMPLES, SAMPLE_MS)
    assert rate.read(0).per_second == 0
    assert rate.record(BURST, 500).divisor_ms == 99_500


def test_spread_rate_gives_99_windows_5_and_the_last_65() -> None:
    rate = SpreadRate(QUOTA, SAMPLES, SAMPLE_MS)
    assert rate.record(BURST, 0).per_second == Fraction("5.6")
    assert rate.amounts(0) == [5] * 99 + [65]


def test_spread_rate_is_the_quota_again_after_the_12_s_that_it_tells() -> None:
    rate = SpreadRate(QUOTA, SAMPLES, SAMPLE_MS)
    assert rate.record(BURST, 0).throttle_time_ms == 12_000
    assert rate.read(11_999).per_second == Fraction("5.05")
    assert rate.read(12_000).per_second == QUOTA


@pytest.mark.slow
@given(
    records=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 60)), min_size=1, max_size=20),
    quota=st.integers(1, 9),
    samples=st.integers(1, 12),
)
def test_spread_rate_keeps_every_amount_and_its_throttle_time_suffices(
    records: list[tuple[int, int]], quota: int, samples: int
) -> None:
    rate, now_ms = SpreadRate(quota, samples, SAMPLE_MS), 0
    for after_ms, amount in records:
        now_ms += after_ms
        before = sum(rate.amounts(now_ms))
        rate.record(amount, now_ms)
        assert sum(rate.amounts(now_ms)) == before + amount
    windows = -(-rate.read(now_ms).throttle_time_ms // SAMPLE_MS)
    assert rate.read(now_ms + windows * SAMPLE_MS).throttle_time_ms == 0
