"""One micro-batch of one shard: the decision on every row, and the state that the shard keeps.

`plan_admission` is a pure function of the state, the arrivals, the policy and the batch's paying time. It decides, row
by row:

1. Namespace buckets refill to that time. Queued rows that are too old are rejected, as are arrivals that are larger
   than one of their scopes lets pass (`size_bounds`).
2. The other arrivals go through their namespace's Pegasus rules, which pass, delay or reject them (`pegasus`).
3. A flow is the rows of one namespace: the queued ones, then the arrivals. Its eligible rows end before the first
   that may not leave yet, or that would find its namespace's balance negative.
4. Eligible rows of all flows go in fair order (`fair_queue`). A row is admitted if the balances of its tenant, its
   group and the job are not negative, and is then debited at all levels in both dimensions; otherwise its flow
   stops for this batch (`contention`). So nothing is charged for a row that is not admitted.
5. The scope that stopped a flow decides whether the rows behind the admitted ones are delayed or rejected. It can
   reject only arrivals; a row that is already queued waits on. Where a rejecting scope has tokens that this shard does
   not have, rows wait for their verdict (`deferral`). If the rows that should wait overfill the queue, the rows at the
   ends of the longest queues are rejected, whether they were queued or arrived (`queue_bounds`).

An observing scope never stops a row: its bucket is debited, and it marks the rows that it would have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.batch import account, queue_bounds
from spark_throttle.core.batch.arrivals import Arrivals, BatchFlows, enter
from spark_throttle.core.batch.decisions import Causes, DecisionDraft, Decisions
from spark_throttle.core.batch.deferral import WaitingRoom
from spark_throttle.core.batch.flow_plan import FlowPlan, plan_flows
from spark_throttle.core.batch.reasons import REASONS, Reason
from spark_throttle.core.fair.layout import Candidates
from spark_throttle.core.limits.pegasus import plan_windows
from spark_throttle.core.limits.size_bounds import OversizedRows, oversized
from spark_throttle.core.limits.token_bucket import throttle_time_ms
from spark_throttle.core.names.match_memory import MatchMemory
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, weights_in
from spark_throttle.core.quota import NEVER_MS, Bools, CompiledPolicy, Dimension, Int64s, Level, OnExcess, Verdict
from spark_throttle.core.state import Queue, ShardState
from spark_throttle.core.usage import UsageReport

__all__ = ["REASONS", "AdmissionPlan", "Arrivals", "plan_admission"]


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPlan:
    """The decisions on a batch, the state that it leaves, and the report of its usage.

    The queue of `state` holds the formerly queued rows with verdict `DELAY`, then the arrivals with it, each in order.
    """

    decisions: Decisions
    state: ShardState
    usage: UsageReport


def plan_admission(
    state: ShardState,
    arrivals: Arrivals,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    shards: int,
    shard: int = 0,
    memory: MatchMemory | None = None,
) -> AdmissionPlan:
    """Decide one batch.

    Parameters
    ----------
    state
        The state that the last batch left, with the grants that the epoch of this batch set.
    arrivals
        The rows that arrived, in the order in which they must be decided.
    now_ms
        The paying time of the batch (`paying`).
    shards
        The number of shards among which queue bounds and shared rates are divided.
    shard
        The number of this shard, for the usage report.
    memory
        The matches from batches that this process decided before; no decision depends on it.

    Raises
    ------
    QueueOverflowError
        If arrivals would overfill the queue and the policy says to fail.
    """
    memory = MatchMemory() if memory is None else memory
    entered = enter(state, arrivals, policy, memory, now_ms=now_ms)
    queued, flows = len(state.queue), entered.flows
    decisions = DecisionDraft(queued + len(arrivals))
    if len(entered.unusable):
        unusable = Causes.of(entered.reason, wait_ms=NEVER_MS)
        decisions.decide(queued + entered.unusable, Verdict.REJECT, unusable, np.arange(len(entered.reason)))
    large = entered.oversized
    if len(large.row):
        decisions.decide(queued + large.row, Verdict.REJECT, _of_size(large), np.arange(len(large.row)))
    is_expired = queue_bounds.is_expired(state.queue, policy.queue, now_ms=now_ms)
    expired = np.flatnonzero(is_expired if state.queue.is_deferred is None else is_expired & ~state.queue.is_deferred)
    if len(expired):
        decisions.decide(expired, Verdict.REJECT, Causes.of(Reason.QUEUE_AGE))
    windowed = _through_windows(decisions, entered, policy, queued, now_ms=now_ms)
    rows = Candidates.of_batch(
        state.queue, entered.queue_flow, entered.flow, entered.size_bytes, windowed.release_ms, now_ms=now_ms
    )
    closed = np.concatenate([expired, queued + entered.unusable, queued + large.row, queued + windowed.rejected])
    candidates = rows if not len(closed) else rows.take(np.flatnonzero(decisions.verdict == Verdict.ADMIT))
    grants = state.grants.grown(policy, now_ms=now_ms, shards=shards)
    plan = plan_flows(candidates, flows, entered.limits, entered.matches, grants, policy, now_ms=now_ms)
    behind = candidates.take(plan.outcome.behind)
    rest = _decide_rest(decisions, candidates, behind, plan, entered, state.queue, policy, now_ms=now_ms, shards=shards)
    waiting, refused, still = plan.outcome.behind, plan.outcome.behind[:0], behind
    if rest.is_rejected.any():
        waiting, refused = plan.outcome.behind[~rest.is_rejected], plan.outcome.behind[rest.is_rejected]
        still = candidates.take(waiting)
    overflow = queue_bounds.overflowing(
        candidates, waiting, still, flows.names, policy.queue, now_ms=now_ms, shards=shards, shard=shard
    )
    if len(overflow):
        decisions.decide(candidates.row_at(overflow), Verdict.REJECT, Causes.of(Reason.QUEUE_FULL))
        waiting, refused = np.setdiff1d(waiting, overflow), np.concatenate([refused, overflow])
        still = candidates.take(waiting)
    quota_marks = candidates.row_at(plan.outcome.marks.row)
    marked = _mark_oversized(decisions, rows, quota_marks, entered, policy)
    kept, matches, position = account.remembered(entered, plan, windowed.units, still.flow)
    memory.keep(kept.names, matches, policy)
    queue = Queue(
        position[still.flow], still.size_bytes, still.arrival_ms, still.release_ms,
        np.isin(waiting, plan.outcome.behind[rest.is_deferred]) if rest.is_deferred.any() else None,
    )  # fmt: skip
    decided = decisions.decided()
    usage = account.report(
        account.RowOutcomes(
            rows, candidates, refused, still, np.concatenate([expired, queued + windowed.rejected]),
            queued + large.row, marked,
        ),
        decided, plan, entered, policy,
        account.Batch(shard, now_ms, max(0, now_ms - state.advanced_to_ms) if state.advanced_to_ms else 0),
    )  # fmt: skip
    return AdmissionPlan(decided, ShardState(now_ms, kept, queue, plan.grants), usage)


@dataclass(frozen=True, slots=True, eq=False)
class _PegasusVerdicts:
    """The verdicts of the Pegasus rules on the arrivals."""

    rejected: Int64s
    """The positions of the arrivals that the rules reject."""

    release_ms: Int64s
    """The batch time before which each arrival may not leave, 0 where no rule delays it."""

    units: Int64s
    """Shape (flows, 2): the units counted in the flows' windows after the batch."""


def _through_windows(
    decisions: DecisionDraft, entered: BatchFlows, policy: CompiledPolicy, queued: int, *, now_ms: int
) -> _PegasusVerdicts:
    """Apply the Pegasus rules to the arrivals of flows that have any, and reject the rows that they reject."""
    has_rule = policy.namespace_windows.has_rule[entered.matches.rule]
    if not has_rule.any():
        nothing = np.zeros(0, dtype=np.int64)
        return _PegasusVerdicts(nothing, np.broadcast_to(np.int64(0), entered.flow.shape), entered.flows.window_units)
    rules = policy.namespace_windows.take(entered.matches.rule)
    is_asked = np.append(has_rule, False)[entered.flow]
    is_asked[entered.oversized.row] = False
    asked = np.flatnonzero(is_asked)
    flow = entered.flow[asked]
    windowed = plan_windows(flow, entered.size_bytes[asked], entered.flows.window_units, rules, now_ms=now_ms)
    rejected = np.flatnonzero(windowed.rejected_by >= 0)
    dimension = windowed.rejected_by[rejected]
    wait_ms = rules.reject_ms[flow[rejected], dimension]
    causes = Causes.of(Reason.THROTTLING, level=Level.NAMESPACE, dimension=dimension, wait_ms=wait_ms)
    decisions.decide(queued + asked[rejected], Verdict.REJECT, causes, np.arange(len(rejected)))
    release_ms = np.zeros(len(entered.flow), dtype=np.int64)
    release_ms[asked] = windowed.release_ms
    return _PegasusVerdicts(asked[rejected], release_ms, windowed.units)


def _of_size(large: OversizedRows) -> Causes:
    """Return the causes for rows that are too large, for which waiting is of no use."""
    return Causes.of(
        Reason.SIZE_TOO_LARGE, level=large.level, dimension=Dimension.BYTES, scope=large.scope, wait_ms=NEVER_MS
    )


def _mark_oversized(
    decisions: DecisionDraft, rows: Candidates, quota_marks: Int64s, entered: BatchFlows, policy: CompiledPolicy
) -> Int64s:
    """Mark the admitted rows that an observing scope would have rejected for their size.

    Returns the positions of the rows so marked that are not among `quota_marks`.
    """
    large = oversized(rows.flow, rows.size_bytes, entered.matches, policy, observed=True)
    at = np.flatnonzero(decisions.verdict[large.row] == Verdict.ADMIT)
    if not len(at):
        return at
    large = OversizedRows(large.row[at], large.level[at], large.scope[at])
    decisions.decide(large.row, Verdict.ADMIT, _of_size(large), np.arange(len(at)))
    return np.setdiff1d(large.row, quota_marks)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What becomes of the rows behind the admitted ones of their flow."""

    is_rejected: Bools
    is_deferred: Bools
    """Whether the row waits for its verdict (`deferral`)."""


def _decide_rest(  # noqa: PLR0913 - all that a batch depends on
    decisions: DecisionDraft,
    candidates: Candidates,
    behind: Candidates,
    plan: FlowPlan,
    entered: BatchFlows,
    queue: Queue,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    shards: int,
) -> _Rest:
    """Decide the rows behind the admitted ones of their flow, and mark the rows that an observing scope would stop."""
    stops, marks = plan.outcome.stops, plan.outcome.marks
    is_rejected, is_deferred = np.zeros((2, len(behind)), dtype=np.bool_)
    if not len(behind) and not len(marks.row):
        return _Rest(is_rejected, is_deferred)
    rate = policy.shared.rate_micro_per_ms
    part = np.where(rate > 0, np.maximum(rate // shards, 1), rate)
    shared_wait_ms = throttle_time_ms(plan.grants.balance_micro, part)
    own_wait_ms = throttle_time_ms(plan.balance_micro, entered.limits.rate_micro_per_ms)

    is_shared, of_flow = stops.scope >= 0, np.arange(len(stops.scope))
    # A scope may have tokens that a flow must leave to others, for a time that nobody can know.
    of_shared_ms = np.maximum(shared_wait_ms[stops.scope, stops.dimension], 1)
    wait_ms = np.where(is_shared, of_shared_ms, own_wait_ms[of_flow, stops.dimension])
    causes = Causes.of(Reason.QUOTA, level=stops.level, dimension=stops.dimension, scope=stops.scope, wait_ms=wait_ms)
    rejects = np.where(is_shared, policy.shared.on_excess[stops.scope], entered.limits.on_excess) == OnExcess.REJECT
    rows = candidates.row_at(plan.outcome.behind)
    had_no_verdict, is_too_old = np.zeros(behind.queued, dtype=np.bool_), np.zeros(len(behind), dtype=np.bool_)
    if queue.is_deferred is not None:
        was_queued = rows[: behind.queued]
        had_no_verdict = queue.is_deferred[was_queued]
        is_expired = queue_bounds.is_expired(queue, policy.queue, now_ms=now_ms)
        is_too_old[: behind.queued] = had_no_verdict & is_expired[was_queued]
    if rejects.any():
        is_rejected = rejects[behind.flow]
        # The namespace's own bucket may have been full while the row waited, and have earned nothing.
        is_rejected[: behind.queued] &= had_no_verdict & is_shared[behind.flow[: behind.queued]]
    held = np.flatnonzero(behind.is_held(now_ms) | (stops.level < 0)[behind.flow]) if candidates.holds(now_ms) else None
    if held is not None:
        is_rejected[held] = False
    is_rejected |= is_too_old
    if is_rejected.any():
        is_deferred = _deferred(
            candidates, behind, is_rejected, is_too_old, plan, entered, policy, now_ms=now_ms, shards=shards
        )
        is_rejected &= ~is_deferred
    decisions.decide(rows, np.where(is_rejected, np.int8(Verdict.REJECT), np.int8(Verdict.DELAY)), causes, behind.flow)
    if held is not None:
        hold_ms = np.maximum(behind.release_ms[held] - now_ms, 0)
        causes = Causes.of(Reason.THROTTLING, level=Level.NAMESPACE, wait_ms=hold_ms)
        decisions.decide(rows[held], Verdict.DELAY, causes, np.arange(len(held)))
    decisions.decide(rows[is_too_old], Verdict.REJECT, Causes.of(Reason.QUEUE_AGE))
    own = own_wait_ms[candidates.flow[marks.row], marks.dimension]
    wait_ms = np.where(marks.scope >= 0, shared_wait_ms[marks.scope, marks.dimension], own)
    causes = Causes.of(Reason.QUOTA, level=marks.level, dimension=marks.dimension, scope=marks.scope, wait_ms=wait_ms)
    decisions.decide(candidates.row_at(marks.row), Verdict.ADMIT, causes, np.arange(len(marks.row)))
    return _Rest(is_rejected, is_deferred)


def _deferred(  # noqa: PLR0913 - all that a batch depends on
    candidates: Candidates,
    behind: Candidates,
    is_rejected: Bools,
    is_too_old: Bools,
    plan: FlowPlan,
    entered: BatchFlows,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    shards: int,
) -> Bools:
    """Return which of the rows `behind` wait for their verdict, of those that are rejected but not too old."""
    stops, weight = plan.outcome.stops, entered.limits.weight
    left = queue_bounds.left_after(behind.size_bytes[~is_rejected], policy.queue, shards=shards)
    room = WaitingRoom.of(plan.grants, policy, left)
    scope = np.where(is_rejected & ~is_too_old, stops.scope[behind.flow], -1)
    domain = domains_of(enforcing_scopes(entered.matches.shared_scope, policy))
    weight = weights_in(stops.scope, weight, domain, policy)
    names, served = entered.flows.names, plan.outcome.served
    return room.takes(behind, scope, served, weight, candidates, names, now_ms=now_ms)
