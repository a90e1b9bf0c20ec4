"""A message is bounded in bytes and in units by its namespace's own rule, its tenant, its group and the job.

A row larger than the least of those bounds is rejected before it is charged anywhere, because one message can put all
who share a quota into debt for hours. Only arrivals are tested: a row that is already queued waits on, whatever bound
comes later. An observing scope rejects nothing. It marks the admitted rows that it would have rejected, and such a row
puts it no further into debt than the largest message that it lets pass would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.names.matching import Matches
from spark_throttle.core.quota import (
    AMOUNTS,
    BOUNDS_OF_AMOUNTS,
    MICRO,
    MOST_OF_AMOUNTS,
    CompiledPolicy,
    Int64s,
    Limits,
    OnExcess,
)


@dataclass(frozen=True, slots=True, eq=False)
class OversizedRows:
    """The rows that are larger than a bound."""

    row: Int64s
    """The positions of the rows, ascending."""

    level: Int64s
    """The `Level` of the scope that sets the bound."""

    scope: Int64s
    """The shared scope that sets the bound, -1 for the namespace itself."""

    dimension: Int64s
    """What of the row is too much: one of `AMOUNTS`."""

    @classmethod
    def none(cls) -> OversizedRows:
        """Return an empty set of rows."""
        return cls(*(np.zeros(0, dtype=np.int64) for _ in range(4)))

    def take(self, at: Int64s) -> OversizedRows:
        """Return those at `at`, in that order."""
        return OversizedRows(self.row[at], self.level[at], self.scope[at], self.dimension[at])


def oversized(
    flow: Int64s, amounts: Sequence[Int64s], matches: Matches, policy: CompiledPolicy, *, observed: bool
) -> OversizedRows:
    """Return the rows that are larger than the least bound of the scopes that enforce, or of those that observe.

    A row that is too large in bytes and in units is too large in bytes.

    Parameters
    ----------
    flow
        The flow of every row, as a position in `matches`; -1 for a row that passes no scope.
    amounts
        What the rows have of `AMOUNTS`.
    observed
        Whether to ask the scopes that observe, rather than those that enforce.
    """
    found = [_beyond(at, flow, amount, matches, policy, observed=observed) for at, amount in enumerate(amounts)]
    large = [each for each in found if len(each.row)]
    if len(large) < 2:
        return large[0] if large else OversizedRows.none()
    columns = (np.concatenate([getattr(each, name) for each in large]) for name in OversizedRows.__slots__)
    both = OversizedRows(*columns)
    return both.take(np.unique(both.row, return_index=True)[1])


def _beyond(
    at: int, flow: Int64s, amount: Int64s, matches: Matches, policy: CompiledPolicy, *, observed: bool
) -> OversizedRows:
    """Return the rows with too much of one of `AMOUNTS`."""
    own, most = None, MOST_OF_AMOUNTS[at]
    if BOUNDS_OF_AMOUNTS[at] in policy.namespace_limits.settings:
        own = _bounds(at, matches.own_limits(policy), observed=observed)
    shared = _bounds(at, policy.shared, observed=observed)
    if own is None and shared is None:
        return OversizedRows.none()
    bounds = np.full((len(matches.rule) + 1, 4), most)
    if own is not None:
        bounds[:-1, 0] = own
    if shared is not None:
        bounds[:-1, 1:] = np.append(shared, most)[matches.shared_scope]
    # Of equal bounds, the first: the columns are ordered by `Level`, the narrowest first.
    level = bounds.argmin(axis=1)
    row = np.flatnonzero(amount > bounds.min(axis=1)[flow])
    of = flow[row]
    scopes = np.concatenate([np.full((len(matches.rule), 1), -1), matches.shared_scope], axis=1)
    return OversizedRows(row, level[of], scopes[of, level[of]], np.full(len(row), AMOUNTS[at], dtype=np.int64))


def _bounds(at: int, limits: Limits, *, observed: bool) -> Int64s | None:
    """Return the bounds of the scopes that observe, or of the others; `None` if none of them has one."""
    column, most = limits.settings.get(BOUNDS_OF_AMOUNTS[at]), MOST_OF_AMOUNTS[at]
    if column is None:
        return None
    is_asked = (limits.on_excess == OnExcess.OBSERVE) == observed
    bounds = np.where(is_asked, np.minimum(column, most), most)
    return bounds if (bounds < most).any() else None


def bounded_floor(floor_micro: Int64s, balance_micro: Int64s, limits: Limits) -> Int64s:
    """Return the floors of debts, shape (n, 4), raised where an observing scope bounds the size of a message."""
    raised = floor_micro
    for at, (dimension, most) in enumerate(zip(AMOUNTS, MOST_OF_AMOUNTS, strict=True)):
        bounds = _bounds(at, limits, observed=True)
        if bounds is not None:
            raised = raised.copy() if raised is floor_micro else raised
            deepest = -np.maximum(limits.burst_micro[:, dimension], bounds * MICRO)
            scopes = np.flatnonzero(bounds < most)
            by_bound = np.minimum(balance_micro[scopes, dimension], deepest[scopes])
            raised[scopes, dimension] = np.maximum(raised[scopes, dimension], by_bound)
    return raised
