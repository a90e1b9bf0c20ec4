"""What a batch leaves behind: the flows worth remembering, and the account that the control plane is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import (
    MICRO,
    NEVER_MS,
    Bools,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    OnExcess,
    Verdict,
)
from spark_throttle.core.segments import sums
from spark_throttle.core.state import Flows
from spark_throttle.core.token_bucket import full, throttle_time_ms
from spark_throttle.core.usage import UsageReport

if TYPE_CHECKING:
    from spark_throttle.core.admission import Decisions
    from spark_throttle.core.arrivals import Entered
    from spark_throttle.core.flow_plan import FlowPlan
    from spark_throttle.core.pegasus import Windowed

_MOST_EARNED_MICRO = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All rows of a batch: the queue's, then the arrivals."""

    flow: Int64s
    """-1 for an arrival that is unusable."""

    size_bytes: Int64s
    arrival_ms: Int64s
    queued: int

    def tally(self, is_counted: Bools, flows: int) -> Int64s:
        """Return, by flow, messages and bytes of the rows that count; shape (flows, 2)."""
        at = np.flatnonzero(is_counted & (self.flow >= 0))
        flow = self.flow[at]
        return np.stack([np.bincount(flow, minlength=flows), sums(flow, self.size_bytes[at], flows)], axis=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Where and when a batch is decided."""

    shard: int
    now_ms: int
    elapsed_ms: int
    """Time since the batch before, taken as the time until the next."""


def remembered(entered: Entered, plan: FlowPlan, windowed: Windowed, waiting_flow: Int64s) -> tuple[Flows, Int64s]:
    """Return the flows that have something to remember, and the new position of every flow (-1: forgotten)."""
    flows, limits = entered.flows, entered.limits
    waits = np.zeros(len(flows), dtype=np.bool_)
    waits[waiting_flow] = True
    # A flow that waits for nothing and is not ahead of its domain would come back without credit or penalty anyway.
    lead = np.where((waits | (plan.lead.max(axis=1, initial=0) > 0))[:, None], plan.lead, 0)
    is_full = plan.balance_micro >= full(limits.rate_micro_per_ms, limits.burst_micro)
    keep = waits | (lead != 0).any(axis=1) | ~is_full.all(axis=1) | (windowed.units > 0).any(axis=1)
    position = np.where(keep, np.cumsum(keep) - 1, -1)
    kept = Flows(
        flows.names.filter(pa.array(keep)),
        plan.balance_micro[keep],
        lead[keep],
        flows.window_second[keep],
        windowed.units[keep],
    )
    return kept, position


def report(
    rows: Rows,
    decisions: Decisions,
    plan: FlowPlan,
    entered: Entered,
    policy: CompiledPolicy,
    *,
    waiting: tuple[Int64s, Int64s, Int64s],
    batch: Batch,
) -> UsageReport:
    """Return the account of a batch.

    Parameters
    ----------
    waiting
        Flow, arrival time and release time of the rows that wait after it.
    """
    now_ms = batch.now_ms
    flows, limits = len(entered.flows), entered.limits
    is_admitted = decisions.verdict == Verdict.ADMIT
    is_new = np.arange(len(rows.flow)) >= rows.queued
    offered = rows.tally(is_new, flows)
    admitted = rows.tally(is_admitted, flows)
    rejected = rows.tally(decisions.verdict == Verdict.REJECT, flows)
    still_waiting = rows.tally(decisions.verdict == Verdict.DELAY, flows)
    observed = rows.tally(is_admitted & (decisions.reason > 0), flows)[:, Dimension.MESSAGES]
    left = np.flatnonzero(is_admitted & ~is_new)
    delayed_ms = sums(rows.flow[left], np.maximum(now_ms - rows.arrival_ms[left], 0), flows)
    rate = np.maximum(limits.rate_micro_per_ms, 0)
    # After a long pause the product would leave int64; 2**62 micro-tokens are more than any batch offers.
    earning_ms = np.minimum(batch.elapsed_ms, _MOST_EARNED_MICRO // np.maximum(rate, 1))
    soon = plan.balance_micro // MICRO + 1 + rate * earning_ms // MICRO
    is_enforced = limits.is_limited & (limits.on_excess != OnExcess.OBSERVE)[:, None]
    may_pass = np.where(is_enforced, np.maximum(soon, 0), NEVER_MS)
    demand = np.minimum(offered + still_waiting, may_pass)
    active = np.flatnonzero((offered + admitted + rejected + still_waiting)[:, Dimension.MESSAGES])
    return UsageReport(
        batch.shard, plan.grants.epoch, policy.revision, now_ms,
        entered.flows.names.take(pa.array(active)),
        entered.matches.tenant[active], entered.matches.group[active],
        np.where(entered.matches.is_exempt, 0, limits.weight)[active],
        offered[active], admitted[active], rejected[active], still_waiting[active], demand[active],
        observed[active], delayed_ms[active],
        _next_event_ms(plan, entered, policy, *waiting, now_ms=now_ms),
        int((rows.flow < 0).sum()),
    )  # fmt: skip


def _next_event_ms(
    plan: FlowPlan,
    entered: Entered,
    policy: CompiledPolicy,
    flow: Int64s,
    arrival_ms: Int64s,
    release_ms: Int64s,
    *,
    now_ms: int,
) -> int:
    """Return when the first waiting row may leave or expire, as far as this shard can tell."""
    if not len(flow):
        return NEVER_MS
    own_wait_ms = throttle_time_ms(plan.balance_micro, entered.limits.rate_micro_per_ms).max(axis=1)
    # At the scope's whole rate: the control plane may lend this shard all that comes in.
    scope_wait_ms = throttle_time_ms(plan.grants.balance_micro, policy.shared.rate_micro_per_ms).max(axis=1)
    is_own = plan.stop_level == Level.NAMESPACE
    wait_ms = np.where(is_own, own_wait_ms, np.where(plan.stop_scope >= 0, scope_wait_ms[plan.stop_scope], 0))
    heads, index = np.unique(flow, return_index=True)
    leaves_ms = np.maximum(now_ms + np.minimum(wait_ms[heads], NEVER_MS - now_ms), release_ms[index])
    event_ms = int(leaves_ms.min())
    if policy.queue.age_ms is not None:
        event_ms = min(event_ms, int(arrival_ms.min()) + policy.queue.age_ms + 1)
    return event_ms
