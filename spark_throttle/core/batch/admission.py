"""One micro-batch: the decision on every row, and the state that it leaves.

`plan_admission` is a pure function of the state, the arrivals, the policy and the batch's paying time. It decides, row
by row:

1. Namespace buckets refill to that time. Queued rows that are too old are rejected, as are arrivals that are larger
   than one of their scopes lets pass (`size_bounds`).
2. The other arrivals go through their namespace's Pegasus rules, which pass, delay or reject them (`pegasus`).
3. A flow is the rows of one namespace: the queued ones, then the arrivals. Its eligible rows end before the first
   that may not leave yet, or that would find its namespace's balance negative.
4. Eligible rows of all flows take turns in the fair tree (`fair.turns`). A row is admitted if the balances of its
   tenant, its group and the job are not negative (`scope_room`), and is then debited at all levels in every dimension;
   otherwise its flow stops for this batch. So nothing is charged for a row that is not admitted. The time that a row
   takes is an estimate, which the next epoch corrects (`measured_time`).
5. The scope that stopped a flow decides whether the rows behind the admitted ones are delayed or rejected. It can
   reject only arrivals; a row that is already queued waits on (`rows_behind`), unless its destination is unavailable
   and the policy gives such rows up. If the rows that should wait overfill the queue, the rows at the ends of the
   longest queues are rejected, whether they were queued or arrived (`queue_bounds`).

An observing scope never stops a row: its bucket is debited, and it marks the rows that it would have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.batch import account, queue_bounds
from spark_throttle.core.batch.arrivals import Arrivals, MicroBatch, enter
from spark_throttle.core.batch.decisions import REASONS, UNUSABLE_AMOUNTS, Causes, DecisionDraft, Decisions, Reason
from spark_throttle.core.batch.flow_plan import FlowPlan, plan_flows
from spark_throttle.core.batch.reserving import ReservedBatch, identities, of_rows
from spark_throttle.core.batch.rows_behind import RowsBehind, ThrottleTimes, leaving_pace
from spark_throttle.core.fair.layout import Candidates
from spark_throttle.core.left_rows import may_return
from spark_throttle.core.limits.pegasus import plan_windows
from spark_throttle.core.limits.size_bounds import OversizedRows, oversized
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.quota import AMOUNTS, NEVER_MS, CompiledPolicy, Dimension, Int64s, Level, Verdict
from spark_throttle.core.reservations import SettledCosts
from spark_throttle.core.state import DeciderState, Queue
from spark_throttle.core.usage import UsageReport

__all__ = ["REASONS", "AdmissionPlan", "Arrivals", "plan_admission"]


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPlan:
    """The decisions on a batch, the state that it leaves, and the report of its usage.

    The queue of `state` holds the formerly queued rows with verdict `DELAY`, then the arrivals with it, each in order.
    """

    decisions: Decisions
    state: DeciderState
    usage: UsageReport
    pace_micro_per_ms: Int64s
    """Shape (namespaces of `state`,): how many messages are likely to leave of each namespace of which rows joined the
    queue, in micro-messages per ms; 0 for the others. Nothing that is decided depends on it."""

    flow_names: pa.StringArray
    """The namespaces of the flows that the batch concerned."""

    flows: FlowPlan
    """How far each of them got."""

    kept: Int64s
    """The positions of the admitted rows that may come back: the last of `state.left`, in this order."""


def plan_admission(  # noqa: PLR0913 - all that a batch depends on
    state: DeciderState,
    arrivals: Arrivals,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    memory: MatchMemory | None = None,
    returned: Int64s | None = None,
    settled: SettledCosts | None = None,
    keeps: bool = False,
) -> AdmissionPlan:
    """Decide one batch.

    Parameters
    ----------
    state
        The state that the last batch left, with what the epoch of this batch pins (`policy_change.under_epoch`).
    arrivals
        The rows that arrived, in the order in which they must be decided.
    now_ms
        The paying time of the batch (`token_bucket`).
    memory
        The matches from batches that this process decided before; no decision depends on it.
    returned
        As in `left_rows.Settlement`: what came back to the queue with this batch.
    settled
        What the costs have settled that came with this batch (`core.reservations`).
    keeps
        Whether the state keeps what leaves for a destination, because it may come back.

    Raises
    ------
    QueueOverflowError
        If arrivals would overfill the queue and the policy says to fail.
    """
    memory = MatchMemory() if memory is None else memory
    entered = enter(state, arrivals, policy, memory, settled, now_ms=now_ms)
    elapsed_ms = state.paid_ms + max(0, now_ms - state.advanced_to_ms) if state.advanced_to_ms else 0
    shared = state.shared.refilled(policy, now_ms=now_ms)
    batch = MicroBatch(
        state.queue, entered, shared, policy, state.epoch, now_ms, elapsed_ms, state.unavailable, state.windows
    )  # fmt: skip
    decisions = DecisionDraft(len(state.queue) + len(arrivals))
    entrance = _Entrance.of(batch, decisions)
    rows, candidates = entrance.rows, entrance.candidates(decisions)
    plan = plan_flows(
        candidates, entered.flows, entered.limits, entered.matches, shared, state.nodes, policy,
        price_ns=entered.price_ns, lapsed=entrance.lapsed, corrected=entered.corrected,
        new_weights=state.new_weights, now_ms=now_ms,
    )  # fmt: skip
    behind = RowsBehind.of(candidates, plan, batch)
    _decide_by_quota(decisions, candidates, behind, plan, batch)
    waiting, refused, still = behind.at, behind.at[:0], behind.rows
    laid_out = None if plan.outcome.queues is None else (waiting, plan.outcome.queues)
    if behind.is_rejected.any():
        waiting, refused = behind.at[~behind.is_rejected], behind.at[behind.is_rejected]
        still, laid_out = candidates.take(waiting), None
    overflow = queue_bounds.overflowing(
        queue_bounds.WaitingRows(still, laid_out), candidates, entered.flows.names, policy.queue, now_ms=now_ms
    )
    if len(overflow):
        decisions.decide(candidates.row_at(waiting[overflow]), Verdict.REJECT, Causes.of(Reason.QUEUE_FULL))
        waiting, refused = np.delete(waiting, overflow), np.concatenate([refused, waiting[overflow]])
        still = candidates.take(waiting)
    quota_marks = candidates.row_at(plan.outcome.marks.row)
    marked = _mark_oversized(decisions, rows, quota_marks, batch)
    leads = plan.leads(waiting, policy)
    waits = still.has_rows(len(entered.flows))
    is_admitted = decisions.verdict == Verdict.ADMIT
    may_come_back = may_return(rows.flow, is_admitted, entered.matches.group_scope, policy if keeps else None)
    concerned = waits | rows.take(may_come_back).has_rows(len(waits))
    identity = identities(state.queue, arrivals)
    reserved = ReservedBatch.of(state, rows, identity, is_admitted, batch, plan, settled)
    left_flow = np.concatenate([state.left.flow, reserved.opened.flow])
    kept, matches, place = account.remembered(entered, plan, leads, entrance.window_units, concerned, left_flow, now_ms)
    position = place[entered.at]
    memory.keep(kept.names, matches, policy)
    queue = Queue.of(
        position[still.flow], still.amounts,
        np.ascontiguousarray(still.arrival_ms), np.ascontiguousarray(still.release_ms),
        of_rows(identity, candidates.row_at(waiting)),
    )  # fmt: skip
    decided = decisions.decided()
    moved = account.RowOutcomes(rows, candidates, refused, still, waits, entrance.closed, entrance.oversized, marked)
    left = Queue.empty()
    if keeps:
        gone = rows.take(may_come_back)
        more = Queue.of(
            position[gone.flow], gone.amounts,
            np.ascontiguousarray(gone.arrival_ms), np.ascontiguousarray(gone.release_ms),
            of_rows(identity, may_come_back),
        )  # fmt: skip
        left = replace(state.left, flow=place[state.left.flow]).with_more(more)
    usage = account.report(moved, decided, plan, batch, reserved, returned, len(left))
    pace_micro_per_ms = np.zeros(len(kept), dtype=np.int64)
    if len(still) > still.queued:
        joined = still.has_rows(len(waits), still.queued)
        pace_micro_per_ms[position[joined]] = leaving_pace(plan, batch)[joined]
    after = DeciderState(
        now_ms,
        kept,
        queue,
        plan.shared,
        state.epoch,
        leads.nodes,
        left,
        state.unavailable,
        state.prices,
        windows=state.windows,
        reservations=replace(reserved.opened, flow=place[reserved.opened.flow]),
    )
    return AdmissionPlan(decided, after, usage, pace_micro_per_ms, entered.flows.names, plan, may_come_back)


@dataclass(frozen=True, slots=True, eq=False)
class _Entrance:
    """The rows of a batch, and those of them that are rejected before any compete."""

    rows: Candidates
    """All rows of the batch."""

    oversized: Int64s
    """The positions of the rows that are too large."""

    closed: Int64s
    """The positions of the usable rows that are rejected for another reason: their age, or a Pegasus rule."""

    lapsed: Int64s | None
    """Shape (flows,): the number of first rows of each flow that became too old; `None` if none did."""

    window_units: Int64s
    """Shape (flows, 2): the units counted in the flows' windows after the batch."""

    @classmethod
    def of(cls, batch: MicroBatch, decisions: DecisionDraft) -> _Entrance:
        """Reject the rows that may not compete."""
        queue, entered, now_ms = batch.queue, batch.entered, batch.now_ms
        queued, large = len(queue), entered.oversized
        if len(entered.unusable):
            unusable = Causes.of(entered.reason, wait_ms=NEVER_MS)
            decisions.decide(queued + entered.unusable, Verdict.REJECT, unusable, np.arange(len(entered.reason)))
        if len(large.row):
            decisions.decide(queued + large.row, Verdict.REJECT, _of_size(large), np.arange(len(large.row)))
        expired = np.flatnonzero(queue_bounds.is_expired(queue, batch.policy.queue, now_ms=now_ms))
        lapsed = None
        if len(expired):
            decisions.decide(expired, Verdict.REJECT, Causes.of(Reason.QUEUE_AGE))
            lapsed = np.bincount(entered.queue_flow[expired], minlength=len(entered.flows))
        windowed = _through_windows(decisions, batch)
        rows = Candidates.of_batch(
            queue, entered.queue_flow, entered.flow, entered.amounts, windowed.release_ms, now_ms=now_ms
        )
        closed = np.concatenate([expired, queued + windowed.rejected])
        return cls(rows, queued + large.row, closed, lapsed, windowed.units)

    def candidates(self, decisions: DecisionDraft) -> Candidates:
        """Return the rows that compete."""
        competes = decisions.verdict == Verdict.ADMIT
        return self.rows if competes.all() else self.rows.take(np.flatnonzero(competes))


@dataclass(frozen=True, slots=True, eq=False)
class _PegasusVerdicts:
    """The verdicts of the Pegasus rules on the arrivals."""

    rejected: Int64s
    """The positions of the arrivals that the rules reject."""

    release_ms: Int64s
    """The batch time before which each arrival may not leave, 0 where no rule delays it."""

    units: Int64s
    """Shape (flows, 2): the units counted in the flows' windows after the batch."""


def _through_windows(decisions: DecisionDraft, batch: MicroBatch) -> _PegasusVerdicts:
    """Apply the Pegasus rules to the arrivals of flows that have any, and reject the rows that they reject."""
    entered, windows = batch.entered, batch.policy.namespace_windows
    has_rule = windows.has_rule[entered.matches.rule]
    if not has_rule.any():
        nothing = np.zeros(0, dtype=np.int64)
        return _PegasusVerdicts(nothing, np.broadcast_to(np.int64(0), entered.flow.shape), entered.flows.window_units)
    rules = windows.take(entered.matches.rule)
    asked, flow, size_bytes = None, entered.flow, entered.amounts[0]
    if len(entered.unusable) or len(entered.oversized.row):
        is_asked = flow >= 0
        is_asked[entered.oversized.row] = False
        asked = np.flatnonzero(is_asked)
        flow, size_bytes = flow[asked], size_bytes[asked]
    windowed = plan_windows(flow, size_bytes, entered.flows.window_units, rules, now_ms=batch.now_ms)
    at = np.flatnonzero(windowed.rejected_by >= 0)
    dimension = windowed.rejected_by[at]
    causes = Causes.of(
        Reason.THROTTLING, level=Level.NAMESPACE, dimension=np.tile([Dimension.MESSAGES, Dimension.BYTES], len(rules)),
        wait_ms=rules.reject_ms.ravel(),
    )  # fmt: skip
    rejected, release_ms = at, windowed.release_ms
    if asked is not None:
        rejected, release_ms = asked[at], np.zeros(len(entered.flow), dtype=np.int64)
        release_ms[asked] = windowed.release_ms
    decisions.decide(len(batch.queue) + rejected, Verdict.REJECT, causes, 2 * flow[at] + dimension)
    return _PegasusVerdicts(rejected, release_ms, windowed.units)


def _decide_by_quota(
    decisions: DecisionDraft, candidates: Candidates, behind: RowsBehind, plan: FlowPlan, batch: MicroBatch
) -> None:
    """Decide the rows behind the admitted ones of their flow, and mark the rows that an observing scope would stop."""
    marks = plan.outcome.marks
    if not len(behind.at) and not len(marks.row):
        return
    times = ThrottleTimes.of(plan, batch)
    behind.decide(decisions, plan, times, batch)
    wait_ms = times.at(marks.flow, marks.scope, marks.dimension)
    dimension = plan.ends_by(marks.flow, marks.scope, marks.dimension)
    causes = Causes.of(Reason.QUOTA, level=marks.level, dimension=dimension, scope=marks.scope, wait_ms=wait_ms)
    decisions.decide(candidates.row_at(marks.row), Verdict.ADMIT, causes, marks.run)


def _of_size(large: OversizedRows) -> Causes:
    """Return the causes for rows that are too large, for which waiting is of no use."""
    too_large = np.array([reasons[-1] for reasons in UNUSABLE_AMOUNTS], dtype=np.int8)
    return Causes.of(
        too_large[large.dimension - AMOUNTS[0]],
        level=large.level, dimension=large.dimension, scope=large.scope, wait_ms=NEVER_MS,
    )  # fmt: skip


def _mark_oversized(decisions: DecisionDraft, rows: Candidates, quota_marks: Int64s, batch: MicroBatch) -> Int64s:
    """Mark the admitted rows that an observing scope would have rejected for their size.

    Returns the positions of the rows so marked that are not among `quota_marks`.
    """
    large = oversized(rows.flow, rows.amounts, batch.entered.matches, batch.policy, observed=True)
    at = np.flatnonzero(decisions.verdict[large.row] == Verdict.ADMIT)
    if not len(at):
        return at
    large = large.take(at)
    decisions.decide(large.row, Verdict.ADMIT, _of_size(large), np.arange(len(at)))
    is_counted = np.zeros(len(rows), dtype=np.bool_)
    is_counted[quota_marks] = True
    return large.row[~is_counted[large.row]]
