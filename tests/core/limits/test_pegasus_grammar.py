"""Pegasus' own test tables: throttling_controller_test, meta_app_envs_test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.units import MAX_DURATION_MS
from spark_throttle.core.limits.pegasus import PegasusRule, parse_throttling, parse_units
from spark_throttle.errors import PolicyError

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
