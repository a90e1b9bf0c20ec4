"""What every flow owes of what its shard is ahead by, and which flows are too far ahead to take part in a division.

A shard's debt is counted in messages and in bytes, and its flows owe of either as much as they are ahead in it. Whether
a flow takes part is asked in time, not in tokens: how long its scope takes to earn what the flow owes, of the resource
that takes longer. That time is owed in the order in which the shard itself serves them: who is further ahead owes more.
So the one that a division leaves out is never the one whose turn it is in its shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, bit_length, quotient, times
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.state import NO_BOUND

NOBODY = 1 << 62
_PART_BITS = 52
"""Of what all flows of a seat are ahead by, together."""


@dataclass(frozen=True, slots=True, eq=False)
class Debts:
    """What flows owe; arrays run over the flows of one level of scopes."""

    tokens: Int64s
    """Shape (n, 2)."""

    time: Int64s
    """In which their scopes earn what they owe."""

    @classmethod
    def of(
        cls,
        debt: Int64s,
        ahead: Int64s,
        weight: Int64s,
        seat: Int64s,
        scope: Int64s,
        clock: ScopeTime,
    ) -> Debts:
        """Divide debts among the flows of each seat.

        A flow owes as much as it is ahead of the others; what nobody is ahead by, all of the seat have had together.

        Parameters
        ----------
        debt
            Shape (seats, 2), not negative.
        ahead
            Shape (n, 2): how far each flow is ahead of the others of its shard.
        """
        weights = np.maximum(sums(seat, weight, len(debt)), 1)
        tokens = _divided(debt, ahead, weight[:, None], weights, seat)
        if not by_row(np.logical_and, clock.is_limited).any():
            return cls(tokens, clock.of(tokens, scope))
        owed_time = sums(seat, clock.of(tokens, scope), len(debt))[:, None]
        lead = clock.of(ahead, scope)[:, None]
        return cls(tokens, _divided(owed_time, lead, weight[:, None], weights, seat)[:, 0])


def _divided(debt: Int64s, ahead: Int64s, weight: Int64s, weights: Int64s, seat: Int64s) -> Int64s:
    known = owed_by_those_ahead(debt, ahead, seat)
    common = (debt - sums(seat, known, len(debt)))[seat]
    return known + common * weight // weights[seat][:, None]


def owed_by_those_ahead(debt: Int64s, ahead: Int64s, seat: Int64s) -> Int64s:
    """Return what every flow owes of its seat's debt, shape (n, k): no more than it is ahead, and in that proportion.

    Examples
    --------
    One flow is ahead by a large message, one by a small one; the other seat owes more than its flow is ahead by:

    >>> debt, ahead = np.array([[0, 55_000], [0, 9]]), np.array([[0, 59_000], [0, 1_000], [0, 7]])
    >>> owed_by_those_ahead(debt, ahead, np.array([0, 0, 1]))[:, 1].tolist()
    [54083, 916, 7]
    """
    bits = np.maximum(bit_length(ahead.max(axis=0, initial=0)) + len(ahead).bit_length() - _PART_BITS, 0)
    total = sums(seat, ahead >> bits, len(debt))
    known = np.minimum(debt >> bits, total) << bits
    return times(known[seat], quotient(ahead >> bits, total[seat], FACTOR_BITS))


def ahead_bound(ahead_milli: Int64s, time: Int64s, seat: Int64s, is_out: Bools, takes_part: Bools) -> Int64s:
    """Return the bounds on how far ahead a flow may be, between those that take part and those that are out.

    Parameters
    ----------
    ahead_milli, time
        Shape (n, 2): how far each flow is ahead for its weight, and in how much time it earns what it is ahead by.
    takes_part
        Of every seat: whether a flow that wants something does.

    Returns
    -------
    Int64s
        Shape (seats, 2), of a flow of weight 1; `NO_BOUND` where there is none.
    """
    bound = np.full((len(takes_part), 2), NO_BOUND, dtype=np.int64)
    out, stays = np.flatnonzero(is_out), np.flatnonzero(~is_out)
    is_dominant = time == time.max(axis=1, keepdims=True)
    np.minimum.at(bound, seat[out], np.where(is_dominant[out], ahead_milli[out], NO_BOUND))
    most = np.full_like(bound, -1)
    np.maximum.at(most, seat[stays], ahead_milli[stays])
    between = np.where(bound > most, most + (bound - most + 1) // 2, most + 1)
    return np.where((bound < NO_BOUND) & takes_part[:, None], between, NO_BOUND)
