"""What a scope's time is enough for: the price that is told, by what is wanted."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.quota import MICRO
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_mix import TimeMix

MS = 1_000_000


def mix_of(given_messages: int, given_ms: int) -> TimeMix:
    """Return the mix of a scope with a second left, whose last 10 messages took 10 ms."""
    accounts = TimeAccounts(np.array([1_000 * MS]), np.array([10 * MS]), np.array([10 * MICRO]))
    given = np.array([[given_messages << 10, given_ms * MS >> 10]])
    return TimeMix(accounts, np.array([True]), given, given[:, 0], np.array([False]))


@pytest.mark.parametrize(
    ("given_messages", "given_ms", "price_us"),
    [
        (100, 500, 1_667),  # 100 dear ones, and 500 for what is left at the last price: 600 for a second
        (100, 1_000, 10_000),
        (400, 400, 1_000),
        (900, 100, 1_000),  # cheap ones leave time, which the next dear ones must not be told at their price
    ],
)
def test_what_is_wanted_makes_messages_dearer_and_never_cheaper(
    given_messages: int, given_ms: int, price_us: int
) -> None:
    told = mix_of(given_messages, given_ms).told()
    assert told.price_ns.tolist() == pytest.approx([price_us * 1_000], rel=1e-3)


def test_scope_that_is_not_divided_keeps_its_price() -> None:
    mix = mix_of(100, 500)
    other = TimeMix(mix.accounts, np.array([False]), mix.given, mix.given_waiting, np.array([False]))
    assert other.told().price_ns.tolist() == [MS]
