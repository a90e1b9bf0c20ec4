"""What flows owe of what their shard is ahead by, against the rule as it is told (`core.lending.debts`)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_throttle.core.lending.debts import Contestants

SEATS = 3
AMOUNTS = st.one_of(st.integers(0, 20), st.integers(0, 2**40))
FLOWS = st.lists(
    st.tuples(AMOUNTS, AMOUNTS, st.sampled_from((1, 1, 2, 7, 1000)), st.integers(0, SEATS - 1)), min_size=1, max_size=12
)
ACCOUNTS = st.lists(AMOUNTS, min_size=SEATS, max_size=SEATS)

Flow = tuple[int, int, int]
"""Demand, how far ahead, weight."""


def contestants(flows: list[tuple[int, int, int, int]]) -> Contestants:
    """Return flows of (demand, how far ahead, weight, seat), in one scope."""
    demand, ahead, weight, seat = np.array(flows, dtype=np.int64).T
    return Contestants(demand[:, None], ahead[:, None], weight, np.zeros_like(seat), seat)


def places_by_rounds(flows: list[Flow], account: int) -> list[int | None]:
    """Return the places of one seat's flows, `None` of those that do not count.

    Round by round, until all that count would still want something at the lag that follows from them.
    """
    counting = [number for number, (demand, ahead, _) in enumerate(flows) if demand or ahead]
    while True:
        weights = sum(flows[number][2] for number in counting)
        lag = (sum(flows[number][1] for number in counting) - account) // max(weights, 1)
        places = {number: flows[number][1] - lag * flows[number][2] for number in counting}
        stay = [number for number in counting if flows[number][0] + places[number] > 0]
        if stay == counting:
            return [places.get(number) for number in range(len(flows))]
        counting = stay


@pytest.mark.slow
@given(FLOWS, ACCOUNTS)
def test_places_are_those_that_rounds_come_to(flows: list[tuple[int, int, int, int]], accounts: list[int]) -> None:
    place, counts = contestants(flows).places(np.array(accounts, dtype=np.int64)[:, None])
    for seat, account in enumerate(accounts):
        here = [number for number, flow in enumerate(flows) if flow[3] == seat]
        expected = places_by_rounds([flows[number][:3] for number in here], account)
        assert place[here, 0].tolist() == [each or 0 for each in expected]
        assert counts[here, 0].tolist() == [each is not None for each in expected]


@pytest.mark.parametrize("flows", [50, 300])
def test_flows_of_which_each_round_leaves_out_one_have_places_too(flows: int) -> None:
    # A tenant may choose its sizes so. Rounds over ten thousand flows would take half a minute.
    ahead = 10**9
    rows = [(0, ahead, 1, 0)] + [(int(ahead / (flows - number - 0.5)), 0, 1, 0) for number in range(flows - 1)]
    expected = places_by_rounds([row[:3] for row in rows], 0)
    assert contestants(rows).places(np.zeros((1, 1), dtype=np.int64))[0][:, 0].tolist() == [p or 0 for p in expected]


def test_a_shard_that_is_behind_in_its_turn_owes_nothing_and_its_mates_credit_is_what_they_lost() -> None:
    # Of 9,000 bytes each of three was due 3,000; the visitor took 30,000, and its mate nothing.
    place, _ = contestants([(0, 30_000, 1, 0), (9_000, 0, 1, 0), (9_000, 0, 1, 1)]).places(
        np.array([[24_000], [0], [0]], dtype=np.int64)
    )
    assert place[:, 0].tolist() == [27_000, -3_000, 0]
