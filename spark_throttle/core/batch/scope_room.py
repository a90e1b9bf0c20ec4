"""The room that a batch finds: what the flows' own balances and the shared scopes let pass, and which run short.

What rows take, and the room for it, is counted by resource (`layout.cost`). Where nothing is limited, room is larger
than any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.fair.filling import UNBOUNDED
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.limits.budgets import FIRST_BUDGET, BudgetClaims, Budgets, Spent
from spark_throttle.core.limits.token_bucket import room_before
from spark_throttle.core.names.matching import Matches, scopes_where
from spark_throttle.core.quota import Bools, CompiledPolicy, Dimension, Int64s, Limits


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The room left in the balances of flows, or of shared scopes."""

    before: Int64s
    """Shape (resources, n): the most that may go before a message, negative if none may; large where unlimited."""

    ends_by: Int64s | None = None
    """Shape (n, 4): what ends the room of each dimension, by its place in `DIMENSIONS`; `None` if nobody has a budget.
    """

    @classmethod
    def of(
        cls, balance_micro: Int64s, limits: Limits, resources: int, spent: Spent | None = None,
        claims: BudgetClaims | None = None,
    ) -> Room:  # fmt: skip
        """Return the room in balances, shape (n, 4), to which these limits apply, in the first dimensions.

        Parameters
        ----------
        spent
            What is used of the scopes' budgets; `None` if no scope has any.
        claims
            What may be used of them; `None` if this job has them to itself.
        """
        before = np.full((resources, len(balance_micro)), UNBOUNDED)
        for d in list(Dimension)[:resources]:
            is_limited = limits.rate_micro_per_ms[:, d] >= 0
            if is_limited.any():
                np.copyto(before[d], room_before(balance_micro[:, d], d), where=is_limited)
        budgets = None if spent is None else Budgets.of(limits, claims)
        if spent is None or budgets is None:
            return cls(before)
        ends_by = np.tile(np.arange(len(Dimension)), (before.shape[1], 1))
        for column, d, room in zip(budgets.columns, budgets.dimension, spent.rooms(budgets).T, strict=True):
            is_least = (room <= before[d]) & (room < UNBOUNDED)
            ends_by[is_least, d] = FIRST_BUDGET + column
            np.minimum(before[d], room, out=before[d])
        return cls(before, ends_by)

    def prefixes(self, layout: Layout, price_ns: Int64s | None) -> list[Int64s]:
        """Return how many first rows of each flow pass, by messages alone, by bytes too, and so on; large if all."""
        passing = np.full_like(self.before, UNBOUNDED)
        passing[0] = self.before[0] + 1
        for d, total in enumerate(layout.totals, start=1):
            within = layout.rows_within(self.before[d], total)
            np.copyto(passing[d], within, where=within < layout.segments.counts)
        if price_ns is not None:
            room_ns = self.before[Dimension.TIME]
            passed = np.where(room_ns < 0, 0, room_ns // np.maximum(price_ns, 1) + 1)
            np.copyto(passing[Dimension.TIME], passed, where=(price_ns > 0) | (room_ns < 0))
        return list(np.minimum.accumulate(passing))

    def less(self, costs: Int64s) -> Room:
        """Return the room that is left after so much is taken."""
        return Room(self.before - costs)

    def lacks(self, costs: Int64s) -> Bools:
        """Return whether there is less room than for so much."""
        lacks: Bools = costs[0] > self.before[0] + 1
        for need, room in zip(costs[1:], self.before[1:], strict=True):
            lacks |= (need > room) & (costs[0] > 0)
        return lacks

    @property
    def is_spent(self) -> Bools:
        """Whether no message passes, shape (n,)."""
        return np.logical_or.reduce(self.before < 0)

    def before_rows(self, is_counted: Bools, resources: int | None = None) -> Int64s:
        """Return how much may go before a row, -1 if none may, shape (resources, n); large if not counted.

        Parameters
        ----------
        resources
            How many of the first count; by default all.
        """
        before, out = self.before[:resources], np.full_like(self.before, UNBOUNDED)
        is_spent = np.logical_or.reduce(before < 0)
        out[:resources] = np.where(is_counted, np.where(is_spent, -1, before), UNBOUNDED)
        return out


def limited_scopes(matches: Matches, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of each flow that limit anything, shape (flows, levels), -1 where there is none."""
    return scopes_where(policy.shared.has_any, matches.shared_scope)


def taken_by(scope: Int64s, costs: Int64s, scopes: int) -> Int64s:
    """Return what flows take of their scopes, shape (resources, scopes); `scope` is -1 for none."""
    taken = np.zeros((len(costs), scopes + 1), dtype=np.int64)  # with one more position for no scope
    for column in scope.T:
        if column.max(initial=-1) >= 0:
            for to, each in zip(taken, costs, strict=True):
                np.add.at(to, column, each)
    return taken[:, :-1]


def is_short_of(scope: Int64s, costs: Int64s, room: Room) -> Bools:
    """Return whether each scope has less room than its flows want; `scope` has the shape (flows, levels)."""
    return room.lacks(taken_by(scope, costs, room.before.shape[1]))
