"""The time in which a scope earns tokens: the measure by which its messages and its bytes are compared.

Time is expressed in tokens of one resource of the scope, the one whose unit takes longer to earn; so no number grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, bit_length, leading, proportional, shifted
from spark_throttle.core.arithmetic.segments import beside, by_row, once, rows_of
from spark_throttle.core.lending.allocation import MOST_STRETCH
from spark_throttle.core.quota import Bools, Dimension, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class ScopeTime:
    """The conversion of scopes' tokens to time; arrays run over the scopes.

    Examples
    --------
    At 2 messages and 1,000 bytes per second, one and a half messages, counted in 1024ths, take as long as 750 bytes:

    >>> per_second = np.array([[2, 1000]])
    >>> time = ScopeTime(per_second * 1000, per_second > 0, np.array([[10, 0]]))
    >>> time.of_each(np.array([[1536, 600]]), np.zeros(1, dtype=int)).tolist()
    [[750, 600]]
    """

    rate_micro_per_ms: Int64s
    """Shape (scopes, 2): the rates at which the scopes earn tokens."""

    is_limited: Bools
    """Shape (scopes, 2): whether the resource is limited; one that is not takes no time."""

    bits: Int64s
    """Shape (scopes, 2): tokens are counted in units of ``2**-bits``."""

    def of_each(self, tokens: Int64s, scope: Int64s) -> Int64s:
        """Return the time that tokens of `scope` take, for each resource; shape (n, 2)."""
        return beside(*self._columns(tokens, scope))

    def _columns(self, tokens: Int64s, scope: Int64s) -> tuple[Int64s, Int64s]:
        """Return the time that tokens of messages take, and that tokens of bytes take."""
        messages, size_bytes = tokens.T
        scope = once(scope)
        is_limited = rows_of(self.is_limited, scope)
        is_both = by_row(np.logical_and, is_limited)
        if not is_both.all():
            messages, size_bytes = (np.where(each, of, 0) for each, of in zip(is_limited.T, tokens.T, strict=True))
        if not is_both.any():
            return messages, size_bytes
        rate, slower_rate, bits, is_messages = self._by_slower(scope)
        if len(scope) == 1:
            if is_messages[0]:
                return messages, proportional(size_bytes, slower_rate, rate, bits)
            return proportional(messages, slower_rate, rate, bits), size_bytes
        told = proportional(np.where(is_messages, size_bytes, messages), slower_rate, rate, bits)
        return np.where(is_both & ~is_messages, told, messages), np.where(is_both & is_messages, told, size_bytes)

    def _by_slower(self, scope: Int64s) -> tuple[Int64s, Int64s, Int64s, Bools]:
        """Return what tells tokens in the resource whose unit takes longer to earn; arrays of shape (n,).

        These are the rate of the other resource, at least 1; the rate of that one; how many bits finer it is counted;
        and whether it is messages.
        """
        width = bit_length(self.rate_micro_per_ms) + self.bits
        is_messages = width[:, Dimension.BYTES] > width[:, Dimension.MESSAGES]
        rate = np.maximum(self.rate_micro_per_ms, 1)
        (rate_messages, rate_bytes), (bits_messages, bits_bytes) = rate.T, self.bits.T
        finer = bits_messages - bits_bytes
        return (
            np.where(is_messages, rate_bytes, rate_messages)[scope],
            np.where(is_messages, rate_messages, rate_bytes)[scope],
            np.where(is_messages, finer, -finer)[scope],
            is_messages[scope],
        )

    def of(self, tokens: Int64s, scope: Int64s) -> Int64s:
        """Return the time that tokens of `scope` take, in the resource that takes longer; shape (n,)."""
        return np.maximum(*self._columns(tokens, scope))

    def tokens_in(self, time: Int64s, scope: Int64s) -> Int64s:
        """Return the tokens of each resource that `scope` earns in a time, shape (n, 2): the inverse of `of_each`."""
        told = beside(time, time)
        scope = once(scope)
        is_both = by_row(np.logical_and, self.is_limited)[scope]
        if is_both.any():
            rate, slower_rate, bits, is_messages = self._by_slower(scope)
            faster = proportional(time, rate, slower_rate, -bits)
            np.copyto(told[:, Dimension.MESSAGES], faster, where=is_both & ~is_messages)
            np.copyto(told[:, Dimension.BYTES], faster, where=is_both & is_messages)
        return np.where(rows_of(self.is_limited, scope), told, 0)

    def stretch(self, available: Int64s) -> Int64s:
        """Return the factor at which the whole of each resource counts: the time to earn it, relative to the other's.

        So a level is a span of virtual time, as in `fair_queue`, however full either bucket is. The shorter time counts
        as the whole, unless the other time is more than four times as long.
        """
        time, exponent = self._time_to_earn(available)
        ratio = np.minimum((time << FACTOR_BITS) // np.maximum(time[:, ::-1], 1), WHOLE << 3)
        exponent = exponent - exponent[:, ::-1]
        against = np.minimum(shifted(ratio, np.clip(exponent, -62, 3)), MOST_STRETCH)
        of_four = shifted(ratio, np.clip(exponent + 2, -62, 3))
        is_far_shorter = against[:, ::-1] == MOST_STRETCH
        both = np.where(against >= WHOLE, against, np.where(is_far_shorter, np.maximum(of_four, 1), WHOLE))
        return np.where(by_row(np.logical_and, self.is_limited)[:, None], both, np.where(self.is_limited, WHOLE, 0))

    def _time_to_earn(self, available: Int64s) -> tuple[Int64s, Int64s]:
        """Return the time in which each rate earns the available tokens, as numbers of 31 bits and exponents of 2."""
        room = np.minimum(62 - bit_length(available), 62)
        rate, wide = leading(np.maximum(self.rate_micro_per_ms, 1))
        time, surplus = leading((available << room) // rate)
        return time, surplus - room - wide - self.bits


def in_mixture(time: Int64s, mixture: Int64s, whole: Int64s) -> Int64s:
    """Return the tokens of each resource that take a time, in the proportion of a mixture; shape (n, 2).

    Parameters
    ----------
    mixture
        Shape (n, 2): the tokens of each resource.
    whole
        Shape (n,): the time that they take together (`ScopeTime.of`).

    Examples
    --------
    At 2 messages and 1,000 bytes per second, half a second is one message of 10 bytes, or a quarter of a message of
    2,000 bytes:

    >>> per_second = np.array([[2, 1000]])
    >>> time = ScopeTime(per_second * 1000, per_second > 0, np.array([[10, 0]]))
    >>> zero, mixture = np.zeros(2, dtype=int), np.array([[40 << 10, 400], [40 << 10, 80_000]])
    >>> in_mixture(zero + 500, mixture, time.of(mixture, zero)).tolist()
    [[1024, 10], [256, 500]]
    """
    return beside(*(proportional(column, time, whole) for column in mixture.T))
