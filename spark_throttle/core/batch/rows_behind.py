"""What becomes of the rows behind the admitted ones of their flow: they wait, or they are rejected.

The scope that stopped a flow decides for the rows behind. Where it rejects, these rows wait all the same:

- rows that are queued, because a row that once waits has its verdict; only one that still waits for its verdict
  (`deferral`) can be rejected, and only by a shared scope: the namespace's own bucket may have been full while the row
  waited, and have earned nothing;
- rows behind one that a release time holds: time stopped that flow, not a scope;
- arrivals that wait for their verdict.

A row that waits for its verdict beyond the queue's bound on age is rejected for its age if it does not leave now.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.batch import queue_bounds
from spark_throttle.core.batch.decisions import Causes, DecisionDraft
from spark_throttle.core.batch.deferral import WaitingRoom
from spark_throttle.core.batch.flow_plan import FlowPlan
from spark_throttle.core.batch.flow_time import own_throttle_ms, told_dimension
from spark_throttle.core.batch.micro_batch import MicroBatch
from spark_throttle.core.batch.reasons import Reason
from spark_throttle.core.fair.layout import Candidates
from spark_throttle.core.limits.token_bucket import divided_throttle_time_ms, throttle_time_ms
from spark_throttle.core.names.matching import enforcing_scopes
from spark_throttle.core.quota import NEVER_MS, Bools, Int64s, Level, OnExcess, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class ThrottleTimes:
    """How long each bucket earns until its balance is not negative any more."""

    own_ms: Int64s
    """Shape (flows, 2)."""

    shared_ms: Int64s
    """Shape (scopes, 2)."""

    @classmethod
    def of(cls, plan: FlowPlan, batch: MicroBatch) -> ThrottleTimes:
        """Return the times after the debits of a batch.

        A debt of a shared scope is divided among the shards, and each repays its part from its part of the rate. What
        this batch has overdrawn is not divided yet: the whole rate repays it.
        """
        rate = batch.grants.expected_micro_per_ms(batch.policy)
        divided_micro = np.minimum(batch.grants.balance_micro, 0)
        divided_ms = divided_throttle_time_ms(divided_micro, rate, shards=batch.shards)
        overdrawn_ms = throttle_time_ms(plan.grants.balance_micro - divided_micro, rate)
        return cls(
            own_throttle_ms(plan, batch),
            np.minimum(divided_ms, NEVER_MS - overdrawn_ms) + overdrawn_ms,
        )

    def of_flows(self, batch: MicroBatch) -> Int64s:
        """Return how long any of the scopes that hold a flow back owes anything, shape (flows,)."""
        limits, shared = batch.entered.limits, batch.policy.shared
        is_enforcing = limits.is_limited & (limits.on_excess != OnExcess.OBSERVE)[:, None]
        own_ms = by_row(np.maximum, np.where(is_enforcing, self.own_ms, 0))
        shared_ms = np.append(by_row(np.maximum, np.where(shared.is_limited, self.shared_ms, 0)), 0)
        scopes = enforcing_scopes(batch.entered.matches.shared_scope, batch.policy)
        return np.maximum(own_ms, by_row(np.maximum, shared_ms[scopes]))

    def at(self, flow: Int64s, scope: Int64s, dimension: Int64s) -> Int64s:
        """Return the times of these shared scopes, and of the flows themselves where the scope is -1."""
        return np.where(scope >= 0, self.shared_ms[scope, dimension], self.own_ms[flow, dimension])


@dataclass(frozen=True, slots=True, eq=False)
class RowsBehind:
    """The candidates that are not admitted, and what becomes of each of them."""

    at: Int64s
    """Their positions among the candidates, ascending."""

    row: Int64s
    """Their positions among all rows of the batch."""

    rows: Candidates
    is_rejected: Bools
    is_too_old: Bools
    """Whether the row is rejected for its age."""

    is_deferred: Bools
    """Whether the row waits for its verdict."""

    @classmethod
    def of(cls, candidates: Candidates, plan: FlowPlan, batch: MicroBatch) -> RowsBehind:
        """Return what becomes of the rows behind the admitted ones."""
        stops, at = plan.outcome.stops, plan.outcome.behind
        row, rows = candidates.row_at(at), candidates.take(at)
        is_rejected, is_too_old, is_deferred = np.zeros((3, len(rows)), dtype=np.bool_)
        if not len(rows):
            return cls(at, row, rows, is_rejected, is_too_old, is_deferred)
        is_shared = stops.scope >= 0
        on_excess = np.where(is_shared, batch.policy.shared.on_excess[stops.scope], batch.entered.limits.on_excess)
        rejects = (on_excess == OnExcess.REJECT) & (stops.level >= 0)
        has_no_verdict = np.zeros(rows.queued, dtype=np.bool_)
        if batch.queue.is_deferred is not None:
            was_queued = row[: rows.queued]
            has_no_verdict = batch.queue.is_deferred[was_queued]
            is_expired = queue_bounds.is_expired(batch.queue, batch.policy.queue, now_ms=batch.now_ms)
            is_too_old[: rows.queued] = has_no_verdict & is_expired[was_queued]
        if rejects.any():
            is_rejected = rejects[rows.flow]
            is_rejected[: rows.queued] &= has_no_verdict & is_shared[rows.flow[: rows.queued]]
        if rows.holds(batch.now_ms):
            is_rejected &= ~rows.is_held(batch.now_ms)
        is_rejected |= is_too_old
        if is_rejected.any():
            scope = np.where(is_rejected & ~is_too_old, stops.scope[rows.flow], -1)
            is_deferred = _deferred(rows, scope, ~is_rejected, candidates, plan, batch)
            is_rejected &= ~is_deferred
        return cls(at, row, rows, is_rejected, is_too_old, is_deferred)

    def is_deferred_at(self, at: Int64s) -> Bools | None:
        """Return whether each of some candidates behind waits for its verdict; `None` if none of them all does."""
        return self.is_deferred[np.searchsorted(self.at, at)] if self.is_deferred.any() else None

    def decide(self, decisions: DecisionDraft, plan: FlowPlan, times: ThrottleTimes, batch: MicroBatch) -> None:
        """Write the verdicts on these rows, with their causes."""
        stops, rows, now_ms = plan.outcome.stops, self.rows, batch.now_ms
        wait_ms = times.of_flows(batch)
        # A scope may have tokens that a flow must leave to others, for a time that nobody can know.
        wait_ms = np.where(stops.scope >= 0, np.maximum(wait_ms, 1), wait_ms)
        dimension = told_dimension(stops, batch)
        causes = Causes.of(Reason.QUOTA, level=stops.level, dimension=dimension, scope=stops.scope, wait_ms=wait_ms)
        verdict = np.where(self.is_rejected, np.int8(Verdict.REJECT), np.int8(Verdict.DELAY))
        decisions.decide(self.row, verdict, causes, rows.flow)
        if rows.holds(now_ms):
            held = np.flatnonzero(rows.is_held(now_ms) | (stops.level < 0)[rows.flow])
            hold_ms = np.maximum(rows.release_ms[held] - now_ms, 0)
            causes = Causes.of(Reason.THROTTLING, level=Level.NAMESPACE, wait_ms=hold_ms)
            decisions.decide(self.row[held], Verdict.DELAY, causes, np.arange(len(held)))
        decisions.decide(self.row[self.is_too_old], Verdict.REJECT, Causes.of(Reason.QUEUE_AGE))


def _deferred(
    rows: Candidates, scope: Int64s, waits: Bools, candidates: Candidates, plan: FlowPlan, batch: MicroBatch
) -> Bools:
    """Return which of the rows behind wait for their verdict, of those that a shared `scope` would reject."""
    entered, policy = batch.entered, batch.policy
    left = queue_bounds.QueueRoom.of(policy.queue, batch.shards).beside(rows.size_bytes[waits])
    weight = batch.weights_in(plan.outcome.stops.scope)
    room = WaitingRoom.of(plan.grants, policy, left)
    names, served = entered.flows.names, plan.outcome.served
    return room.takes(rows, scope, served, weight, candidates, names, now_ms=batch.now_ms)
