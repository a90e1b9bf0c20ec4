"""What rows really cost is charged in place of the estimate, at all their scopes, as soon as it is known.

Processing time is measured after a batch (`measured_time`), and the units of a row may be told long after it left
(`reservations`). Both are corrected here, in the same way. A bucket that was charged an estimate is charged the
difference as of the last batch: before it earns anything more. So a scope may end in debt, and repays it. What is given
back fills a bucket up to its burst, and the refill that follows cuts what is beyond.

The first batch that decides afterwards corrects the fair order too (`CorrectedRows`). What rows cost more counts there
as if it had just left, so the others go first until they had as much. What rows cost less goes first to whom it was
charged. It counts only if that batch is short of the resource: else nobody has less of it by the error. Nor does what
is given back to a full bucket: nobody has those tokens. What a guarantee has left is not corrected: it goes by the
estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.limits.budgets import Budgets, Spent
from spark_throttle.core.limits.token_bucket import full, in_micro
from spark_throttle.core.names.matching import SHARED_LEVELS, match, positions_in
from spark_throttle.core.quota import MIN_BALANCE_MICRO, CompiledPolicy, Dimension, Int64s, Limits, OnExcess

if TYPE_CHECKING:
    from spark_throttle.core.state import DeciderState, Flows


@dataclass(frozen=True, slots=True, eq=False)
class Owed:
    """What was used of one dimension beyond the estimate, negative where less was, by namespace and by shared scope."""

    dimension: Dimension
    names: pa.StringArray
    """The namespaces, each once."""

    own: Int64s
    """Shape (n,)."""

    shared: Int64s
    """Shape (scopes,)."""

    own_in_windows: Int64s | None = None
    """Shape (n, periods), by `Period`: what of `own` counts in the windows of budgets that are in force. `None` if the
    dimension has no budgets."""

    shared_in_windows: Int64s | None = None
    """Shape (scopes, periods): the same of `shared`."""


@dataclass(frozen=True, slots=True, eq=False)
class CorrectedRows:
    """Rows that left in earlier batches and turned out to cost other than they were charged; arrays run over entries.

    A namespace may have several entries, each of some of its rows.
    """

    dimension: Int64s
    """The `Dimension` of what is corrected."""

    flow: Int64s
    """The position of the namespace in `state.Flows`."""

    messages: Int64s
    """How many rows the entry is of."""

    charged: Int64s
    cost: Int64s
    lost: Int64s
    """Shape (entries, 3), by `SHARED_LEVELS`: what of the difference the bucket of the scope had no room for."""

    @classmethod
    def of(
        cls,
        dimension: Dimension,
        flow: Int64s,
        messages: Int64s,
        charged: Int64s,
        cost: Int64s,
        lost: Int64s | None = None,
    ) -> CorrectedRows:
        """Return entries of one dimension; by default nothing is lost."""
        lost = np.zeros((len(flow), len(SHARED_LEVELS)), dtype=np.int64) if lost is None else lost
        return cls(np.full(len(flow), dimension, dtype=np.int64), flow, messages, charged, cost, lost)

    def with_more(self, more: CorrectedRows | None) -> CorrectedRows:
        """Return these entries and others."""
        if more is None:
            return self
        pairs = ((getattr(self, each.name), getattr(more, each.name)) for each in fields(self))
        return CorrectedRows(*(np.concatenate(pair) for pair in pairs))


def with_owed(state: DeciderState, owed: Owed, policy: CompiledPolicy) -> DeciderState:
    """Return the state that the last batch left under a policy, with what is owed charged.

    Its flows have all namespaces to which anything is owed.
    """
    flows = _with_flows_of(state.flows, owed.names, policy)
    at, own = positions_in(flows.names, owed.names), match(owed.names, policy).own_limits(policy)
    balance, spent = flows.balance_micro.copy(), flows.spent
    before = balance.take(at, axis=0)
    balance[at] = corrected_balances(before, in_dimension(owed.own, owed.dimension), own)
    if spent is not None and owed.own_in_windows is not None:
        told = _corrected_spent(spent.take(at), owed.own_in_windows, owed.dimension, Budgets.of(own))
        spent = spent.with_those(at, told)
    shared, scopes = state.shared, policy.shared
    left = corrected_balances(shared.balance_micro, in_dimension(owed.shared, owed.dimension), scopes)
    shared_spent = shared.spent
    if shared_spent is not None and owed.shared_in_windows is not None:
        budgets = Budgets.of(scopes, shared.claims)
        shared_spent = _corrected_spent(shared_spent, owed.shared_in_windows, owed.dimension, budgets)
    return replace(
        state,
        flows=replace(flows, balance_micro=balance, spent=spent),
        shared=replace(shared, balance_micro=left, spent=shared_spent),
    )


def in_dimension(amounts: Int64s, dimension: Dimension) -> Int64s:
    """Return amounts of one dimension, shape (n,), in the form of all of them: 0 in the others."""
    found = np.zeros((len(amounts), len(Dimension)), dtype=np.int64)
    found[:, dimension] = amounts
    return found


def corrected_balances(balance_micro: Int64s, owed: Int64s, limits: Limits) -> Int64s:
    """Return balances less what was used beyond the estimate, both by `Dimension`.

    What a scope that observes is overdrawn by is no debt: it owes one burst at most.

    Examples
    --------
    A second of half a core that holds 0.5 s, and a batch that was estimated at nothing and took 1.5 s:

    >>> rates, bursts = (in_dimension(np.array([each]), Dimension.TIME) for each in (500_000, 500_000_000))
    >>> owed = in_dimension(np.array([1_500_000_000]), Dimension.TIME)
    >>> for on_excess in (OnExcess.DELAY, OnExcess.OBSERVE):
    ...     limits = Limits(rates, bursts, np.array([on_excess]), np.array([1]))
    ...     corrected_balances(bursts, owed, limits)[0, Dimension.TIME].tolist()
    -1000000000
    -500000000
    """
    is_observing = (limits.on_excess == OnExcess.OBSERVE)[:, None]
    least_micro = np.where(is_observing, -limits.burst_micro, MIN_BALANCE_MICRO)
    owed_micro = np.sign(owed) * in_micro(np.abs(owed))
    left_micro = np.maximum(balance_micro - owed_micro, np.minimum(least_micro, balance_micro))
    return np.where(limits.is_limited, left_micro, balance_micro)


def _corrected_spent(spent: Spent, owed: Int64s, dimension: Dimension, budgets: Budgets | None) -> Spent:
    """Return what is spent of budgets, of which those of a dimension are owed something.

    Parameters
    ----------
    owed
        Shape (n, periods).
    """
    if budgets is None:
        return spent
    of_column = np.where(budgets.dimension == dimension, owed.take(budgets.period, axis=1), 0)
    return spent.corrected(of_column, budgets)


def _with_flows_of(flows: Flows, names: pa.StringArray, policy: CompiledPolicy) -> Flows:
    """Return the flows, and behind them full ones of those names that are not remembered."""
    new = names.filter(pc.invert(pc.is_in(names, value_set=flows.names)))
    if not len(new):
        return flows
    limits = match(new, policy).own_limits(policy)
    balance_micro = np.concatenate([flows.balance_micro, full(limits.rate_micro_per_ms, limits.burst_micro)])
    return replace(flows.with_new(new), balance_micro=balance_micro)
