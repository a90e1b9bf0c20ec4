"""Rates, sizes and durations: as people write them, and as exact integers.

A rate is held in whole micro-tokens per millisecond (millitokens per second), a size in bytes, a duration in
milliseconds. A value that does not fit its grid is refused, never rounded, so that the quota in force is
the quota that was written. A float is read as its shortest decimal form, so 0.2 is exactly 1/5.

`MB` is 10^6 bytes and `MiB` is 2^20. Bare `K` and `M` are refused: they mean 1024s in Pegasus' strings
(`core.limits.pegasus`) and 1000s elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from spark_throttle.core.quota import MAX_BUDGET_TOKENS, MAX_BURST_TOKENS, Dimension
from spark_throttle.errors import PolicyError

MAX_TOKENS_PER_SECOND: Final = MAX_BURST_TOKENS
MAX_SIZE_BOUND_BYTES: Final = 2**60
MAX_DURATION_MS: Final = 2**42
NS_PER_MS_OF_A_PERCENT: Final = 10_000
"""Nanoseconds of core time in a millisecond of one percent of a core."""


_COUNT_UNITS: Final = {"": 1}
_BYTE_UNITS: Final = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "KiB": 2**10} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("MGT", start=2)
    for suffix, base in (("B", 10**3), ("iB", 2**10))
}
_DURATION_UNITS_MS: Final = {"": 1000, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class _Kind:
    """The rules for reading one kind of quantity: its units, its grid, its bound, and the remedies that errors name."""

    units: Mapping[str, int]
    steps: int
    """The number of grid steps in a unit of factor 1."""

    bound: int
    bound_unit: str
    if_fine: str
    if_negative: str
    example: str
    is_rate: bool = False


_RATE_STEP: Final = "0.001 a second is the finest step; round it, or use 0 to admit nothing"
_RATE_SIGN: Final = "0 admits nothing, and leaving the key out sets no limit"
_RATE_BOUND: Final = 1000 * MAX_TOKENS_PER_SECOND
_RATES: Final = {
    Dimension.MESSAGES: _Kind(
        _COUNT_UNITS, 1000, _RATE_BOUND, "a second", _RATE_STEP, _RATE_SIGN, "500 or 0.2", is_rate=True
    ),
    Dimension.BYTES: _Kind(
        _BYTE_UNITS, 1000, _RATE_BOUND, "a second", _RATE_STEP, _RATE_SIGN, "5000 or 64KiB", is_rate=True
    ),
    Dimension.UNITS: _Kind(
        _COUNT_UNITS, 1000, _RATE_BOUND, "a second", _RATE_STEP, _RATE_SIGN, "500 or 0.2", is_rate=True
    ),
}
_PERCENTAGE: Final = _Kind(
    {"": 1, "%": 1}, NS_PER_MS_OF_A_PERCENT, _RATE_BOUND, "% of a core",
    "0.0001 % of a core is the finest step; round it, or use 0 to admit nothing", _RATE_SIGN, "50, 250 or 0.5",
)  # fmt: skip
_SIZE: Final = _Kind(
    _BYTE_UNITS, 1, MAX_SIZE_BOUND_BYTES, "bytes", "give whole bytes", "give 0 or more", "5000 or 64KiB"
)
_BUDGET_SIGN: Final = "0 admits nothing, and leaving the key out sets no budget"
_BUDGETS: Final = {
    Dimension.MESSAGES: _Kind(
        _COUNT_UNITS, 1, MAX_BUDGET_TOKENS, "messages", "give whole messages", _BUDGET_SIGN, "1000000"
    ),
    Dimension.BYTES: _Kind(
        _BYTE_UNITS, 1, MAX_BUDGET_TOKENS, "bytes", "give whole bytes", _BUDGET_SIGN, "5000 or 64GiB"
    ),
    Dimension.UNITS: _Kind(
        _COUNT_UNITS, 1, MAX_BUDGET_TOKENS, "units", "give whole units", _BUDGET_SIGN, "1000000"
    ),
}  # fmt: skip
_DURATION: Final = _Kind(
    _DURATION_UNITS_MS, 1, MAX_DURATION_MS, "ms", "give whole milliseconds", "give more than 0", "10, 1.5 or 250ms"
)

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z]*|%)(\s*/\s*s)?\s*", re.ASCII)
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d", re.ASCII)
_LONGEST_TEXT = 80


def describe(value: object) -> str:
    """Return `value` as an error message shows it: short, and without the content of a container.

    Examples
    --------
    >>> describe("5 apples"), describe([1, 2]), describe(True)
    ("'5 apples'", 'a list', 'true')
    """
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "…")
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST_TEXT:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def parse_rate(value: object, dimension: Dimension = Dimension.MESSAGES) -> int:
    """Return a rate in micro-tokens per millisecond.

    Parameters
    ----------
    value : int, float, Decimal or str
        Tokens per second; a text may end in `/s`, and a rate in bytes may have a unit.
    dimension : Dimension
        What is counted.

    Raises
    ------
    PolicyError
        If the value is not a number, negative, finer than 0.001 tokens per second, or over `MAX_TOKENS_PER_SECOND`.

    Examples
    --------
    >>> parse_rate(500), parse_rate(0.2), parse_rate("1.5 MB/s", Dimension.BYTES)
    (500000, 200, 1500000000)
    """
    return _parse(value, _RATES[dimension])


def parse_percentage(value: object) -> int:
    """Return a share of cores, given in percent of one core, in nanoseconds per millisecond.

    Examples
    --------
    >>> parse_percentage(250), parse_percentage("0.5"), parse_percentage("100%")
    (2500000, 5000, 1000000)
    """
    return _parse(value, _PERCENTAGE)


def parse_size(value: object) -> int:
    """Return a size in bytes.

    Examples
    --------
    >>> parse_size("64KiB"), parse_size("1.5 MB"), parse_size(10)
    (65536, 1500000, 10)
    """
    return _parse(value, _SIZE)


def parse_budget(value: object, dimension: Dimension = Dimension.MESSAGES) -> int:
    """Return the messages, bytes or units of a budget.

    Examples
    --------
    >>> parse_budget(1_000_000), parse_budget("1.5TB", Dimension.BYTES)
    (1000000, 1500000000000)
    """
    return _parse(value, _BUDGETS[dimension])


def parse_duration_ms(value: object) -> int:
    """Return a duration in milliseconds; a number without a unit is in seconds.

    Examples
    --------
    >>> parse_duration_ms(10), parse_duration_ms("250ms"), parse_duration_ms(1.5), parse_duration_ms("5min")
    (10000, 250, 1500, 300000)
    """
    return _parse(value, _DURATION)


def _parse(value: object, kind: _Kind) -> int:
    shown = describe(value)
    number, unit = _split(value, shown, kind)
    if unit not in kind.units:
        raise _unknown_unit(shown, unit, kind)
    steps = number * kind.units[unit] * kind.steps
    if steps < 0:
        raise PolicyError("", f"{shown} is negative; {kind.if_negative}")
    if steps > kind.bound:
        raise PolicyError("", f"{shown} is over {kind.bound // kind.steps} {kind.bound_unit}; give less")
    if steps.denominator != 1:
        raise PolicyError("", f"{shown} is too fine; {kind.if_fine}")
    return int(steps)


def _split(value: object, shown: str, kind: _Kind) -> tuple[Fraction, str]:
    """Return the number and the unit of a quantity."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value), ""
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) <= _LONGEST_TEXT:
        return Fraction(value), ""
    text = float.__repr__(value) if isinstance(value, float) else value
    matched = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST_TEXT else None
    if matched is None or (matched[3] and not kind.is_rate):
        raise PolicyError("", f"{shown} is not a number; write one such as {kind.example}")
    if isinstance(value, str) and _LEADING_ZERO.match(value):
        raise PolicyError("", f"{shown} starts with a zero, which some readers take for octal; leave the zero out")
    return Fraction(matched[1]), matched[2]


def _unknown_unit(shown: str, unit: str, kind: _Kind) -> PolicyError:
    known = [name for name in kind.units if name]
    same_letters = [name for name in known if name.lower() == unit.lower()]
    if not known:
        problem = f"{shown} has the unit {unit!r}; messages and units are counted without one"
    elif kind.units is _BYTE_UNITS and unit.upper() in {"K", "M", "G", "T"}:
        prefix = unit.upper()
        problem = f"{shown} could mean {prefix}B (powers of 1000) or {prefix}iB (powers of 1024); write one of them"
    elif same_letters:
        problem = f"{shown} has the unknown unit {unit!r}; did you mean {same_letters[0]}?"
    else:
        problem = f"{shown} has the unknown unit {unit!r}; units are {', '.join(known)}"
    return PolicyError("", problem)
