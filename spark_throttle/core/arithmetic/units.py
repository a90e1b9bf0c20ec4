"""Rates, sizes and durations: as people write them, and as exact integers.

A rate is held in whole micro-tokens per millisecond (millitokens per second), a size in bytes, a duration in
milliseconds. A value that does not fit its grid is refused, never rounded, so that the quota in force is
the quota that was written: `parse_rate(format_rate(rate)) == rate`, and likewise for sizes and durations.
A float is read as its shortest decimal form, so 0.2 is exactly 1/5.

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

from spark_throttle.core.quota import MAX_BURST_TOKENS, UNLIMITED, Dimension
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
}
_PERCENTAGE: Final = _Kind(
    {"": 1, "%": 1}, NS_PER_MS_OF_A_PERCENT, _RATE_BOUND, "% of a core",
    "0.0001 % of a core is the finest step; round it, or use 0 to admit nothing", _RATE_SIGN, "50, 250 or 0.5",
)  # fmt: skip
_SIZE: Final = _Kind(
    _BYTE_UNITS, 1, MAX_SIZE_BOUND_BYTES, "bytes", "give whole bytes", "give 0 or more", "5000 or 64KiB"
)
_DURATION: Final = _Kind(
    _DURATION_UNITS_MS, 1, MAX_DURATION_MS, "ms", "give whole milliseconds", "give more than 0", "10, 1.5 or 250ms"
)

_BYTE_FORMATS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")
_DURATION_FORMATS: Final = ("ms", "s", "min", "h", "d")

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
        Whether messages or bytes are counted.

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


def format_rate(rate_micro_per_ms: int, dimension: Dimension = Dimension.MESSAGES) -> str:
    """Return a rate for people, in the shortest exact form.

    Examples
    --------
    >>> format_rate(200), format_rate(1_048_576_000, Dimension.BYTES), format_rate(UNLIMITED)
    ('0.2/s', '1MiB/s', 'unlimited')
    """
    if rate_micro_per_ms == UNLIMITED:
        return "unlimited"
    if dimension is Dimension.MESSAGES:
        return f"{_decimal_text(Fraction(rate_micro_per_ms, 1000))}/s"
    return f"{_shortest(Fraction(rate_micro_per_ms, 1000), _BYTE_FORMATS, _BYTE_UNITS)}/s"


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


def format_size(size_bytes: int) -> str:
    """Return a size for people, in the shortest exact form.

    Examples
    --------
    >>> format_size(268435456), format_size(1001)
    ('256MiB', '1001B')
    """
    return _shortest(Fraction(size_bytes), _BYTE_FORMATS, _BYTE_UNITS)


def parse_duration_ms(value: object) -> int:
    """Return a duration in milliseconds; a number without a unit is in seconds.

    Examples
    --------
    >>> parse_duration_ms(10), parse_duration_ms("250ms"), parse_duration_ms(1.5), parse_duration_ms("5min")
    (10000, 250, 1500, 300000)
    """
    return _parse(value, _DURATION)


def format_duration_ms(duration_ms: int) -> str:
    """Return a duration for people, in the shortest exact form.

    Examples
    --------
    >>> format_duration_ms(90_000), format_duration_ms(250)
    ('90s', '250ms')
    """
    return _shortest(Fraction(duration_ms), _DURATION_FORMATS, _DURATION_UNITS_MS)


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
        problem = f"{shown} has the unit {unit!r}; messages are counted without one"
    elif kind.units is _BYTE_UNITS and unit.upper() in {"K", "M", "G", "T"}:
        prefix = unit.upper()
        problem = f"{shown} could mean {prefix}B (powers of 1000) or {prefix}iB (powers of 1024); write one of them"
    elif same_letters:
        problem = f"{shown} has the unknown unit {unit!r}; did you mean {same_letters[0]}?"
    else:
        problem = f"{shown} has the unknown unit {unit!r}; units are {', '.join(known)}"
    return PolicyError("", problem)


def _shortest(value: Fraction, names: tuple[str, ...], units: Mapping[str, int]) -> str:
    """Return the text with the shortest number that is exact to three decimals; the first unit always has one."""
    exact = [(_decimal_text(value / units[name]), name) for name in names if 1000 * value % units[name] == 0]
    number, unit = min(exact, key=lambda number_and_unit: len(number_and_unit[0]))
    return number + unit


def _decimal_text(value: Fraction) -> str:
    whole, thousandths = divmod(int(1000 * value), 1000)
    return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")
