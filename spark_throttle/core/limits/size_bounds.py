"""A message is bounded in size by its namespace's own rule, its tenant, its group and the job.

A row larger than the least of those bounds is rejected before it is charged anywhere, because one message can put all
who share a quota into debt for hours. Only arrivals are tested: a row that is already queued waits on, whatever bound
comes later. An observing scope rejects nothing. It marks the admitted rows that it would have rejected, and such a row
puts it no further into debt than the largest message that it lets pass would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.names.matching import Matches
from spark_throttle.core.quota import MAX_SIZE_BYTES, MICRO, CompiledPolicy, Dimension, Int64s, Limits, OnExcess


@dataclass(frozen=True, slots=True, eq=False)
class OversizedRows:
    """The rows that are larger than a bound."""

    row: Int64s
    """The positions of the rows, ascending."""

    level: Int64s
    """The `Level` of the scope that sets the bound."""

    scope: Int64s
    """The shared scope that sets the bound, -1 for the namespace itself."""

    @classmethod
    def none(cls) -> OversizedRows:
        """Return an empty set of rows."""
        return cls(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


def oversized(
    flow: Int64s, size_bytes: Int64s, matches: Matches, policy: CompiledPolicy, *, observed: bool
) -> OversizedRows:
    """Return the rows that are larger than the least bound of the scopes that enforce, or of those that observe.

    Parameters
    ----------
    flow
        The flow of every row, as a position in `matches`; -1 for a row that passes no scope.
    observed
        Whether to ask the scopes that observe, rather than those that enforce.
    """
    own = None
    if "max_message_bytes" in policy.namespace_limits.settings:
        own = _bounds(matches.own_limits(policy), observed=observed)
    shared = _bounds(policy.shared, observed=observed)
    if own is None and shared is None:
        return OversizedRows.none()
    bounds = np.full((len(matches.rule) + 1, 4), MAX_SIZE_BYTES)
    if own is not None:
        bounds[:-1, 0] = own
    if shared is not None:
        bounds[:-1, 1:] = np.append(shared, MAX_SIZE_BYTES)[matches.shared_scope]
    # Of equal bounds, the first: the columns are ordered by `Level`, the narrowest first.
    level = bounds.argmin(axis=1)
    row = np.flatnonzero(size_bytes > bounds.min(axis=1)[flow])
    at = flow[row]
    scopes = np.concatenate([np.full((len(matches.rule), 1), -1), matches.shared_scope], axis=1)
    return OversizedRows(row, level[at], scopes[at, level[at]])


def _bounds(limits: Limits, *, observed: bool) -> Int64s | None:
    """Return the bounds of the scopes that observe, or of the others; `None` if none of them has one."""
    column = limits.settings.get("max_message_bytes")
    if column is None:
        return None
    is_asked = (limits.on_excess == OnExcess.OBSERVE) == observed
    bounds = np.where(is_asked, np.minimum(column, MAX_SIZE_BYTES), MAX_SIZE_BYTES)
    return bounds if (bounds < MAX_SIZE_BYTES).any() else None


def bounded_floor(floor_micro: Int64s, balance_micro: Int64s, limits: Limits) -> Int64s:
    """Return the floors of debts, shape (n, 3), raised where an observing scope bounds the size of a message."""
    bounds = _bounds(limits, observed=True)
    if bounds is None:
        return floor_micro
    deepest = -np.maximum(limits.burst_micro[:, Dimension.BYTES], bounds * MICRO)
    raised = floor_micro.copy()
    at = np.flatnonzero(bounds < MAX_SIZE_BYTES)
    by_bound = np.minimum(balance_micro[at, Dimension.BYTES], deepest[at])
    raised[at, Dimension.BYTES] = np.maximum(raised[at, Dimension.BYTES], by_bound)
    return raised
