"""Shares of a capacity are promises: together never more than there is, and never less than rounding needs."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.capacity import divide

PERCENT = st.decimals(min_value=Decimal("0.001"), max_value=500, places=3)


def test_115_tenants_of_32_cores_are_promised_what_there_is() -> None:
    """If shares are rounded half up, the tenants are promised 6,405.5 % of 6,400 %."""
    division = divide(6400, 115)
    assert division.variable_percent == Decimal("55.6")
    assert (division.promised_percent, division.unpromised_percent) == (Decimal("6394.0"), Decimal("6.0"))


@pytest.mark.slow
@given(threads=st.integers(1, 1000), tenants=st.integers(1, 10_000_000), fixed=st.lists(PERCENT, max_size=5))
def test_promises_are_kept_and_no_share_is_cut_by_more_than_rounding(
    threads: int, tenants: int, fixed: list[Decimal]
) -> None:
    capacity, others = 100 * threads, tenants - len(fixed)
    left = capacity - sum(map(Fraction, fixed))
    assume(others > 0 and left > 0)
    division = divide(capacity, tenants, fixed)
    share = division.variable_percent
    assert share is not None
    assert share > 0
    assert division.promised_percent <= capacity
    exact = left / others
    assert 0 <= exact - Fraction(share) < (Fraction(1, 10) if exact >= 1 else exact / 100)


@pytest.mark.parametrize(("tenants", "share"), [(99, "1.0"), (100, "1.0"), (101, "0.990"), (100_000, "0.00100")])
def test_share_below_1_percent_keeps_three_digits(tenants: int, share: str) -> None:
    assert str(divide(100, tenants).variable_percent) == share


def test_tenants_without_a_share_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="take all of 200 %, and 3 tenants have none"):
        divide(200, 4, [Decimal(200)])


def test_tenants_with_fixed_shares_alone_may_take_everything() -> None:
    assert divide(200, 1, [Decimal(200)]).unpromised_percent == 0
