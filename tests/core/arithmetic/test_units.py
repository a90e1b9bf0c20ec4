"""Rates, sizes and durations: exact, or refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.units import (
    MAX_SIZE_BOUND_BYTES,
    MAX_TOKENS_PER_SECOND,
    describe,
    parse_duration_ms,
    parse_rate,
    parse_size,
)
from spark_throttle.core.quota import Dimension
from spark_throttle.errors import PolicyError

rates = st.integers(0, 1000 * MAX_TOKENS_PER_SECOND)


@pytest.mark.parametrize(
    ("written", "rate_micro_per_ms"),
    [
        (0, 0),
        (0.0, 0),
        ("0", 0),
        (500, 500_000),
        ("500", 500_000),
        ("500/s", 500_000),
        (" 500 / s ", 500_000),
        (0.2, 200),
        ("0.2", 200),
        (".2", 200),
        (Decimal("0.2"), 200),
        (0.1 + 0.7, None),  # 0.7999999999999999: what was computed is not what was meant
        (0.001, 1),
        (1e3, 1_000_000),
        ("1e3", 1_000_000),
        ("5.", 5_000),
        ("+5", 5_000),
        (MAX_TOKENS_PER_SECOND, 1000 * MAX_TOKENS_PER_SECOND),
    ],
)
def test_message_rate_is_exactly_what_was_written(written: object, rate_micro_per_ms: int | None) -> None:
    if rate_micro_per_ms is None:
        with pytest.raises(PolicyError, match="too fine"):
            parse_rate(written)
    else:
        assert parse_rate(written) == rate_micro_per_ms


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (0, 0),
        (1024, 1024),
        ("1024", 1024),
        ("1024B", 1024),
        ("64KiB", 65_536),
        ("1MiB", 2**20),
        ("0.5MiB", 2**19),
        ("1GiB", 2**30),
        ("1TiB", 2**40),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1.5 MB", 1_500_000),
        ("2GB", 2 * 10**9),
        ("2TB", 2 * 10**12),
        (2.0, 2),
    ],
)
def test_size_and_byte_rate_know_powers_of_1000_from_powers_of_1024(written: object, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes
    if size_bytes <= MAX_TOKENS_PER_SECOND:
        assert parse_rate(written, Dimension.BYTES) == 1000 * size_bytes


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [
        (10, 10_000),
        ("10", 10_000),
        ("10s", 10_000),
        (0.001, 1),
        ("1ms", 1),
        ("1.5 s", 1500),
        ("5min", 300_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
    ],
)
def test_duration_without_a_unit_is_in_seconds(written: object, duration_ms: int) -> None:
    assert parse_duration_ms(written) == duration_ms


def messages(value: object) -> int:
    return parse_rate(value, Dimension.MESSAGES)


def bytes_(value: object) -> int:
    return parse_rate(value, Dimension.BYTES)


@pytest.mark.parametrize(
    ("parse", "written", "problem"),
    [
        (messages, -1, "-1 is negative; 0 admits nothing, and leaving the key out sets no limit"),
        (messages, "-0.2", "negative"),
        (parse_size, -1, "negative; give 0 or more"),
        (parse_duration_ms, -1, "negative; give more than 0"),
        (messages, 0.0001, "0.0001 is too fine; 0.001 a second is the finest step"),
        (messages, "1e-10", "too fine"),
        (bytes_, "0.0005 B", "too fine"),
        (parse_size, 0.5, "give whole bytes"),
        (parse_size, "1.0005kB", "give whole bytes"),
        (parse_duration_ms, "0.5ms", "give whole milliseconds"),
        (messages, 2**40 + 1, "over 1099511627776 a second; give less"),
        (bytes_, "1.5TiB", "over 1099511627776 a second"),
        pytest.param(messages, 10**5000, "a whole number of 16610 bits is over", id="huge"),
        (messages, 1e300, "over 1099511627776"),
        (parse_size, 2**60 + 1, f"over {2**60} bytes"),
        (parse_duration_ms, 2**42, f"over {2**42} ms"),
        (messages, float("nan"), "nan is not a number; write one such as 500 or 0.2"),
        (messages, float("inf"), "inf is not a number"),
        (messages, float("-inf"), "is not a number"),
        (messages, Decimal("NaN"), "NaN is not a number"),
        (messages, Decimal("1E+999999"), "is not a number"),
        (messages, Decimal("Infinity"), "is not a number"),
        (messages, ".nan", "is not a number"),
        (messages, "nan", "is not a number"),
        (messages, True, "true is not a number"),
        (messages, None, "nothing is not a number"),
        (messages, [], "a list is not a number"),
        (messages, {}, "a mapping is not a number"),
        (messages, "", "is not a number"),
        (messages, "fast", "is not a number"),
        (messages, "1:30", "is not a number"),
        (messages, "1_000", "is not a number"),
        (messages, "0x10", "is not a number"),
        (messages, "1,000", "is not a number"),
        (messages, "٣", "is not a number"),
        (messages, "1" * 100, "is not a number"),
        (messages, "010", "'010' starts with a zero, which some readers take for octal"),
        (messages, "64KiB", "'64KiB' has the unit 'KiB'; messages and units are counted without one"),
        (bytes_, "64K", "'64K' could mean KB (powers of 1000) or KiB (powers of 1024)"),
        (bytes_, "1m", "could mean MB"),
        (bytes_, "64kib", "unknown unit 'kib'; did you mean KiB?"),
        (bytes_, "64mb", "did you mean MB?"),
        (bytes_, "64 parsecs", "unknown unit 'parsecs'; units are B, kB"),
        (parse_size, "64KiB/s", "is not a number"),
        (parse_duration_ms, "10/s", "is not a number"),
        (parse_duration_ms, "5m", "unknown unit 'm'; units are ms, s, min, h, d"),
    ],
)
def test_refused_quantity_says_its_value_and_the_remedy(
    parse: Callable[[object], int], written: object, problem: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(written)
    assert problem in caught.value.problem
    assert caught.value.path == ""
    assert len(str(caught.value)) < 250


@pytest.mark.slow
@given(st.decimals(0, MAX_TOKENS_PER_SECOND, places=3))
def test_rate_is_the_same_as_a_decimal_a_text_and_a_float(rate: Decimal) -> None:
    expected = Fraction(rate) * 1000
    assert parse_rate(rate) == expected
    assert parse_rate(f"{rate:f}") == expected
    if Decimal(repr(float(rate))) == rate:
        assert parse_rate(float(rate)) == expected


@pytest.mark.slow
@given(st.floats() | st.integers() | st.text(max_size=20) | st.decimals() | st.none() | st.binary(max_size=5))
def test_any_value_gives_a_rate_in_bounds_or_a_policy_error(value: object) -> None:
    for parse in (messages, bytes_, parse_size, parse_duration_ms):
        try:
            parsed = parse(value)
        except PolicyError:
            continue
        assert 0 <= parsed <= MAX_SIZE_BOUND_BYTES


def test_describe_keeps_errors_short() -> None:
    assert len(describe("x" * 1000)) < 100
    assert describe(object()) == "a object"
    assert describe((1,)) == "a list"
    assert describe(0.25) == "0.25"
