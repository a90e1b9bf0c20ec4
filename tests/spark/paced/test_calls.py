"""Which rows a call takes is decided by the rows and the rates; when it leaves, also by the time until the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.paced.calls import CALL_NS, calls_of

COSTS = st.lists(st.integers(0, 10**10), max_size=300)
SMALL = st.lists(st.integers(0, 2 * CALL_NS), max_size=300)
WINDOWS = st.integers(0, 10**10)
SIZES = st.integers(1, 50)


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, SIZES)
def test_every_row_is_in_one_call_and_in_its_place(costs: list[int], window_ns: int, rows_per_call: int) -> None:
    calls = calls_of(np.array(costs, dtype=np.int64), window_ns, rows_per_call)
    places = [place for call in calls for place in range(call.place, call.place + call.rows)]
    assert places == list(range(len(costs)))
    assert all(1 <= call.rows <= rows_per_call for call in calls)


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, WINDOWS, SIZES)
def test_rows_of_a_call_do_not_depend_on_the_time(costs: list[int], one_ns: int, other_ns: int, rows: int) -> None:
    one, other = (calls_of(np.array(costs, dtype=np.int64), window, rows) for window in (one_ns, other_ns))
    assert [(call.place, call.rows) for call in one] == [(call.place, call.rows) for call in other]


@pytest.mark.slow
@given(COSTS | SMALL, SIZES)
def test_call_takes_one_message_and_what_the_rate_gives_in_3_ms(costs: list[int], rows_per_call: int) -> None:
    for call in calls_of(np.array(costs, dtype=np.int64), 0, rows_per_call):
        assert sum(costs[call.place + 1 : call.place + call.rows]) <= CALL_NS


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, SIZES)
def test_calls_fill_the_window_or_go_8_percent_faster_than_the_rate(
    costs: list[int], window_ns: int, rows_per_call: int
) -> None:
    calls = calls_of(np.array(costs, dtype=np.int64), window_ns, rows_per_call)
    if costs:
        assert sum(call.takes_ns for call in calls) == max(window_ns, -(-sum(costs) * 100 // 108))


def test_rows_without_a_cost_are_spread_by_their_number() -> None:
    calls = calls_of(np.zeros(10, dtype=np.int64), 1_000, 4)
    assert [(call.rows, call.takes_ns) for call in calls] == [(4, 400), (4, 400), (2, 200)]
