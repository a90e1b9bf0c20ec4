"""Pegasus' windows against its own loop, a row at a time, and the numbers of its documentation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.pegasus import WindowVerdicts, parse_throttling, plan_windows
from spark_throttle.core.quota import Dimension, WindowRules
from tests.oracle.worlds import Window, make_windows

NOW_MS = 1_760_000_000_500
COUNT, SIZE = Dimension.MESSAGES, Dimension.BYTES


def window(text: str) -> Window:
    rule = parse_throttling(text)
    return Window(rule.delay_units, rule.delay_ms, rule.reject_units, rule.reject_ms)


def ask(rules: WindowRules, rows: list[tuple[int, int]], used: list[tuple[int, int]] | None = None) -> WindowVerdicts:
    flow = np.array([flow for flow, _ in rows], dtype=np.int64)
    size_bytes = np.array([size for _, size in rows], dtype=np.int64)
    start = np.array(used if used is not None else [(0, 0)] * len(rules), dtype=np.int64)
    return plan_windows(flow, size_bytes, start, rules, now_ms=NOW_MS)


def loop(
    rules: list[tuple[Window, Window]], rows: list[tuple[int, int]], used: list[tuple[int, int]]
) -> tuple[list[int], list[int], list[list[int]]]:
    """Return who refuses each row, until when it waits, and what the windows hold."""
    units = [list(pair) for pair in used]
    refused_by, release_ms = [], []
    for flow, size in rows:
        refusal, until_ms = -1, 0
        cost = (1, size)
        for dimension in (COUNT, SIZE):
            rule = rules[flow][dimension]
            total = units[flow][dimension] + cost[dimension]
            if rule.reject_units > 0 and total > rule.reject_units:
                refusal = int(dimension)
                break
            if rule.delay_units > 0 and total > rule.delay_units:
                until_ms = max(until_ms, NOW_MS + rule.delay_ms)
        has_a_rule = any(rule.delay_units or rule.reject_units for rule in rules[flow])
        if refusal < 0 and has_a_rule:
            units[flow] = [units[flow][d] + cost[d] for d in (COUNT, SIZE)]
        refused_by.append(refusal)
        release_ms.append(until_ms if refusal < 0 else 0)
    return refused_by, release_ms, units


def windows(units: st.SearchStrategy[int]) -> st.SearchStrategy[Window]:
    waits_ms = st.sampled_from((0, 1, 50, 1_500))
    return st.one_of(st.just(Window()), st.builds(Window, units, waits_ms, units, waits_ms))


@pytest.mark.slow
@given(st.data())
def test_windows_are_those_of_the_loop(data: st.DataObject) -> None:
    flows = data.draw(st.integers(1, 4))
    rule = st.tuples(windows(st.integers(0, 8)), windows(st.integers(0, 300)))
    rules = data.draw(st.lists(rule, min_size=flows, max_size=flows))
    units = st.tuples(st.integers(0, 9), st.integers(0, 310))
    used = data.draw(st.lists(units, min_size=flows, max_size=flows))
    sizes = st.sampled_from((0, 1, 7, 60, 150, 299, 300, 301))
    rows = data.draw(st.lists(st.tuples(st.integers(0, flows - 1), sizes), max_size=40))
    found = ask(make_windows(rules), rows, used)
    refused_by, release_ms, after = loop(rules, rows, used)
    assert found.rejected_by.tolist() == refused_by
    assert found.release_ms.tolist() == release_ms
    assert found.units.tolist() == after


def test_documented_rule_delays_from_1001_and_rejects_from_2001() -> None:
    # Pegasus' documentation: 1000*delay*100,2000*reject*200.
    rules = make_windows([(window("1000*delay*100,2000*reject*200"), Window())])
    found = ask(rules, [(0, 1)] * 2_500)
    assert found.release_ms.tolist() == [0] * 1_000 + [NOW_MS + 100] * 1_000 + [0] * 500
    assert found.rejected_by.tolist() == [-1] * 2_000 + [COUNT] * 500
    assert found.units.tolist() == [[2_000, 2_000]]


def test_documented_rule_by_size_counts_kibibytes() -> None:
    # 1000K*delay*100,2000K*reject*200 by rows of 100 KiB: 10 pass, 10 wait, the others are rejected.
    rules = make_windows([(Window(), window("1000K*delay*100,2000K*reject*200"))])
    found = ask(rules, [(0, 102_400)] * 25)
    assert found.release_ms.tolist() == [0] * 10 + [NOW_MS + 100] * 10 + [0] * 5
    assert found.rejected_by.tolist() == [-1] * 20 + [SIZE] * 5


def test_units_of_a_rejected_row_are_taken_back() -> None:
    # 100 by size: 60, then 50 does not fit and is taken back, then 40 does, then nothing but an empty row.
    rules = make_windows([(Window(), Window(reject_units=100, reject_ms=5))])
    found = ask(rules, [(0, 60), (0, 50), (0, 40), (0, 1), (0, 0)])
    assert found.rejected_by.tolist() == [-1, SIZE, -1, SIZE, -1]
    assert found.units.tolist() == [[3, 100]]


def test_row_that_the_size_rule_rejects_is_not_counted_by_the_count_rule() -> None:
    rules = make_windows([(Window(reject_units=2), Window(reject_units=10))])
    found = ask(rules, [(0, 11), (0, 1), (0, 1), (0, 1)])
    assert found.rejected_by.tolist() == [SIZE, -1, -1, COUNT]


def test_equal_thresholds_never_delay() -> None:
    rules = make_windows([(window("2*delay*100,2*reject*50"), Window())])
    found = ask(rules, [(0, 1)] * 3)
    assert found.release_ms.tolist() == [0, 0, 0]
    assert found.rejected_by.tolist() == [-1, -1, COUNT]


def test_second_that_is_partly_used_goes_on_where_it_stood() -> None:
    rules = make_windows([(window("3*reject*50"), Window())])
    assert ask(rules, [(0, 9)] * 3, [(2, 18)]).rejected_by.tolist() == [-1, COUNT, COUNT]


def test_longer_of_two_delays_holds() -> None:
    rules = make_windows([(Window(1, 100), Window(10, 300))])
    assert (ask(rules, [(0, 6), (0, 4), (0, 1)]).release_ms - NOW_MS)[1:].tolist() == [100, 300]


def test_flow_without_a_rule_counts_nothing() -> None:
    rules = make_windows([(Window(), Window()), (Window(delay_units=1, delay_ms=7), Window())])
    found = ask(rules, [(0, 5), (1, 5)])
    assert found.units.tolist() == [[0, 0], [1, 5]]


def test_alternating_sizes_are_decided_in_one_pass_over_each_gap() -> None:
    # Large rows that never fit between small ones that do: every small one passes.
    rules = make_windows([(Window(), Window(reject_units=1_000))])
    rows = [(0, 2_000 if i % 2 else 1) for i in range(3_000)]
    found = ask(rules, rows)
    assert int((found.rejected_by < 0).sum()) == 1_000
