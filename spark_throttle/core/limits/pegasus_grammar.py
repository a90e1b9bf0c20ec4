"""Pegasus' throttling strings, read as Pegasus reads them.

A string is one or two rules separated by commas, each `<units>[K|M]*(delay|reject)*<ms>`, and each action
at most once: `2000*delay*100,5K*reject*50`. K is 1024 and M is 1024^2. Spaces around the parts and empty
rules between commas are skipped, as in Pegasus; hexadecimal and octal numbers, which its number reader
accepts, are refused. 0 units turn the rule off. Units, which Pegasus holds in 64 unsigned bits, are at most
2^63 - 1 here, and a wait is at most `MAX_DURATION_MS`.

Pegasus divides units by a table's partitions and adds one; here a rule applies to a namespace as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spark_throttle.core.arithmetic.units import MAX_DURATION_MS, describe
from spark_throttle.errors import PolicyError

_MULTIPLIERS: Final = {"K": 2**10, "M": 2**20}
_UNSIGNED = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_MAX_UNITS: Final = 2**63 - 1
_MAX_DIGITS: Final = 20
_FIELDS: Final = 3


@dataclass(frozen=True, slots=True)
class PegasusRule:
    """The units that may pass within a wall-clock second, and the treatment of the rest; 0 units means off."""

    delay_units: int = 0
    """The units that may pass before delay begins."""

    delay_ms: int = 0
    """How long a delayed message waits."""

    reject_units: int = 0
    """The units that may pass before rejection begins."""

    reject_ms: int = 0
    """The throttle time reported with a rejected message."""


def parse_throttling(text: str) -> PegasusRule:
    """Return the rule that `text` spells.

    Raises
    ------
    PolicyError
        If Pegasus would refuse the text; the problem uses Pegasus' own words where it has any.

    Examples
    --------
    >>> parse_throttling("20K*delay*100,20M*reject*50")
    PegasusRule(delay_units=20480, delay_ms=100, reject_units=20971520, reject_ms=50)
    """
    rules: dict[str, tuple[int, int]] = {}
    for rule in (part.strip() for part in text.split(",")):
        if not rule:
            continue
        fields = [field.strip() for field in rule.split("*")]
        if len(fields) != _FIELDS:
            msg = f"the field count of {describe(rule)} separated by '*' must be 3, as in 2000*delay*100"
            raise PolicyError("", msg)
        units, action, wait = parse_units(fields[0]), fields[1], fields[2]
        if action not in ("delay", "reject"):
            raise PolicyError("", f"{describe(action)} should be 'delay' or 'reject'")
        wait_ms = _parse_unsigned(wait, wait)
        if wait_ms > MAX_DURATION_MS:
            raise PolicyError("", f"{describe(wait)} ms result is overflow: a wait is at most {MAX_DURATION_MS} ms")
        if action in rules:
            raise PolicyError("", f"duplicate '{action}' config in {describe(text)}; keep one of them")
        rules[action] = (units, wait_ms)
    if not rules:
        msg = "the value should not be empty; write a rule such as 2000*delay*100, or leave the key out"
        raise PolicyError("", msg)
    return PegasusRule(*rules.get("delay", (0, 0)), *rules.get("reject", (0, 0)))


def parse_units(text: str) -> int:
    """Return a number of units, where the suffixes K and M are powers of 1024.

    Examples
    --------
    >>> parse_units("10M"), parse_units("1K"), parse_units("100")
    (10485760, 1024, 100)
    """
    multiplier = _MULTIPLIERS.get(text[-1:], 1)
    units = _parse_unsigned(text if multiplier == 1 else text[:-1], text) * multiplier
    if units > _MAX_UNITS:
        raise PolicyError("", f"{describe(text)} result is overflow: at most 2^63 - 1 units")
    return units


def _parse_unsigned(digits: str, written: str) -> int:
    if not _UNSIGNED.fullmatch(digits):
        msg = f"{describe(written)} should be an unsigned integer, of units with at most one K or M behind it"
        raise PolicyError("", msg)
    return int(digits[: _MAX_DIGITS + 1])
