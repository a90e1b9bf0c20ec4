"""A quota is divided between jobs by weighted max-min over what each of them wants.

Each job has a *seat* in every scope that it uses. Its demand there is a small histogram of its namespaces' demands and
weights (`demand_bins`), not one sum: with a sum, a namespace would be worse off for living in a busier job. Rates are
micro-tokens per millisecond, by `Dimension`.

`max_min` is this project's own: weighted max-min over demand (`allocation.water_fill`), with the tokens that nobody
wants handed out equally, as headroom. It is a pure function of the jobs' reports, so all jobs with the same reports
compute the same parts. The parts sum to no more than the quota, and are right at once after a change of demand.
PIP-82's own policies are in `sharing.pip82`.

Source: PIP-82, "Example of usage distribution".
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import bit_length, quotient
from spark_throttle.core.arithmetic.segments import Segments, sums
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.shares.allocation import PLENTY, water_fill

_EXACT_FLOWS = 16
"""A scope with at most this many flows has a bin for each of them."""

_BINS = 64
_BINS_AN_OCTAVE_BITS = 2
"""Four bins per doubling of the share: the shares of a bin's flows differ by at most a quarter."""

_SHARE_BITS = 30


def demand_bins(scope: Int64s, demand: Int64s, weight: Int64s, available: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the histogram of every scope's flows: the scope, the demand and the weight of each bin.

    A scope's flows are ordered by their dominant share over their weight, the order in which a rising level satisfies
    them. Up to 16 flows keep a bin each. If there are more, the flows above the level that they would reach alone share
    one bin, as no level will satisfy any of them; below it, a bin spans a quarter of an octave, and the last bin takes
    the rest. A level between two bins divides exactly as it would by flows.

    Parameters
    ----------
    scope, demand, weight
        The scope, the demand and the weight of every flow; `demand` has the shape (n, 2).
    available
        Shape (scopes, 2): the quotas.

    Examples
    --------
    >>> flows = np.zeros(3, dtype=int), np.array([[5, 0], [70, 0], [5, 0]]), np.array([1, 2, 1])
    >>> scope, demand, weight = demand_bins(*flows, np.array([[100, PLENTY]]))
    >>> demand[:, 0].tolist(), weight.tolist()
    ([5, 5, 70], [1, 1, 2])
    """
    whole = available.take(scope, axis=0)
    share = _share(demand, weight, whole)
    order = np.lexsort((share, scope))
    laid = Segments.by_key(scope[order], len(available))
    step = laid.rank
    if (laid.counts > _EXACT_FLOWS).any():
        top = np.zeros(len(available), dtype=np.int64)
        np.maximum.at(top, scope, _share(water_fill(demand, weight, scope, available), weight, whole))
        below = _quarter_octave(top)[scope] - _quarter_octave(share)
        binned = _BINS - np.clip(below, 0, _BINS - 1)
        step = np.where(laid.counts[laid.key] <= _EXACT_FLOWS, step, binned[order])
    scope, demand, weight = scope[order], demand.take(order, axis=0), weight[order]
    starts = np.ones(len(scope), dtype=np.bool_)
    starts[1:] = (scope[1:] != scope[:-1]) | (step[1:] != step[:-1])
    bins = np.cumsum(starts) - 1
    count = int(bins[-1]) + 1 if len(bins) else 0
    return scope[starts], sums(bins, demand, count), sums(bins, weight, count)


def _share(demand: Int64s, weight: Int64s, whole: Int64s) -> Int64s:
    """Return the dominant shares, divided by the weights and rounded up."""
    return -(-quotient(np.minimum(demand, whole), whole, _SHARE_BITS).max(axis=1) // weight)


def _quarter_octave(share: Int64s) -> Int64s:
    """Return the number of the quarter octave that each share lies in."""
    octave = bit_length(np.maximum(share, 1))
    lead = (np.maximum(share, 1) << _SHARE_BITS) >> octave
    return (octave << _BINS_AN_OCTAVE_BITS) + (lead >> (_SHARE_BITS - 1 - _BINS_AN_OCTAVE_BITS))


def max_min(
    seat_scope: Int64s,
    floor: Int64s,
    bin_seat: Int64s,
    demand: Int64s,
    weight: Int64s,
    available: Int64s,
    rank: Int64s | None = None,
) -> Int64s:
    """Return the part of every seat, shape (seats, 2).

    Parameters
    ----------
    seat_scope
        Shape (seats,): the scope of every seat, as a position in `available`.
    floor
        Shape (seats, 2): the least that a seat gets; the floors of a scope sum to at most what is available.
    bin_seat, demand, weight
        The histograms: the seat of every bin, the demand of its namespaces, shape (bins, 2), and their weight.
    available
        Shape (scopes, 2): the quotas; `PLENTY` where there is no limit.
    rank
        The order of the seats in which those that want something and would get nothing, as parts are rounded down, get
        a unit each of what the rounding leaves. By default nobody gets it.

    Examples
    --------
    PIP-82's fairness example: two jobs that each want 70 of a quota of 100 get half of it each, whatever they used
    before; a job that wants 10 leaves the rest to the other.

    >>> def parts(*demands, floor=0):
    ...     seats, wanted = np.arange(len(demands)), np.array([[d * 1000, 0] for d in demands])
    ...     got = max_min(0 * seats, 0 * wanted + floor, seats, wanted, 0 * seats + 1, np.array([[100_000, PLENTY]]))
    ...     return np.round(got[:, 0] / 1000, 1).tolist()
    >>> parts(70, 70), parts(10, 200)
    ([50.0, 50.0], [10.0, 90.0])

    What nobody wants is headroom; a floor is kept for a job that wants nothing yet:

    >>> parts(10, 30), parts(90, 90, 0, floor=5_000)
    ([40.0, 60.0], [47.5, 47.5, 5.0])

    Three seats want two units, of which nobody has a whole part:

    >>> seats, ones = np.arange(3), np.ones((3, 2), dtype=np.int64)
    >>> quota = np.array([[2, PLENTY]])
    >>> max_min(0 * seats, 0 * ones, seats, 9 * ones, 0 * seats + 1, quota, seats)[:, 0].tolist()
    [1, 1, 0]
    """
    seats = len(seat_scope)
    lifted = np.zeros((seats, 2), dtype=np.bool_)
    part = np.zeros((seats, 2), dtype=np.int64)
    open_scopes = np.ones(len(available), dtype=np.bool_)
    while True:
        rows = np.flatnonzero(open_scopes[seat_scope])
        fixed = np.where(lifted, floor, -1)
        part[rows] = _filled(seat_scope, fixed, bin_seat, demand, weight, available, open_scopes, rank)
        short = (part < floor) & ~lifted
        if not short.any():
            return part
        # A seat that is lifted to its floor leaves less to the others, which may bring more of them below their floors.
        lifted |= short
        open_scopes[:] = False
        open_scopes[seat_scope[short.any(axis=1)]] = True


def _filled(  # noqa: PLR0913, PLR0917 - the histograms and what bounds them
    seat_scope: Int64s,
    fixed: Int64s,
    bin_seat: Int64s,
    demand: Int64s,
    weight: Int64s,
    available: Int64s,
    is_open: Bools,
    rank: Int64s | None,
) -> Int64s:
    """Return the parts of the seats of open scopes, after those that are `fixed` (-1 where they are not) are served."""
    rows = np.flatnonzero(is_open[seat_scope])
    scope, fixed = seat_scope[rows], fixed.take(rows, axis=0)
    is_fixed = fixed >= 0
    left = np.maximum(available - sums(scope, np.where(is_fixed, fixed, 0), len(available)), 0)
    left = np.where(available == PLENTY, PLENTY, left)
    position = np.full(len(seat_scope), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    bins = np.flatnonzero(position[bin_seat] >= 0)
    seat = position[bin_seat[bins]]
    wanted = np.where(is_fixed.take(seat, axis=0), 0, demand.take(bins, axis=0))
    part = sums(seat, water_fill(wanted, weight[bins], scope[seat], left), len(rows))
    spare = np.maximum(left - sums(scope, part, len(available)), 0)
    sharers = sums(scope, (~is_fixed).astype(np.int64), len(available))
    part += (spare // np.maximum(sharers, 1)).take(scope, axis=0)
    if rank is not None:
        rest = np.where(left == PLENTY, 0, spare - spare // np.maximum(sharers, 1) * sharers)
        hungry = ~is_fixed & (part == 0) & (sums(seat, wanted, len(rows)) > 0) & (rest > 0).take(scope, axis=0)
        for dimension in np.flatnonzero(hungry.any(axis=0)):
            each = np.flatnonzero(hungry[:, dimension])
            each = each[np.lexsort((rank[rows[each]], scope[each]))]
            turn = Segments.by_key(scope[each], len(available)).rank
            part[each, dimension] += turn < rest[scope[each], dimension]
    return np.where(is_fixed, fixed, part)
