"""Weighted max-min division: how much each claimant gets of the tokens that several of them want.

Two resources are divided at once, by dominant share. A claimant wants `demand` messages and bytes, in that
proportion: one part of the available messages, and one part of the available bytes. The larger part, divided by its
weight, is its dominant share. `water_fill` returns, for every scope, the allocation that a common level sets:

- a claimant whose dominant share is at most the level gets all that it wants;
- any other claimant gets its demand scaled down to the level, both resources alike;
- the level is the highest at which no more is given out of either resource than is available.

So no claimant can get more without taking it from one that has no more (Ghodsi et al., Dominant Resource Fairness,
2011; for one resource, max-min). A claimant that wants nothing of the resource that ran out stops at the level as well.

Levels are whole 2**-30ths of the available amount, and everything is rounded down. So a scope that runs short, with `n`
claimants whose weights sum to `w`, gives out all but ``4 n + w`` such parts of it and ``4 n`` units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, bit_length, quotient, times
from spark_throttle.core.arithmetic.segments import beside, by_row, in_order, once, replaced, rows_of, sums
from spark_throttle.core.quota import Bools, Int64s

PLENTY = 1 << 52
"""The available amount of a resource that the scope does not limit."""

MOST_STRETCH = 4 * WHOLE
"""The largest level: its product with a part stays in int64."""

_LOOKS = 8
"""After so many looks for a level, one look halves the levels that are left."""


def water_fill(demand: Int64s, weight: Int64s, scope: Int64s, available: Int64s) -> Int64s:
    """Return the amounts that every claimant gets.

    Parameters
    ----------
    demand
        Shape (n, 2): the amounts wanted, at most 2**50 each and 2**62 together, in any unit.
    weight
        Shape (n,): the weights, at least 1.
    scope
        Shape (n,): the scope that the claimant draws on, as a position in `available`.
    available
        Shape (scopes, 2): the available amounts, in the same unit; `PLENTY` where the resource is not limited.

    Examples
    --------
    Doorman's worked case: 120 for claims of 1000, 50 and 10 (weights alike) gives 60, 50, 10.

    >>> one = np.zeros(3, dtype=int)
    >>> claims = np.array([[1000, 0], [50, 0], [10, 0]]) * 1000
    >>> got = water_fill(claims, one + 1, one, np.array([[120_000, PLENTY]]))
    >>> np.round(got[:, 0] / 1000, 2).tolist()
    [60.0, 50.0, 10.0]
    """
    filling = Filling.of(demand, weight, scope, available)
    return filling.granted(filling.levels())


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """Claims on scopes, prepared for filling to a level; arrays run over the claims on scopes that run short."""

    demand: Int64s
    """Shape (n, 2): the demand of all claims."""

    rows: Int64s | None
    """The positions in `demand` of the claims on scopes that run short, ordered by scope; `None` if these are all."""

    scope: Int64s
    capped: Int64s
    """Shape (rows, 2): the demand, scaled down to at most the whole of a resource."""

    part: Int64s
    """Shape (rows, 2): the part that `capped` is of the available amount."""

    share: Int64s
    """The dominant share: the larger of the parts, divided by the weight."""

    scopes: int

    @classmethod
    def of(cls, demand: Int64s, weight: Int64s, scope: Int64s, available: Int64s) -> Filling:
        """Prepare claims, of which those on scopes that run short are cut to a level; arguments as in `water_fill`."""
        wanted = sums(scope, demand, len(available))
        is_short: Bools = np.logical_or.reduce(wanted > available, axis=1)
        is_taken = is_short[once(scope)]
        rows = None if is_taken.all() else np.flatnonzero(np.broadcast_to(is_taken, scope.shape))
        of_rows = scope if rows is None else scope[rows]
        if (of_rows[1:] < of_rows[:-1]).any():
            order = in_order(of_rows)
            rows, of_rows = order if rows is None else rows[order], of_rows[order]
        here = once(of_rows)
        whole = rows_of(available, here)
        capped = _capped(demand if rows is None else rows_of(demand, rows), whole)
        part = quotient(capped, whole, FACTOR_BITS, round_up=True)
        share, own = by_row(np.maximum, part), weight if rows is None else weight[rows]
        share = share if own.max(initial=1) == 1 else (share + (own - 1)) // own
        return cls(demand, rows, of_rows, capped, part, share, len(available))

    def levels(self) -> Int64s:
        """Return, for every scope, the highest level that a claim reaches without giving out more than is available."""
        levels = np.full(self.scopes, MOST_STRETCH, dtype=np.int64)
        if len(self.scope):
            starts = np.append(0, np.flatnonzero(self.scope[1:] != self.scope[:-1]) + 1)
            found, counts = self.scope[starts], np.diff(starts, append=len(self.scope))
            reached = np.maximum.reduceat(self.share, starts)
            levels[found] = np.minimum(_level(self.part, self.share, starts, counts), reached)
        return levels

    def granted(self, levels: Int64s) -> Int64s:
        """Return the amounts that every claimant gets at the level of its scope, shape (n, 2)."""
        share, level = np.maximum(self.share, 1), levels[once(self.scope)]
        factor = (np.minimum(level, share) << FACTOR_BITS) // share
        np.copyto(factor, WHOLE, where=self.share == 0)
        return self._with(times(self.capped, factor[:, None]))

    def _with(self, amounts: Int64s) -> Int64s:
        """Return the demand of all claims, with other amounts for those on scopes that run short."""
        return amounts if self.rows is None else replaced(self.demand, self.rows, amounts)


def _capped(demand: Int64s, whole: Int64s) -> Int64s:
    """Return each demand, scaled down in proportion where it is more than the whole of a resource."""
    is_over = demand > whole
    if not is_over.any():
        return demand
    # 60 bits for a ratio below 1, so that a long backlog in a slow scope keeps its proportion.
    ratio = np.where(is_over, quotient(np.minimum(demand, whole), demand, 2 * FACTOR_BITS), 1 << 2 * FACTOR_BITS)
    least = by_row(np.minimum, ratio)[:, None]
    high, low = least >> FACTOR_BITS, least & (WHOLE - 1)
    scaled = times(demand, high) + (times(demand, low) >> FACTOR_BITS)
    return np.where(is_over & (ratio == least), whole, scaled)


def _level(part: Int64s, share: Int64s, starts: Int64s, counts: Int64s) -> Int64s:
    """Return, for every scope, the highest level at which it gives out no more than it has."""
    shares, free = np.maximum(share, 1), np.flatnonzero(share == 0)
    ceiling = shares - 1

    def total(columns: Iterable[Int64s]) -> Int64s:
        return beside(*(np.add.reduceat(each, starts) for each in columns))

    def given_out(levels: Int64s) -> tuple[Int64s, Int64s]:
        """Return what each scope gives out at a level, shape (scopes, 2), and how much that grows per level."""
        level = np.minimum(levels if len(levels) == 1 else np.repeat(levels, counts), shares)
        level[free] = 1
        is_cut = level < shares
        given = [(each * level + ceiling) // shares for each in part.T]
        of_cut = total(each * is_cut for each in given)
        # Rounding up added half a unit to each claim that is cut, on average.
        rounded = np.add.reduceat(is_cut, starts, dtype=np.int64) >> 1
        return total(given), np.maximum(of_cut - rounded[:, None], 1)

    def fits(given: Int64s) -> Bools:
        return by_row(np.logical_and, given <= WHOLE)

    wanted = total(part.T)
    # Where all claims fit, no level is too high: a single claim, for instance, was cut to the whole.
    has_all = fits(wanted)
    low, high = np.where(has_all, MOST_STRETCH, 0), np.full_like(starts, MOST_STRETCH)
    mean = np.add.reduceat(share, starts) // counts
    middle = mean * WHOLE // np.maximum(by_row(np.maximum, wanted), 1)
    looks = 0
    while (low < high).any():
        middle = np.where(low < high, np.clip(middle, low + 1, high), low)
        given, of_cut = given_out(middle)
        does = fits(given)
        low, high = np.where(does, middle, low), np.where(does, high, middle - 1)
        looks += 1
        # The amount grows with the level, the slower the higher it is: its tangent leads to the level from below.
        rest = WHOLE - given
        surplus = np.maximum(bit_length(np.abs(rest)) - FACTOR_BITS, 0)
        steps = (rest >> surplus) * middle[:, None] // np.maximum(of_cut >> surplus, 1)
        middle = middle + by_row(np.minimum, steps) if looks % _LOOKS else low + high + 1 >> 1
    return low
