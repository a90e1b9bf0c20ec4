"""A limit is a rate, a burst, and how full a bucket must be before a throttled producer goes on.

All numbers are whole, and each is bounded: a token is a message, a byte, or whatever the caller counts, and a rate is
so many tokens in a period of so many nanoseconds. So 500 a second and 1 in ten minutes are both exact.

Surprises: a rate of 0 is a limit that adds nothing, for ever. The target is PIP-322's: a bucket that was emptied lets
nobody through until it holds 16 milliseconds' worth of tokens again, so that producers are not woken for one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.errors import ConfigurationError

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000

RESOLUTION_NS: Final = 16 * NS_PER_MS
"""PIP-322's resolution: how long a balance may go without an update."""

NEVER_NS: Final = 2**63 - 1
"""A time that does not come."""

MOST: Final = 2**63 - 1
"""The largest number that is taken: what fits into 64 bits, as in every peer."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many tokens in each period, and a burst; made by `Limit.of`.

    Examples
    --------
    >>> Limit.of(500)
    Limit(tokens=500, period_ns=1000000000, burst_tokens=500, target_tokens=8)
    >>> Limit.of(1, period_ns=600 * 10**9).target_tokens
    1
    """

    tokens: int
    """What a period adds; 0 adds nothing."""

    period_ns: int
    burst_tokens: int
    """What a full bucket holds."""

    target_tokens: int
    """What an emptied bucket must hold before it lets a producer through again; at least 1, at most the burst."""

    @classmethod
    def of(
        cls,
        tokens: int,
        *,
        period_ns: int = NS_PER_SECOND,
        burst_tokens: int | None = None,
        target_tokens: int | None = None,
    ) -> Limit:
        """Return a limit whose numbers were checked.

        Parameters
        ----------
        burst_tokens
            What one period adds, unless given.
        target_tokens
            What 16 ms add, unless given; it is kept between 1 and the burst.

        Raises
        ------
        ConfigurationError
            If a number is not whole, is negative, or does not fit into 64 bits; if the period is 0; or if a bucket
            that fills has no room.

        Examples
        --------
        >>> Limit.of(-1)
        Traceback (most recent call last):
        spark_throttle.errors.ConfigurationError: tokens is -1, less than 0; give a whole number from 0 to \
9223372036854775807
        """
        check_whole("tokens", tokens, 0)
        check_whole("period_ns", period_ns, 1)
        burst = tokens if burst_tokens is None else burst_tokens
        check_whole("burst_tokens", burst, 1 if tokens else 0)
        target = RESOLUTION_NS * tokens // period_ns if target_tokens is None else target_tokens
        check_whole("target_tokens", target, 0, 2**127 if target_tokens is None else MOST)
        return cls(tokens, period_ns, burst, max(1, min(target, burst)))


def check_whole(name: str, value: object, least: int, most: int = MOST) -> None:
    """Raise an error unless `value` is a whole number between two bounds, which are allowed too.

    Raises
    ------
    ConfigurationError
        With the value, the bound, and what to give instead. `True` and `1.0` are no whole numbers here.
    """
    if type(value) is not int:
        problem = f"{value!r}, of type {type(value).__name__} and no int"
    elif value < least:
        problem = f"{value}, less than {least}"
    elif value > most:
        problem = f"{value}, more than {most}"
    else:
        return
    raise ConfigurationError(f"{name} is {problem}; give a whole number from {least} to {most}")
