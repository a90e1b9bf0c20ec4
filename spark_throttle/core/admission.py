"""One micro-batch of one shard: what becomes of every row, and what the shard remembers.

`plan_admission` is a pure function of the state, the arrivals, the policy and the batch time. Its meaning, row by row:

1. Namespace buckets refill to the batch time. Queued rows past their age are rejected.
2. Arrivals pass their namespace's Pegasus rules, which pass, delay or reject them (`pegasus`).
3. A flow is the rows of one namespace: what is queued, then what arrived. Its eligible rows end at the first
   that may not leave yet, or that would find its namespace's balance negative.
4. Eligible rows of all flows go in fair order (`fair_queue`). A row is admitted if its tenant's, its group's
   and the job's balance are not negative, and is then debited at all levels in both dimensions; else its flow
   stops for this batch (`contention`). So nothing is charged for a row that is not admitted.
5. Behind the admitted rows of a flow, what stopped it decides: delay, or reject. Reject concerns arrivals only;
   a row that was queued once waits on. Rows that would overfill the queue are rejected.

An observing scope never stops a row: it is debited, and marks the rows that it would have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_throttle.core import account, queue_bounds
from spark_throttle.core.arrivals import Arrivals, Entered, enter
from spark_throttle.core.flow_plan import FlowPlan, plan_flows
from spark_throttle.core.layout import Candidates
from spark_throttle.core.pegasus import plan_windows
from spark_throttle.core.quota import CompiledPolicy, Int64s, Level, OnExcess, Verdict
from spark_throttle.core.reasons import REASONS, Reason
from spark_throttle.core.state import Queue, ShardState
from spark_throttle.core.token_bucket import throttle_time_ms
from spark_throttle.core.usage import UsageReport

__all__ = ["REASONS", "AdmissionPlan", "Arrivals", "plan_admission"]

Int8s = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """What becomes of every row; arrays run over the queue's rows, then the arrivals."""

    verdict: Int8s
    reason: Int8s
    """A `Reason`; on an admitted row, why an observing scope would have held it."""

    level: Int8s
    """A `Level`, -1 where no level refused or marked the row."""

    dimension: Int8s
    """A `Dimension`, -1 where none refused or marked the row."""

    scope: Int64s
    """Position of the shared scope that refused or marked the row; -1 for the row's own namespace or none."""

    throttle_time_ms: Int64s

    @classmethod
    def admitting(cls, rows: int) -> Decisions:
        """Return decisions that admit every row."""
        return cls(
            verdict=np.full(rows, Verdict.ADMIT, dtype=np.int8),
            reason=np.full(rows, Reason.NONE, dtype=np.int8),
            level=np.full(rows, -1, dtype=np.int8),
            dimension=np.full(rows, -1, dtype=np.int8),
            scope=np.full(rows, -1, dtype=np.int64),
            throttle_time_ms=np.zeros(rows, dtype=np.int64),
        )

    def decide(
        self,
        rows: Int64s,
        verdict: Verdict | Int8s,
        reason: Reason | Int8s,
        *,
        level: Int64s | int = -1,
        dimension: Int64s | int = -1,
        scope: Int64s | int = -1,
        wait_ms: Int64s | int = 0,
    ) -> None:
        """Overwrite the decisions on `rows`: the one place where these arrays are filled in."""
        self.verdict[rows] = verdict
        self.reason[rows] = reason
        self.level[rows] = level
        self.dimension[rows] = dimension
        self.scope[rows] = scope
        self.throttle_time_ms[rows] = wait_ms


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPlan:
    """The decisions on a batch, and what it leaves.

    The queue of `state` holds the queue's rows with verdict `DELAY`, then the arrivals that have it, each in order.
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
) -> AdmissionPlan:
    """Decide one batch.

    Parameters
    ----------
    state
        What the last batch left; grants as the epoch of this batch set them.
    arrivals
        In the order in which they are to be decided.
    now_ms
        Batch time.
    shards
        Number of shards among which queue bounds and shared rates are divided.
    shard
        Which of them this is, for the usage report.

    Raises
    ------
    QueueOverflowError
        If rows would overfill the queue and the policy says to fail.
    """
    entered = enter(state, arrivals, policy, now_ms=now_ms)
    queued, flows = len(state.queue), entered.flows
    decisions = Decisions.admitting(queued + len(arrivals))
    decisions.decide(queued + entered.unusable, Verdict.REJECT, entered.reason)
    expired = np.flatnonzero(queue_bounds.is_expired(state.queue, policy.queue, now_ms=now_ms))
    decisions.decide(expired, Verdict.REJECT, Reason.QUEUE_AGE)
    windowed = _through_windows(decisions, entered, policy, queued, now_ms=now_ms)
    rows = Candidates.of_batch(
        state.queue, entered.queue_flow, entered.flow, entered.size_bytes, windowed.release_ms, now_ms=now_ms
    )
    closed = np.concatenate([expired, queued + entered.unusable, queued + windowed.rejected])
    candidates = rows if not len(closed) else rows.take(np.flatnonzero(decisions.verdict == Verdict.ADMIT))
    grants = state.grants.grown(policy, now_ms=now_ms, shards=shards)
    plan = plan_flows(candidates, flows, entered.limits, entered.matches, grants, policy, now_ms=now_ms)
    waiting, refused = _decide_rest(decisions, candidates, plan, entered, policy, now_ms=now_ms, shards=shards)
    overflow = queue_bounds.overflowing(
        candidates, waiting, flows.names, policy.queue, now_ms=now_ms, shards=shards, shard=shard
    )
    if len(overflow):
        decisions.decide(candidates.row_at(overflow), Verdict.REJECT, Reason.QUEUE_FULL)
        waiting, refused = np.setdiff1d(waiting, overflow), np.concatenate([refused, overflow])
    still = candidates.take(waiting)
    kept, position = account.remembered(entered, plan, windowed.units, still.flow)
    queue = Queue(position[still.flow], still.size_bytes, still.arrival_ms, still.release_ms)
    usage = account.report(
        account.Moved(rows, candidates, refused, still, np.concatenate([expired, queued + windowed.rejected])),
        decisions, plan, entered, policy,
        account.Batch(shard, now_ms, max(0, now_ms - state.advanced_to_ms) if state.advanced_to_ms else 0),
    )  # fmt: skip
    return AdmissionPlan(decisions, ShardState(now_ms, kept, queue, plan.grants), usage)


@dataclass(frozen=True, slots=True, eq=False)
class _Windowed:
    """What the Pegasus rules say of the arrivals."""

    rejected: Int64s
    """Positions of those that they reject."""

    release_ms: Int64s
    """Of every arrival: batch time before which it may not leave, 0 where no rule delays it."""

    units: Int64s
    """The flows' windows after the batch."""


def _through_windows(
    decisions: Decisions, entered: Entered, policy: CompiledPolicy, queued: int, *, now_ms: int
) -> _Windowed:
    """Ask the Pegasus rules about the arrivals of flows that have any, and reject what they reject."""
    has_rule = policy.namespace_windows.has_rule[entered.matches.rule]
    if not has_rule.any():
        nothing = np.zeros(0, dtype=np.int64)
        return _Windowed(nothing, np.broadcast_to(np.int64(0), entered.flow.shape), entered.flows.window_units)
    rules = policy.namespace_windows.take(entered.matches.rule)
    asked = np.flatnonzero(np.append(has_rule, False)[entered.flow])
    flow = entered.flow[asked]
    windowed = plan_windows(flow, entered.size_bytes[asked], entered.flows.window_units, rules, now_ms=now_ms)
    rejected = np.flatnonzero(windowed.rejected_by >= 0)
    dimension = windowed.rejected_by[rejected]
    decisions.decide(
        queued + asked[rejected],
        Verdict.REJECT,
        Reason.THROTTLING,
        level=Level.NAMESPACE,
        dimension=dimension,
        wait_ms=rules.reject_ms[flow[rejected], dimension],
    )
    release_ms = np.zeros(len(entered.flow), dtype=np.int64)
    release_ms[asked] = windowed.release_ms
    return _Windowed(asked[rejected], release_ms, windowed.units)


def _decide_rest(
    decisions: Decisions,
    candidates: Candidates,
    plan: FlowPlan,
    entered: Entered,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    shards: int,
) -> tuple[Int64s, Int64s]:
    """Decide the rows behind the admitted ones of their flow, and mark those that an observing scope would stop.

    Returns the positions among the candidates of those that are delayed, ascending, and of those that are rejected.
    """
    behind, stops, marks = plan.outcome.behind, plan.outcome.stops, plan.outcome.marks
    nothing = np.zeros(0, dtype=np.int64)
    if not len(behind) and not len(marks.row):
        return nothing, nothing
    rate = policy.shared.rate_micro_per_ms
    part = np.where(rate > 0, np.maximum(rate // shards, 1), rate)
    shared_wait_ms = throttle_time_ms(plan.grants.balance_micro, part)
    own_wait_ms = throttle_time_ms(plan.balance_micro, entered.limits.rate_micro_per_ms)

    of_flow = np.arange(len(stops.scope))
    on_excess = np.where(stops.scope >= 0, policy.shared.on_excess[stops.scope], entered.limits.on_excess)
    wait_ms = np.where(
        stops.scope >= 0, shared_wait_ms[stops.scope, stops.dimension], own_wait_ms[of_flow, stops.dimension]
    )
    flow = candidates.flow[behind]
    hold_ms = np.maximum(candidates.release_ms[behind] - now_ms, 0)
    is_held = (hold_ms > 0) | (stops.level < 0)[flow]
    is_rejected = (on_excess == OnExcess.REJECT)[flow] & ~is_held & (behind >= candidates.queued)
    decisions.decide(
        candidates.row_at(behind),
        np.where(is_rejected, Verdict.REJECT, Verdict.DELAY),
        np.where(is_held, Reason.THROTTLING, Reason.QUOTA),
        level=np.where(is_held, Level.NAMESPACE, stops.level[flow]),
        dimension=np.where(is_held, -1, stops.dimension[flow]),
        scope=np.where(is_held, -1, stops.scope[flow]),
        wait_ms=np.where(is_held, hold_ms, wait_ms[flow]),
    )
    own = own_wait_ms[candidates.flow[marks.row], marks.dimension]
    decisions.decide(
        candidates.row_at(marks.row),
        Verdict.ADMIT,
        Reason.QUOTA,
        level=marks.level,
        dimension=marks.dimension,
        scope=marks.scope,
        wait_ms=np.where(marks.scope >= 0, shared_wait_ms[marks.scope, marks.dimension], own),
    )
    return behind[~is_rejected], behind[is_rejected]
