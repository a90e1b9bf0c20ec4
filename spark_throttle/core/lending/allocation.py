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

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import by_row, running_total, sums
from spark_throttle.core.quota import Bools, Int64s

PLENTY = 1 << 52
"""The available amount of a resource that the scope does not limit."""

MOST_STRETCH = 4 * WHOLE
"""The largest level: its product with a part stays in int64."""

_THOUSAND = 1000


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

    rows: Int64s
    """The positions in `demand` of the claims on scopes that run short, ordered by scope."""

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
        """Prepare claims; the arguments are those of `water_fill`."""
        wanted = sums(scope, demand, len(available))
        is_short: Bools = np.logical_or.reduce(wanted > available, axis=1)
        return cls.of_scopes(demand, weight, scope, available, is_short)

    @classmethod
    def of_scopes(
        cls,
        demand: Int64s,
        weight: Int64s,
        scope: Int64s,
        available: Int64s,
        is_short: Bools,
        stretch: Int64s | None = None,
    ) -> Filling:
        """Prepare claims, of which those on the scopes of `is_short` are cut to a level.

        Parameters
        ----------
        stretch
            Shape (scopes, 2): the factor at which the whole of a resource counts in a dominant share, in 2**-30ths and
            at most `MOST_STRETCH`; 0 for a resource that does not count. By default, both factors are 1.
        """
        rows = np.flatnonzero(is_short[scope])
        rows = rows[np.argsort(scope[rows], kind="stable")]
        whole = available.take(scope[rows], axis=0)
        capped = _capped(demand.take(rows, axis=0), whole)
        part = quotient(capped, whole, FACTOR_BITS, round_up=True)
        counted = part if stretch is None else -(-part * stretch.take(scope[rows], axis=0) >> FACTOR_BITS)
        share = -(-by_row(np.maximum, counted) // weight[rows])
        return cls(demand, rows, scope[rows], capped, part, share, len(available))

    def levels(self) -> Int64s:
        """Return, for every scope, the highest level that a claim reaches without giving out more than is available."""
        levels = np.full(self.scopes, MOST_STRETCH, dtype=np.int64)
        if len(self.rows):
            found, starts, counts = np.unique(self.scope, return_index=True, return_counts=True)
            reached = np.maximum.reduceat(self.share, starts)
            levels[found] = np.minimum(_level(self.part, self.share, starts, counts), reached)
        return levels

    def granted(self, levels: Int64s) -> Int64s:
        """Return the amounts that every claimant gets at the level of its scope, shape (n, 2)."""
        granted = self.demand.copy()
        level = levels[self.scope]
        factor = np.where(self.share <= level, WHOLE, (level << FACTOR_BITS) // np.maximum(self.share, 1))
        granted[self.rows] = times(self.capped, factor[:, None])
        return granted

    def passed(self, levels: Int64s) -> Int64s:
        """Return the amounts of every claim at a level that other claims set, even if they exceed what is available."""
        demand, share = self.demand.take(self.rows, axis=0), np.maximum(self.share, 1)
        times_whole, rest = np.divmod(levels[self.scope], share)
        most = demand // np.maximum(self.capped, 1)
        factor = (rest << FACTOR_BITS) // share
        passed = self.demand.copy()
        passed[self.rows] = self.capped * np.minimum(times_whole[:, None], most) + times(self.capped, factor[:, None])
        return np.minimum(passed, self.demand)


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
    shares = np.maximum(share, 1)

    def total(columns: Iterable[Int64s]) -> Int64s:
        return np.stack([np.add.reduceat(each, starts) for each in columns], axis=1)

    def given_out(levels: Int64s) -> Int64s:
        """Return what each scope gives out at a level, shape (scopes, 2)."""
        level = np.repeat(levels, counts)
        is_whole = share <= level
        return total(np.where(is_whole, each, -(-each * level // shares)) for each in part.T)

    def fits(given: Int64s) -> Bools:
        return by_row(np.logical_and, given <= WHOLE)

    # Where all claims fit, no level is too high: a single claim, for instance, was cut to the whole.
    has_all = fits(total(part.T))
    guess = np.where(has_all, MOST_STRETCH, _guessed_level(part, shares, starts, counts))
    slack = np.where(has_all, 0, 4 * counts + 16)
    # The amount given out grows with the level, so a bracket that is right at both ends contains the level.
    low, high = np.maximum(guess - slack, 0), np.minimum(guess + slack, MOST_STRETCH)
    of_low, of_high = given_out(low), given_out(np.minimum(high + 1, MOST_STRETCH))
    is_bracket = fits(of_low) & ((high == MOST_STRETCH) | ~fits(of_high))
    low, high = np.where(is_bracket, low, 0), np.where(is_bracket, high, MOST_STRETCH)
    of_low, of_high = np.where(is_bracket[:, None], of_low, 0), np.where(is_bracket[:, None], of_high, 4 * WHOLE)
    looks = 0
    while (low < high).any():
        middle = (low + high + 1) >> 1
        if looks % 3 < 2:  # between a bracket's ends, the amount grows almost evenly
            room, span = np.maximum(WHOLE - of_low, 0), np.maximum(of_high - of_low, 1)
            steps = by_row(np.minimum, room * np.minimum(high + 1 - low, 1 << 32)[:, None] // span)
            middle = np.clip(low + steps + (looks % 3), low + 1, np.maximum(high, low + 1))
        middle = np.where(low < high, np.minimum(middle, high), low)
        given = given_out(middle)
        does = fits(given)
        of_low, of_high = np.where(does[:, None], given, of_low), np.where(does[:, None], of_high, given)
        low, high = np.where(does, middle, low), np.where(does, high, middle - 1)
        looks += 1
    return low


def _guessed_level(part: Int64s, share: Int64s, starts: Int64s, counts: Int64s) -> Int64s:
    """Return each scope's level up to rounding: what claims below it leave, over what others take per unit of it."""
    scope = np.repeat(np.arange(len(starts)), counts)
    order = np.argsort(share, kind="stable") if len(starts) == 1 else np.lexsort((share, scope))
    share, first = share[order], starts[scope]
    levels = []
    for each in part.T:
        given, slope = each[order], (each[order] << FACTOR_BITS) // share
        taken, steepness = running_total(given)[:-1], running_total(slope)[:-1]
        taken -= taken[first]
        steepness -= steepness[first]
        rest = np.add.reduceat(slope, starts)[scope] - steepness
        levels.append((np.maximum(WHOLE - taken, 0) << FACTOR_BITS) // np.maximum(rest, 1))
    level = np.stack(levels, axis=1)
    # For each resource, the level at the first claimant whose share is above it.
    position = np.arange(len(share))[:, None]
    above = np.minimum.reduceat(np.where(level <= share[:, None], position, len(share)), starts, axis=0)
    found = np.where(
        above < len(share), np.take_along_axis(level, np.minimum(above, len(share) - 1), axis=0), MOST_STRETCH
    )
    return np.minimum.reduce(np.minimum(found, MOST_STRETCH), axis=1)


def divide_whole(total: int, claims: Int64s, *, turn: int, urgency: Int64s | None = None) -> Int64s:
    """Divide `total` whole units: each claim, rounded up while units last, and then equal parts of what is left.

    The most urgent fractions of a unit are rounded up first, by default the largest. The caller accounts for what
    rounding withheld (`shard_parts`), so no claim starves if there is one unit per turn. The sum is exact.

    Parameters
    ----------
    claims
        The claims, in thousandths of a unit; their sum is at most `total` units.
    turn
        A number that rotates the first place among equals.
    urgency
        The urgency of every claim, not negative.

    Examples
    --------
    >>> divide_whole(1, np.array([600, 400]), turn=0).tolist()
    [1, 0]
    >>> divide_whole(5, np.array([1_000, 1_000, 0]), turn=0).tolist()
    [2, 2, 1]
    """
    n = len(claims)
    whole, part = np.divmod(claims, _THOUSAND)
    rank = np.where(part > 0, 1 + (part if urgency is None else urgency), 0)
    rounded_up = max(-(-int(part.sum()) // _THOUSAND), min(int((part > 0).sum()), total - int(whole.sum())))
    whole[np.lexsort(((np.arange(n) - turn) % n, -rank))[:rounded_up]] += 1
    each, over = divmod(total - int(whole.sum()), n)
    whole += each
    whole[(turn + np.arange(over)) % n] += 1
    return whole
