"""The rows behind the admitted ones of their flow: they wait, or are rejected.

The scope that stopped a flow decides for the rows behind. Where it rejects, these rows wait all the same:

- rows that are queued: a row that once waits has its verdict;
- rows behind one that a release time holds: time stopped that flow, not a scope;
- rows that a shared scope stopped of which the job has no share yet: what it offers is not beyond the quota.

Where rows for an unavailable destination are given up, all of them that are not admitted to ask with are rejected.

Their layout follows how fast they are likely to leave, which no decision depends on: a namespace's rows leave at the
rate of the scope that stopped it, divided by weight among the namespaces that this scope stopped. That is what the next
batches do as long as the same namespaces wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.batch.arrivals import MicroBatch
from spark_throttle.core.batch.decisions import Causes, DecisionDraft, Int8s, Reason
from spark_throttle.core.batch.flow_plan import FlowPlan
from spark_throttle.core.fair.layout import Candidates
from spark_throttle.core.limits.budgets import BudgetClaims, Budgets, Spent
from spark_throttle.core.limits.token_bucket import in_micro, throttle_time_ms
from spark_throttle.core.names.matching import enforcing_scopes
from spark_throttle.core.quota import NEVER_MS, Bools, Dimension, Int64s, Level, Limits, OnExcess, Verdict

FREE_MICRO_PER_MS: Final = 1 << 50
"""The pace of a namespace that no quota stopped: a release time holds its rows."""


def leaving_pace(plan: FlowPlan, batch: MicroBatch) -> Int64s:
    """Return the messages that are likely to leave of each flow, in micro-messages per ms; shape (flows,)."""
    stops, policy, limits = plan.outcome.stops, batch.policy, batch.entered.limits
    flows, dimension = np.arange(len(stops.scope)), np.maximum(stops.dimension, 0)
    pace = np.maximum(limits.rate_micro_per_ms, 0)[flows, dimension]
    weight = batch.weights_in(stops.scope)
    is_shared = stops.scope >= 0
    at, scope = np.flatnonzero(is_shared), stops.scope[is_shared]
    together = sums(scope, weight[at], len(policy.shared))[scope]
    in_force = np.maximum(batch.shared.expected_micro_per_ms(policy), 0)
    # What a scope that is shut holds back leaves in turns when it opens, as what a slow one holds back does.
    pace[at] = np.maximum(proportional(in_force[scope, dimension[at]], weight[at], together), 1)
    waiting = in_micro(plan.outcome.wanted - plan.outcome.served)
    by_other = np.flatnonzero(stops.dimension > Dimension.MESSAGES)
    messages, other = waiting[by_other, Dimension.MESSAGES], waiting[by_other, stops.dimension[by_other]]
    in_messages = proportional(pace[by_other], messages, np.where(other > 0, other, messages))
    pace[by_other] = np.minimum(np.maximum(in_messages, pace[by_other] > 0), FREE_MICRO_PER_MS)
    pace[stops.level < 0] = FREE_MICRO_PER_MS
    return pace


@dataclass(frozen=True, slots=True, eq=False)
class ThrottleTimes:
    """How long each bucket earns until its balance is not negative any more, and each budget is spent."""

    own_ms: Int64s
    """Shape (flows, 4)."""

    shared_ms: Int64s
    """Shape (scopes, 4)."""

    edges: tuple[Int64s, Int64s] | None = None
    """The part of both that is the time until a budget begins anew, of the same shapes; `None` if none is spent."""

    @classmethod
    def of(cls, plan: FlowPlan, batch: MicroBatch) -> ThrottleTimes:
        """Return the times after the debits of a batch."""
        limits, shared = batch.entered.limits, batch.policy.shared
        own_ms = throttle_time_ms(plan.balance_micro, limits.rate_micro_per_ms)
        shared_ms = plan.shared.wait_ms(batch.policy)
        edges = _edges_ms(plan.spent, limits, batch), _edges_ms(plan.shared.spent, shared, batch, plan.shared.claims)
        if not any(each.any() for each in edges):
            return cls(own_ms, shared_ms)
        return cls(np.maximum(own_ms, edges[0]), np.maximum(shared_ms, edges[1]), edges)

    def of_flows(self, batch: MicroBatch) -> Int64s:
        """Return how long any of the scopes that hold a flow back owes anything, shape (flows,)."""
        return _longest_ms(self.own_ms, self.shared_ms, batch)

    def edges_of_flows(self, batch: MicroBatch) -> Int64s:
        """Return how long any budget that holds a flow back is spent, shape (flows,)."""
        if self.edges is None:
            return np.zeros(len(self.own_ms), dtype=np.int64)
        return _longest_ms(*self.edges, batch)

    def behind(self, flow: Int64s, before_micro: Int64s, plan: FlowPlan, batch: MicroBatch) -> Int64s:
        """Return how long until it is the turn of rows that others of their flow go before, shape (rows,).

        The namespace and each of its scopes repay what they owe, and what goes before the row. Those up to the scope
        that stopped the flow do it at the part of their rate that the flow has by weight, among all that the batch
        stopped; a wider one, too, gives that scope's tokens out.

        Parameters
        ----------
        before_micro
            Shape (4, rows): the tokens of the rows that go before.
        """
        limits, shared = batch.entered.limits, batch.policy.shared
        wait_ms = np.zeros(len(flow), dtype=np.int64)
        for d in np.flatnonzero(limits.is_enforced.any(axis=0)):
            own_ms = throttle_time_ms(
                plan.balance_micro[:, d][flow] - before_micro[d], limits.rate_micro_per_ms[flow, d]
            )
            np.maximum(wait_ms, np.where(limits.is_enforced[flow, d], own_ms, 0), out=wait_ms)
        which = np.flatnonzero(shared.is_enforced.any(axis=0))
        scopes = enforcing_scopes(batch.entered.matches.shared_scope, batch.policy)
        if (scopes >= 0).any():
            expected, before_micro = batch.shared.expected_micro_per_ms(batch.policy), before_micro[which]
            given_out: Iterator[Int64s] = repeat(before_micro)
            if plan.contest is not None:
                given_out = plan.contest.given_out(flow, before_micro, plan.outcome.stops)
            for scope, taken_micro in zip(scopes.T, given_out, strict=False):
                of_row, is_limited = scope[flow], shared.is_enforced[scope] & (scope >= 0)[:, None]
                for d, taken in zip(which, taken_micro, strict=True):
                    if is_limited[:, d].any():
                        left_ms = throttle_time_ms(plan.shared.balance_micro[of_row, d] - taken, expected[of_row, d])
                        np.maximum(wait_ms, np.where(is_limited[flow, d], left_ms, 0), out=wait_ms)
        return wait_ms

    def at(self, flow: Int64s, scope: Int64s, dimension: Int64s) -> Int64s:
        """Return the times of these shared scopes, and of the flows themselves where the scope is -1."""
        return np.where(scope >= 0, self.shared_ms[scope, dimension], self.own_ms[flow, dimension])


def _edges_ms(spent: Spent | None, limits: Limits, batch: MicroBatch, claims: BudgetClaims | None = None) -> Int64s:
    budgets = None if spent is None else Budgets.of(limits)
    if spent is None or budgets is None:
        return np.zeros((len(limits), len(Dimension)), dtype=np.int64)
    return spent.wait_ms(budgets, batch.windows, batch.now_ms, claims)


def _longest_ms(own_ms: Int64s, shared_ms: Int64s, batch: MicroBatch) -> Int64s:
    """Return the longest of the times of the scopes that hold each flow back."""
    own_ms = by_row(np.maximum, np.where(batch.entered.limits.may_hold[:, None], own_ms, 0))
    of_scope = np.append(by_row(np.maximum, shared_ms), 0)
    scopes = enforcing_scopes(batch.entered.matches.shared_scope, batch.policy)
    return np.maximum(own_ms, by_row(np.maximum, of_scope[scopes]))


@dataclass(frozen=True, slots=True, eq=False)
class RowsBehind:
    """The candidates that are not admitted, and what becomes of each of them."""

    at: Int64s
    """Their positions among the candidates, ascending."""

    row: Int64s
    """Their positions among all rows of the batch."""

    rows: Candidates
    is_rejected: Bools
    is_given_up: Bools
    """Whether the row's destination is unavailable, and its rows are given up; such a row is rejected."""

    @classmethod
    def of(cls, candidates: Candidates, plan: FlowPlan, batch: MicroBatch) -> RowsBehind:
        """Return what becomes of the rows behind the admitted ones."""
        stops, at = plan.outcome.stops, plan.outcome.behind
        row, rows = candidates.row_at(at), candidates.take(at)
        is_rejected = np.zeros(len(rows), dtype=np.bool_)
        if not len(rows):
            return cls(at, row, rows, is_rejected, is_rejected)
        on_excess = np.where(
            stops.scope >= 0, batch.policy.shared.on_excess[stops.scope], batch.entered.limits.on_excess
        )
        rejects = (on_excess == OnExcess.REJECT) & (stops.level >= 0)
        rejects &= ~np.append(plan.shared.is_unleased(batch.policy), False)[stops.scope]
        if rejects.any():
            is_rejected = rejects[rows.flow]
            is_rejected[: rows.queued] = False
            if rows.holds(batch.now_ms):
                is_rejected &= ~rows.is_held(batch.now_ms)
        is_given_up = np.isin(batch.entered.matches.group_scope, batch.unavailable)[rows.flow]
        return cls(at, row, rows, is_rejected | is_given_up, is_given_up)

    def decide(self, decisions: DecisionDraft, plan: FlowPlan, times: ThrottleTimes, batch: MicroBatch) -> None:
        """Write the verdicts on these rows, with their causes."""
        stops, rows, now_ms = plan.outcome.stops, self.rows, batch.now_ms
        wait_ms = times.of_flows(batch)
        # A scope may have given a row of another flow its last token at this very moment.
        wait_ms = np.where(stops.scope >= 0, np.maximum(wait_ms, 1), wait_ms)
        dimension = plan.ends_by(np.arange(len(wait_ms)), stops.scope, stops.dimension)
        causes = Causes.of(Reason.QUOTA, level=stops.level, dimension=dimension, scope=stops.scope, wait_ms=wait_ms)
        verdict: Verdict | Int8s = Verdict.DELAY
        if self.is_rejected.any():
            verdict = np.where(self.is_rejected, np.int8(Verdict.REJECT), np.int8(Verdict.DELAY))
        decisions.decide(self.row, verdict, causes, rows.flow)
        refused = np.flatnonzero(self.is_rejected & ~self.is_given_up)
        if len(refused) and plan.outcome.queues is not None:
            # A dead letter says when to try again: all of a flow at once would be rejected again, but for the first.
            flow = rows.flow[refused]
            before = plan.outcome.queues.tokens_before(self.at[refused], flow, batch.entered.price_ns)
            wait_ms = np.maximum(wait_ms[flow], times.behind(flow, in_micro(before).T, plan, batch))
            causes = Causes.of(
                Reason.QUOTA, level=stops.level[flow], dimension=dimension[flow], scope=stops.scope[flow],
                wait_ms=wait_ms,
            )  # fmt: skip
            decisions.decide(self.row[refused], Verdict.REJECT, causes, np.arange(len(refused)))
        if rows.holds(now_ms):
            held = np.flatnonzero(rows.is_held(now_ms) | (stops.level < 0)[rows.flow])
            hold_ms = np.maximum(rows.release_ms[held] - now_ms, 0)
            causes = Causes.of(Reason.THROTTLING, level=Level.NAMESPACE, wait_ms=hold_ms)
            decisions.decide(self.row[held], Verdict.DELAY, causes, np.arange(len(held)))
        if self.is_given_up.any():
            gone = np.flatnonzero(self.is_given_up)
            causes = Causes.of(
                Reason.DESTINATION_UNAVAILABLE,
                level=Level.RESOURCE_GROUP,
                scope=batch.entered.matches.group_scope,
                wait_ms=NEVER_MS,
            )
            decisions.decide(self.row[gone], Verdict.REJECT, causes, rows.flow[gone])
