"""Pegasus' windows against its own loop, a row at a time; and its strings, read as Pegasus reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.units import MAX_DURATION_MS
from spark_throttle.core.limits.pegasus import PegasusRule, WindowVerdicts, parse_throttling, parse_units, plan_windows
from spark_throttle.core.quota import Dimension, WindowRules
from spark_throttle.errors import PolicyError
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


PARTITIONS = 4


def of_one_partition(units: int) -> int:
    """Return what Pegasus leaves to one of a table's partitions."""
    return 0 if units == 0 else units // PARTITIONS + 1


@pytest.mark.parametrize(
    ("text", "delay_units", "delay_ms", "reject_units", "reject_ms"),
    [
        ("20000*delay*100", 5001, 100, 0, 0),
        ("20000*delay*100,20000*reject*100", 5001, 100, 5001, 100),
        ("20K*delay*100", 5121, 100, 0, 0),
        ("20M*delay*100", 5_242_881, 100, 0, 0),
        ("20M*delay*100,20M*reject*100", 5_242_881, 100, 5_242_881, 100),
        ("80000M*delay*100", 20_971_520_001, 100, 0, 0),
        ("0*delay*100", 0, 100, 0, 0),
    ],
)
def test_accepted_strings_give_the_units_of_a_partition_that_pegasus_gives(
    text: str, delay_units: int, delay_ms: int, reject_units: int, reject_ms: int
) -> None:
    rule = parse_throttling(text)
    assert of_one_partition(rule.delay_units) == delay_units
    assert of_one_partition(rule.reject_units) == reject_units
    assert (rule.delay_ms, rule.reject_ms) == (delay_ms, reject_ms)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("100*delay*100", PegasusRule(100, 100, 0, 0)),
        ("20K*delay*100", PegasusRule(20 * 1024, 100, 0, 0)),
        ("20M*delay*100", PegasusRule(20 * 1024**2, 100, 0, 0)),
        ("20M*reject*100", PegasusRule(0, 0, 20 * 1024**2, 100)),
        ("300*delay*100", PegasusRule(300, 100, 0, 0)),
        ("2000*delay*100,5000*reject*50", PegasusRule(2000, 100, 5000, 50)),
        ("5000*reject*50,2000*delay*100", PegasusRule(2000, 100, 5000, 50)),
        ("200K*delay*0", PegasusRule(200 * 1024, 0, 0, 0)),
        # Pegasus strips spaces and skips empty rules.
        (" 20K * delay * 100 , 20M*reject*100,", PegasusRule(20 * 1024, 100, 20 * 1024**2, 100)),
    ],
)
def test_accepted_strings_read_as_written(text: str, rule: PegasusRule) -> None:
    assert parse_throttling(text) == rule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "should not be empty"),
        (",", "should not be empty"),
        (" ", "should not be empty"),
        ("*delay*100", "'' should be an unsigned integer"),
        ("20m*delay*100", "'20m' should be an unsigned integer"),
        ("20B*delay*100", "'20B' should be an unsigned integer"),
        ("20KB*delay*100", "'20KB' should be an unsigned integer"),
        ("20Mb*delay*100", "'20Mb' should be an unsigned integer"),
        ("20MB*delay*100", "'20MB' should be an unsigned integer"),
        ("20A*delay*100", "'20A' should be an unsigned integer"),
        ("-20*delay*100", "'-20' should be an unsigned integer"),
        ("+20*delay*100", "'+20' should be an unsigned integer"),
        ("0x20*delay*100", "'0x20' should be an unsigned integer"),
        ("020*delay*100", "'020' should be an unsigned integer"),
        ("1.5*delay*100", "'1.5' should be an unsigned integer"),
        ("12KM*delay*100", "'12KM' should be an unsigned integer"),
        ("1K2M*delay*100", "'1K2M' should be an unsigned integer"),
        ("20A*delay", "the field count of '20A*delay' separated by '*' must be 3"),
        ("20K*pass*100", "'pass' should be 'delay' or 'reject'"),
        ("20K*DELAY*100", "'DELAY' should be 'delay' or 'reject'"),
        ("20K**100", "'' should be 'delay' or 'reject'"),
        ("20K*delay*-100", "'-100' should be an unsigned integer"),
        ("20K*delay*", "'' should be an unsigned integer"),
        ("20K*delay*1K", "'1K' should be an unsigned integer"),
        ("2K**delay*100", "the field count of '2K**delay*100' separated by '*' must be 3"),
        ("2K*delay**100", "the field count of '2K*delay**100' separated by '*' must be 3"),
        ("2K*delay*100,3K*delay*100", "duplicate 'delay' config"),
        ("2K*reject*100,3K*reject*100", "duplicate 'reject' config"),
        ("200K", "must be 3"),
        ("20K*delay*99999999999999999999", "overflow"),
        (f"20K*delay*{MAX_DURATION_MS + 1}", "overflow"),
    ],
)
def test_refused_strings_say_what_pegasus_says(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_throttling(text)
    assert problem in caught.value.problem


@pytest.mark.parametrize("text", ["", "-", "A", "M", "K", "aM", "aK", "KM", "1 K", "٣"])
def test_units_without_an_integer_are_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="should be an unsigned integer"):
        parse_units(text)


@pytest.mark.parametrize(
    "text", [f"{2**64 - 2}M", f"{2**64 - 2}K", f"{2**63}", f"{2**53}K", f"{2**43}M", "9" * 50, "9" * 5000 + "M"]
)
def test_units_beyond_63_bits_overflow(text: str) -> None:
    with pytest.raises(PolicyError, match="overflow"):
        parse_units(text)


@pytest.mark.parametrize(
    ("text", "units"), [("10M", 10_485_760), ("1K", 1024), ("100", 100), ("0", 0), (f"{2**63 - 1}", 2**63 - 1)]
)
def test_k_is_1024_and_m_is_1024_squared(text: str, units: int) -> None:
    assert parse_units(text) == units


@pytest.mark.slow
@given(st.integers(0, 2**63 - 1), st.integers(0, MAX_DURATION_MS), st.integers(0, 2**43 - 1), st.integers(0, 10**6))
def test_written_rules_read_back(delay_units: int, delay_ms: int, reject_mega: int, reject_ms: int) -> None:
    rule = parse_throttling(f"{delay_units}*delay*{delay_ms},{reject_mega}M*reject*{reject_ms}")
    assert rule == PegasusRule(delay_units, delay_ms, reject_mega * 1024**2, reject_ms)


@pytest.mark.slow
@given(st.text(alphabet="0123456789KMdelayrjct*, -", max_size=40))
def test_any_text_gives_a_rule_or_a_policy_error(text: str) -> None:
    try:
        rule = parse_throttling(text)
    except PolicyError:
        return
    assert 0 <= rule.delay_units < 2**63
    assert 0 <= rule.reject_units < 2**63
