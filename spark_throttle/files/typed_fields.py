"""Fields of stored JSON, each of the type and in the range that its writer keeps to.

`int("7")` and `bool("false")` would take what nobody has written, and a number without a bound ends arithmetic with
other numbers. What is out of range is damage, so these raise what `parse_versioned` takes for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MOST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: a calendar goes no further."""

MOST_COUNT: Final = (1 << 63) - 1


def whole_number(fields: Mapping[str, Any], name: str, *, least: int = 0, most: int = MOST_COUNT) -> int:
    """Return a field that is a whole number from `least` to `most`.

    Raises
    ------
    ValueError
        If it is anything else.

    Examples
    --------
    >>> whole_number({"interval_ms": 10_000}, "interval_ms", least=1)
    10000
    >>> whole_number({"interval_ms": "10000"}, "interval_ms", least=1)
    Traceback (most recent call last):
    ...
    ValueError: interval_ms is no whole number from 1 to 9223372036854775807
    """
    value = fields[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is no whole number from {least} to {most}")
    return value


def short_text(fields: Mapping[str, Any], name: str, *, least: int = 0, most: int = 1000) -> str:
    """Return a field that is a text of `least` to `most` characters.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    value = fields[name]
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"{name} is no text of {least} to {most} characters")
    return value


def true_or_false(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    value = fields[name]
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")  # noqa: TRY004 - damage, not a wrong call
    return value
