"""Virtual time by exact fractions, and the clocks with which flows enter a batch."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.fair.fair_queue import (
    MEMORY_SECONDS,
    VT_MAX,
    VT_SECOND,
    ServiceCurve,
    base_clocks,
    service_units,
    virtual_time,
)
from spark_throttle.core.quota import UNLIMITED

MEMORY = MEMORY_SECONDS * VT_SECOND

rates = st.one_of(
    st.sampled_from([1, 1_000, 2**30 - 1, 2**30, 2**30 + 1, 1_000 * 2**40]), st.integers(1, 1_000 * 2**40)
)
tokens = st.one_of(st.sampled_from([0, 1, 2**36, 2**53]), st.integers(0, 10**6))


@pytest.mark.slow
@given(tokens, rates, st.integers(1, 1_000), st.booleans())
def test_virtual_time_is_the_exact_quotient_rounded_one_way(n: int, rate: int, weight: int, up: bool) -> None:
    per_second = Fraction(rate, 1_000) if rate < 2**30 else Fraction(rate // 1_000)
    exact = Fraction(n * VT_SECOND) / (per_second * weight)
    found = int(virtual_time(np.array([n]), *service_units(np.array([rate]), np.array([weight])), round_up=up)[0])
    if n / (per_second * weight) >= VT_SECOND:
        assert found == VT_MAX
    else:
        assert found == min(ceil(exact) if up else floor(exact), VT_MAX)


@pytest.mark.slow
@given(tokens, rates, st.integers(1, 1_000))
def test_no_service_is_free(n: int, rate: int, weight: int) -> None:
    found = virtual_time(np.array([n]), *service_units(np.array([rate]), np.array([weight])), round_up=True)[0]
    assert (found > 0) == (n > 0)


@pytest.mark.parametrize("rate", [0, UNLIMITED])
def test_service_without_a_rate_takes_no_virtual_time(rate: int) -> None:
    assert virtual_time(np.array([2**53]), *service_units(np.array([rate]), np.array([1]))).tolist() == [0]


def within(rate: int, weight: int, most: int, clock_vt: int, tag: int) -> int:
    is_limited = np.array([rate != UNLIMITED])
    served = ServiceCurve.of(np.array([rate]), np.array([weight]), np.array([most]), np.array([clock_vt]), is_limited)
    return int(served.within(np.array([tag]))[0])


@pytest.mark.slow
@given(st.data(), rates, st.integers(1, 1_000), st.integers(-MEMORY, 2**60))
def test_tokens_within_a_tag_are_the_most_that_do_not_pass_it(
    data: st.DataObject, rate: int, weight: int, clock_vt: int
) -> None:
    most = data.draw(tokens)

    def clock_after(n: int) -> int:
        return clock_vt + int(virtual_time(np.array([n]), *service_units(np.array([rate]), np.array([weight])))[0])

    near = clock_after(data.draw(st.integers(0, most))) + data.draw(st.integers(-1, 1))
    tag = data.draw(st.one_of(st.integers(0, 2**62), st.just(max(near, 0))))
    found = within(rate, weight, most, clock_vt, tag)
    assert -1 <= found <= most
    assert found < 0 or clock_after(found) <= tag
    assert found == most or clock_after(found + 1) > tag


@pytest.mark.parametrize("rate", [0, UNLIMITED])
def test_all_tokens_are_within_any_tag_where_no_time_passes(rate: int) -> None:
    assert within(rate, 1, 7, 0, 0) == 7


clocks = st.integers(-(2**60), 2**60)


@pytest.mark.slow
@given(clocks, clocks, st.sampled_from([(True, True), (True, False), (False, True), (False, False)]))
def test_flow_enters_at_the_virtual_time_or_ahead_of_it(
    messages: int, in_bytes: int, limited: tuple[bool, bool]
) -> None:
    lead_vt = np.array([[messages, in_bytes]])
    clock_vt = base_clocks(lead_vt, np.array([limited]), np.array([MEMORY]))[0].tolist()
    held = [clock_vt[r] for r in (0, 1) if limited[r]]
    assert [clock_vt[r] for r in (0, 1) if not limited[r]] == [0] * (2 - len(held))
    if held:
        ahead = max((messages, in_bytes)[r] for r in (0, 1) if limited[r])
        assert max(held) == max(0, ahead)
        assert min(held) >= -MEMORY
