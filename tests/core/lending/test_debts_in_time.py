"""What flows owe where a scope limits messages and bytes, against exact fractions (`core.lending.debts_in_time`)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_throttle.core.lending.debts import Contestants
from spark_throttle.core.lending.debts_in_time import DebtsInTime
from spark_throttle.core.lending.scope_time import ScopeTime

from spark_throttle.core.quota import Int64s

BITS = np.array([[20, 4]])
MESSAGES_PER_SECOND, BYTES_PER_SECOND = 10, 4_000
SEATS = 3

Flow = tuple[int, int, int, int]
"""The size of its messages, by how many it is ahead, its weight, its seat."""

FLOWS = st.lists(
    st.tuples(st.sampled_from((1, 40, 400, 800, 4_000)), st.integers(0, 2), st.sampled_from((1, 1, 2, 5)),
              st.integers(0, SEATS - 1)),
    min_size=1, max_size=6,
)  # fmt: skip
ACCOUNTS = st.lists(st.tuples(st.integers(-20, 200), st.integers(-8_000, 80_000)), min_size=SEATS, max_size=SEATS)


def in_units(tokens: list[tuple[int, int]]) -> Int64s:
    """Return messages and bytes in the units of the scope, shape (n, 2)."""
    return np.array(tokens, dtype=np.int64) << BITS


def debts(flows: list[Flow], accounts: list[tuple[int, int]]) -> DebtsInTime:
    """Return the debts of flows that all want a hundred messages."""
    _, _, weight, seat = np.array(flows, dtype=np.int64).T
    demand, ahead = [(100, 100 * size) for size, *_ in flows], [(many, many * size) for size, many, *_ in flows]
    contestants = Contestants(in_units(demand), in_units(ahead), weight, np.zeros_like(seat), seat)
    time = ScopeTime(np.array([[MESSAGES_PER_SECOND, BYTES_PER_SECOND]]) * 1_000, np.ones((1, 2), dtype=np.bool_), BITS)
    return DebtsInTime.of(contestants, in_units(accounts), np.array([[1 << 40, 1 << 40]]), time)


def seconds_of(tokens: Int64s) -> list[Fraction]:
    """Return the seconds in which the scope earns tokens: both resources together."""
    rates = MESSAGES_PER_SECOND << 20, BYTES_PER_SECOND << 4
    return [Fraction(int(row[0]), rates[0]) + Fraction(int(row[1]), rates[1]) for row in np.atleast_2d(tokens)]


@pytest.mark.slow
@given(FLOWS, ACCOUNTS)
def test_account_is_told_anew_without_a_gain_or_a_loss_of_time(
    flows: list[Flow], accounts: list[tuple[int, int]]
) -> None:
    found = debts(flows, accounts)
    before = seconds_of(in_units(accounts))
    common = min(before[flow[3]] for flow in flows)
    for seat, told in enumerate(seconds_of(found.before)):
        here = [flow for flow in flows if flow[3] == seat]
        if here and common >= 0:
            wanted = sum(100 * max(Fraction(1, MESSAGES_PER_SECOND), Fraction(f[0], BYTES_PER_SECOND)) for f in here)
            if before[seat] < wanted:  # so that every flow counts
                assert float(told) == pytest.approx(float(before[seat]), rel=0.01, abs=0.01)
        elif not here:
            assert told == before[seat]


@pytest.mark.slow
@given(FLOWS, ACCOUNTS)
def test_flow_that_is_further_ahead_for_its_weight_owes_more_time_for_it(
    flows: list[Flow], accounts: list[tuple[int, int]]
) -> None:
    owed = debts(flows, accounts).owed.time
    for one, first in enumerate(flows):
        for other, second in enumerate(flows):
            if first[3] != second[3]:
                continue
            ahead = [
                each[1] * max(Fraction(1, MESSAGES_PER_SECOND), Fraction(each[0], BYTES_PER_SECOND)) / each[2]
                for each in (first, second)
            ]
            if ahead[0] >= ahead[1] and owed[one] > 0 and owed[other] > 0:
                assert owed[one] / first[2] >= owed[other] / second[2] * (1 - 2**-8) - 64


def test_shard_that_took_messages_where_bytes_were_expected_is_not_ahead() -> None:
    # Two flows of messages that take a tenth of a second, one by messages and one by bytes: of a second, the first took
    # ten messages, and the second none.
    found = debts([(4, 0, 1, 0), (400, 0, 1, 0)], [(5, -2_000), (0, 0), (0, 0)])
    assert found.owed.time.tolist() == [0, 0]
    assert seconds_of(found.account)[0] == 0


def test_shard_whose_flows_are_each_ahead_in_another_resource_owes_no_more_than_its_account() -> None:
    # Each is ahead by a message. The shard as a whole is not ahead, so the flows are alike, and owe nothing.
    found = debts([(4, 1, 1, 0), (800, 1, 1, 0)], [(-30, -9_000), (0, 0), (0, 0)])
    seconds = found.owed.time / (BYTES_PER_SECOND << 4)
    # 0.1 s and 0.2 s ahead: the second owes what it is ahead of the first.
    assert seconds.tolist() == pytest.approx([0, 0.1], abs=0.001)


def test_shard_that_is_behind_in_both_resources_keeps_both_credits() -> None:
    found = debts([(4, 0, 1, 0), (400, 0, 1, 1)], [(-3, -90), (1, 0), (0, 0)])
    assert found.before[0].tolist() == in_units([(-3, -90)])[0].tolist()


def test_what_all_shards_are_behind_nobody_is_owed() -> None:
    found = debts([(400, 0, 1, 0), (400, 0, 1, 1)], [(-3, -1_200), (-5, -2_000), (0, 0)])
    assert seconds_of(found.before[0]) == [0]
    assert float(seconds_of(found.before[1])[0]) == pytest.approx(-0.4, abs=0.001)
