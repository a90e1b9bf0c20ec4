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
from spark_throttle.core.pegasus import Windowed, plan_windows
from spark_throttle.core.quota import Bools, CompiledPolicy, Int64s, Level, OnExcess, Verdict
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
    queued = len(state.queue)
    entered = enter(state, arrivals, policy, now_ms=now_ms)
    flows, limits = entered.flows, entered.limits
    decisions = Decisions.admitting(queued + len(arrivals))
    unusable = np.flatnonzero(entered.reason)
    decisions.decide(queued + unusable, Verdict.REJECT, entered.reason[unusable])
    expired = queue_bounds.is_expired(state.queue, policy.queue, now_ms=now_ms)
    decisions.decide(np.flatnonzero(expired), Verdict.REJECT, Reason.QUEUE_AGE)
    windowed = _through_windows(decisions, entered, policy, queued, now_ms=now_ms)
    candidates = _candidates(state.queue, entered, windowed, decisions.verdict == Verdict.ADMIT, now_ms=now_ms)
    grants = state.grants.grown(policy, now_ms=now_ms, shards=shards)
    plan = plan_flows(candidates, flows, limits, entered.matches, grants, policy, now_ms=now_ms)
    _decide_rest(decisions, candidates, plan, entered, policy, now_ms=now_ms, shards=shards)
    waits = decisions.verdict[candidates.row] == Verdict.DELAY
    overflow = queue_bounds.overflowing(
        candidates, waits, flows.names, policy.queue, now_ms=now_ms, shards=shards, shard=shard
    )
    decisions.decide(candidates.row[overflow], Verdict.REJECT, Reason.QUEUE_FULL)
    waits[overflow] = False
    rows = account.Rows(
        np.concatenate([state.queue.flow, entered.flow]),
        np.concatenate([state.queue.size_bytes, entered.size_bytes]),
        np.concatenate([state.queue.arrival_ms, np.full(len(arrivals), now_ms, dtype=np.int64)]),
        queued,
    )
    kept, position = account.remembered(entered, plan, windowed, candidates.flow[waits])
    queue = Queue(
        position[candidates.flow[waits]],
        candidates.size_bytes[waits],
        candidates.arrival_ms[waits],
        candidates.release_ms[waits],
    )
    usage = account.report(
        rows, decisions, plan, entered, policy,
        waiting=(candidates.flow[waits], candidates.arrival_ms[waits], candidates.release_ms[waits]),
        batch=account.Batch(shard, now_ms, max(0, now_ms - state.advanced_to_ms) if state.advanced_to_ms else 0),
    )  # fmt: skip
    return AdmissionPlan(decisions, ShardState(now_ms, kept, queue, plan.grants), usage)


def _through_windows(
    decisions: Decisions, entered: Entered, policy: CompiledPolicy, queued: int, *, now_ms: int
) -> Windowed:
    """Ask the Pegasus rules about the usable arrivals, and reject what they reject."""
    rules = policy.namespace_windows.take(entered.matches.rule)
    usable = np.flatnonzero(entered.flow >= 0)
    windowed = plan_windows(
        entered.flow[usable], entered.size_bytes[usable], entered.flows.window_units, rules, now_ms=now_ms
    )
    rejected = np.flatnonzero(windowed.rejected_by >= 0)
    dimension = windowed.rejected_by[rejected]
    decisions.decide(
        queued + usable[rejected],
        Verdict.REJECT,
        Reason.THROTTLING,
        level=Level.NAMESPACE,
        dimension=dimension,
        wait_ms=rules.reject_ms[entered.flow[usable[rejected]], dimension],
    )
    return windowed


def _candidates(queue: Queue, entered: Entered, windowed: Windowed, is_open: Bools, *, now_ms: int) -> Candidates:
    """Return the rows that nothing has decided yet, those of the queue first."""
    queued = len(queue)
    old = np.flatnonzero(is_open[:queued])
    new = np.flatnonzero(is_open[queued:])
    release_ms = np.zeros(len(entered.flow), dtype=np.int64)
    release_ms[entered.flow >= 0] = windowed.release_ms
    return Candidates(
        np.concatenate([old, queued + new]),
        np.concatenate([queue.flow[old], entered.flow[new]]),
        np.concatenate([queue.size_bytes[old], entered.size_bytes[new]]),
        np.concatenate([queue.arrival_ms[old], np.full(len(new), now_ms, dtype=np.int64)]),
        np.concatenate([queue.release_ms[old], release_ms[new]]),
        len(old),
    )


def _decide_rest(
    decisions: Decisions,
    candidates: Candidates,
    plan: FlowPlan,
    entered: Entered,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    shards: int,
) -> None:
    """Decide the rows behind the admitted ones of their flow, and mark those that an observing scope would stop."""
    limits = entered.limits
    rate = policy.shared.rate_micro_per_ms
    part = np.where(rate > 0, np.maximum(rate // shards, 1), rate)
    shared_wait_ms = throttle_time_ms(plan.grants.balance_micro, part)
    own_wait_ms = throttle_time_ms(plan.balance_micro, limits.rate_micro_per_ms)

    behind = np.flatnonzero(~plan.is_admitted)
    flow = candidates.flow[behind]
    level, dimension, scope = plan.stop_level[flow], plan.stop_dimension[flow], plan.stop_scope[flow]
    hold_ms = np.maximum(candidates.release_ms[behind] - now_ms, 0)
    is_held = (hold_ms > 0) | (level < 0)
    on_excess = np.where(scope >= 0, policy.shared.on_excess[scope], limits.on_excess[flow])
    is_rejected = ~is_held & (behind >= candidates.queued) & (on_excess == OnExcess.REJECT)
    quota_wait_ms = np.where(scope >= 0, shared_wait_ms[scope, dimension], own_wait_ms[flow, dimension])
    decisions.decide(
        candidates.row[behind],
        np.where(is_rejected, Verdict.REJECT, Verdict.DELAY).astype(np.int8),
        np.where(is_held, Reason.THROTTLING, Reason.QUOTA).astype(np.int8),
        level=np.where(is_held, Level.NAMESPACE, level),
        dimension=np.where(is_held, -1, dimension),
        scope=np.where(is_held, -1, scope),
        wait_ms=np.where(is_held, hold_ms, quota_wait_ms),
    )
    marked = np.flatnonzero(plan.marks.level >= 0)
    scope, dimension = plan.marks.scope[marked], plan.marks.dimension[marked]
    own = own_wait_ms[candidates.flow[marked], dimension]
    decisions.decide(
        candidates.row[marked],
        Verdict.ADMIT,
        Reason.QUOTA,
        level=plan.marks.level[marked],
        dimension=dimension,
        scope=scope,
        wait_ms=np.where(scope >= 0, shared_wait_ms[scope, dimension], own),
    )
