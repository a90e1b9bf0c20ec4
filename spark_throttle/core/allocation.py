"""Weighted max-min division: how much each claimant gets of what several of them want.

Two resources are divided at once, by dominant share. A claimant wants `demand` messages and bytes; its dominant share
is the larger of the two parts of what there is, divided by its weight. `water_fill` returns, for every scope, the allocation
that a common level sets:

- a claimant whose dominant share is at most the level gets all that it wants,
- any other gets its demand scaled down to the level, both resources alike,
- the level is the highest at which neither resource is given out twice.

So nobody can get more without taking it from one who has no more (Ghodsi et al., Dominant Resource Fairness, 2011;
for one resource, max-min). Levels are whole 2**-30ths of what there is, and everything is rounded down.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.quota import Int64s
from spark_throttle.core.segments import sums

PLENTY = 1 << 52
"""What a scope has of a resource that it does not limit."""

_BITS = 30
_WHOLE = 1 << _BITS
_WIDE = 1 << 33


def water_fill(demand: Int64s, weight: Int64s, scope: Int64s, available: Int64s) -> Int64s:
    """Return what every claimant gets.

    Parameters
    ----------
    demand
        Shape (n, 2), at most 2**50 each, in any unit.
    weight
        Shape (n,), at least 1.
    scope
        Shape (n,): the position in `available` that the claimant draws on.
    available
        Shape (scopes, 2), in the same unit; `PLENTY` where the resource is not limited.

    Examples
    --------
    Doorman's worked case: 120 for claims of 1000, 50 and 10 (weights alike) gives 60, 50, 10.

    >>> one = np.zeros(3, dtype=int)
    >>> claims = np.array([[1000, 0], [50, 0], [10, 0]]) * 1000
    >>> got = water_fill(claims, one + 1, one, np.array([[120_000, PLENTY]]))
    >>> np.round(got[:, 0] / 1000, 2).tolist()
    [60.0, 50.0, 10.0]
    """
    wanted = sums(scope, demand, len(available))
    is_short = (wanted > available).any(axis=1)
    granted = demand.copy()
    rows = np.flatnonzero(is_short[scope])
    if not len(rows):
        return granted
    order = rows[np.argsort(scope[rows], kind="stable")]
    scopes, starts = np.unique(scope[order], return_index=True)
    counts = np.diff(np.append(starts, len(order)))
    part = _part(np.minimum(demand[order], available[scope[order]]), available[scope[order]])
    share = -(-part.max(axis=1) // weight[order])
    level = _level(part, share, starts, counts)
    factor = np.where(share <= level, _WHOLE, (level << _BITS) // np.maximum(share, 1))[:, None]
    capped = np.minimum(demand[order], available[scope[order]])
    granted[order] = np.where(capped < _WIDE, (capped * factor) >> _BITS, ((capped >> 20) * factor) >> (_BITS - 20))
    return granted


def _part(amount: Int64s, whole: Int64s) -> Int64s:
    """Return `amount` in 2**-30ths of `whole`, rounded up; 0 of nothing."""
    divisor = np.maximum(whole, 1)
    part, rest = np.divmod(amount, divisor)
    for _ in range(3):
        digit, rest = np.divmod(rest << 10, divisor)
        part = (part << 10) + digit
    return part + (rest > 0)


def _level(part: Int64s, share: Int64s, starts: Int64s, counts: Int64s) -> Int64s:
    """Return, for every claimant, the highest level at which its scope gives out no more than it has."""
    low = np.zeros(len(starts), dtype=np.int64)
    high = np.full(len(starts), _WHOLE, dtype=np.int64)
    shares = np.maximum(share, 1)
    for _ in range(_BITS + 1):
        middle = (low + high + 1) >> 1
        level = np.repeat(middle, counts)
        at_level = np.where((share <= level)[:, None], part, part * level[:, None] // shares[:, None])
        fits = (np.add.reduceat(at_level, starts, axis=0) <= _WHOLE).all(axis=1)
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - 1)
    return np.repeat(low, counts)


def divide_whole(total: int, claims: Int64s, *, turn: int) -> Int64s:
    """Divide `total` whole units: to each its claim rounded down, then what is left, so that the sum is exact.

    What is left goes to the largest remainders first, then equally; `turn` rotates who is first among equals.

    Parameters
    ----------
    claims
        In thousandths of a unit; their sum is at most `total` units.

    Examples
    --------
    >>> divide_whole(5, np.array([1_500, 1_500, 0]), turn=0).tolist()
    [2, 2, 1]
    """
    n = len(claims)
    whole, rest = np.divmod(claims, 1000)
    left = total - int(whole.sum())
    turned = (np.arange(n) - turn) % n
    by_rest = np.lexsort((turned, -rest))[: min(left, int((rest > 0).sum()))]
    whole[by_rest] += 1
    each, over = divmod(left - len(by_rest), n)
    has_more = np.zeros(n, dtype=np.bool_)
    has_more[by_rest] = True
    whole += each
    whole[np.lexsort((turned, has_more))[:over]] += 1
    return whole
