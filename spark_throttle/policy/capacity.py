"""A fixed capacity is divided among tenants by the arithmetic of KIP-124.

KIP-124 measures a client's use of a broker in percent of one thread's time, not of all threads' time, so that a quota
keeps its meaning when the number of threads changes. A broker's capacity is then 100 % for each of its I/O and network
threads: 8 and 3 of them make 1,100 %; 32 cores with 32 threads of each kind make 6,400 %. What the tenants with a fixed
share leave is divided equally among the others.

A share is a promise, so it is rounded down: to a tenth, or below 1 % to three significant digits, so that no share
becomes 0. What is promised is never more than the capacity, and what rounding leaves is `unpromised_percent`. (The
published examples round half up, 1,100 / 120 to 9.2 and 6,400 / 115 to 55.7; 120 and 115 such shares are 1,104 % and
6,405.5 %, which nobody has to give.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from spark_throttle.errors import ConfigurationError

_TENTHS: Final = -1
_SIGNIFICANT_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Division:
    """A capacity and its shares, in percent of one thread."""

    capacity_percent: int
    tenants: int
    fixed_percent: Decimal
    """Sum of the fixed shares."""

    variable_tenants: int
    """Number of tenants that divide the rest."""

    variable_percent: Decimal | None
    """Share of each tenant that divides the rest; `None` if there is no such tenant."""

    @property
    def promised_percent(self) -> Decimal:
        """Sum of all shares, at most the capacity."""
        return self.fixed_percent + self.variable_tenants * (self.variable_percent or Decimal(0))

    @property
    def unpromised_percent(self) -> Decimal:
        """What is left of the capacity: what rounding leaves, or all that no tenant divides."""
        return self.capacity_percent - self.promised_percent


def capacity_of_threads(io_threads: int, network_threads: int) -> int:
    """Return the capacity of a broker's threads, in percent of one thread.

    Examples
    --------
    >>> capacity_of_threads(8, 3)
    1100
    """
    if io_threads < 1 or network_threads < 1:
        raise ConfigurationError(
            f"{io_threads} I/O threads and {network_threads} network threads serve nobody; give 1 or more of each"
        )
    return 100 * (io_threads + network_threads)


def capacity_of_cores(cores: int) -> int:
    """Return the capacity of a broker with as many threads of each kind as cores, in percent of one thread.

    Examples
    --------
    >>> capacity_of_cores(32)
    6400
    """
    return capacity_of_threads(cores, cores)


def divide(capacity_percent: int, tenants: int, fixed_percents: Sequence[Decimal] = ()) -> Division:
    """Divide a capacity among tenants, some of which have a fixed share.

    Examples
    --------
    >>> [str(divide(*case).variable_percent) for case in ((1100, 120), (6400, 50), (6400, 100), (6400, 115))]
    ['9.1', '128.0', '64.0', '55.6']
    >>> divide(6400, 115).promised_percent
    Decimal('6394.0')
    >>> divide(1100, 12, [Decimal(200), Decimal(100)]).variable_percent
    Decimal('80.0')
    """
    fixed = sum(fixed_percents, Decimal(0))
    others = tenants - len(fixed_percents)
    if tenants < 1:
        raise ConfigurationError(f"{tenants} tenants share nothing; give 1 or more")
    if others < 0:
        raise ConfigurationError(f"{len(fixed_percents)} tenants have a fixed share, but there are {tenants} in all")
    if any(percent <= 0 for percent in fixed_percents):
        raise ConfigurationError("a fixed share is 0 or less; give more, or leave the tenant out")
    if fixed > capacity_percent:
        raise ConfigurationError(
            f"the fixed shares are {fixed} % together and the capacity is {capacity_percent} %; lower them"
        )
    if not others:
        return Division(capacity_percent, tenants, fixed, 0, None)
    if fixed == capacity_percent:
        raise ConfigurationError(
            f"the fixed shares take all of {capacity_percent} %, and {others} tenants have none; lower the fixed shares"
        )
    return Division(
        capacity_percent, tenants, fixed, others, _rounded_down(Fraction(capacity_percent - fixed) / others)
    )


def _rounded_down(share: Fraction) -> Decimal:
    exponent = _TENTHS
    while share < 1 and share < Fraction(10) ** (exponent + _SIGNIFICANT_DIGITS - 1):
        exponent -= 1
    return Decimal(int(share / Fraction(10) ** exponent)).scaleb(exponent)
