"""A batch leaves the flows that are worth remembering, and the usage report for the control plane.

A namespace is forgotten when forgetting it changes nothing: its bucket is full and was given time to earn all that a
change of policy cut off, none of its rows waits or may come back, it is neither ahead nor behind, and no Pegasus rule
counts it. The price of its messages keeps it for `REMEMBERED_MS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import by_row, largest, replaced, sums
from spark_throttle.core.batch.decisions import Reason
from spark_throttle.core.batch.rows_behind import ThrottleTimes
from spark_throttle.core.batch.scope_room import taken_by
from spark_throttle.core.fair.layout import by_dimension
from spark_throttle.core.limits.budgets import Budgets, UsedBudgets
from spark_throttle.core.limits.token_bucket import full, in_micro, throttle_time_ms
from spark_throttle.core.measured_time import REMEMBERED_MS
from spark_throttle.core.names.matching import Matches, enforcing_scopes, taken
from spark_throttle.core.quota import (
    MICRO,
    NEVER_MS,
    UNLIMITED,
    Bools,
    Dimension,
    Int64s,
    Limits,
    OnExcess,
    Verdict,
)
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.state import Flows
from spark_throttle.core.usage import UsageReport
from spark_throttle.core.waiting_times import WaitingTimes

if TYPE_CHECKING:
    from spark_throttle.core.batch.arrivals import BatchFlows, MicroBatch
    from spark_throttle.core.batch.decisions import Decisions
    from spark_throttle.core.batch.flow_plan import FlowPlan
    from spark_throttle.core.batch.reserving import ReservedBatch
    from spark_throttle.core.fair.contenders import Leads
    from spark_throttle.core.fair.layout import Candidates

_MESSAGES, _TIME = Dimension.MESSAGES, Dimension.TIME
_MOST_EARNED_MICRO = 1 << 62
_LONGEST_FILLING_MS = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcomes:
    """Where the rows of a batch went."""

    rows: Candidates
    """All rows of the batch."""

    candidates: Candidates
    """The rows that compete: those not rejected beforehand."""

    refused: Int64s
    """The positions of the candidates that were rejected."""

    waiting: Candidates
    """The candidates that wait."""

    waits: Bools
    """Shape (flows,): whether any candidate of each flow waits."""

    closed: Int64s
    """The positions of the usable rows that were rejected before they could compete, but not for their size."""

    oversized: Int64s
    """The positions of the rows that were rejected for their size; they do not count as demand."""

    marked: Int64s
    """The positions of the admitted rows that are marked for their size alone."""

    def offered(self, wanted: Int64s, price_ns: Int64s | None) -> Int64s:
        """Return what arrived, by flow, shape (flows, 4); the candidates want `wanted`."""
        if self.candidates.row is None and not self.rows.queued:
            return wanted
        return by_dimension(self.rows.arrived(len(wanted), price_ns))


def remembered(
    entered: BatchFlows,
    plan: FlowPlan,
    leads: Leads,
    window_units: Int64s,
    waits: Bools,
    left_flow: Int64s,
    now_ms: int,
) -> tuple[Flows, Matches, Int64s]:
    """Return the flows worth remembering, their matches, and the position among them of every known flow.

    Parameters
    ----------
    waits
        Whether rows of each flow of `entered` wait, or have left and may come back.
    left_flow
        The known flows of rows that left, and may come back or whose costs are not known yet.
    """
    at, flows, full_micro = entered.at, entered.known.flows, entered.known.full_micro
    columns = {
        "balance_micro": plan.balance_micro, "lead_work": leads.lead_work, "held": leads.held,
        "window_units": window_units,
    }  # fmt: skip
    if len(at) < len(flows):
        columns = {name: replaced(getattr(flows, name), at, column) for name, column in columns.items()}
    spent = plan.spent
    if spent is not None and flows.spent is not None and len(at) < len(flows):
        spent = flows.spent.with_those(at, spent)
    after = replace(flows, **columns, spent=spent)
    keep = by_row(np.logical_or, (after.balance_micro < full_micro) | (after.cut_micro > 0))
    if spent is not None:
        keep |= spent.is_any
    keep[at[waits]] = True
    keep[left_flow] = True
    keep |= after.has_lead | by_row(np.logical_or, after.window_units != 0)
    if entered.price_ns is not None:
        keep |= (after.priced_ms > 0) & (now_ms - after.priced_ms <= REMEMBERED_MS)
    if keep.all():
        return after, entered.known.matches, np.arange(len(flows))
    stays = np.flatnonzero(keep)
    return after.take(stays), taken(entered.known.matches, stays), np.cumsum(keep) - 1


def report(
    moved: RowOutcomes,
    decisions: Decisions,
    plan: FlowPlan,
    batch: MicroBatch,
    reserved: ReservedBatch,
    returned: Int64s | None,
    left_messages: int,
) -> UsageReport:
    """Return the usage report of a batch.

    Parameters
    ----------
    returned
        Shape (namespaces of the state, 3): what came back to the queue, if anything did.
    left_messages
        The rows that may come back after the batch.
    """
    entered, policy, now_ms, rows, candidates = batch.entered, batch.policy, batch.now_ms, moved.rows, moved.candidates
    flows, limits, outcome = len(entered.flows), entered.limits, plan.outcome
    price_ns = entered.price_ns

    def tally(among: Candidates, at: Int64s) -> Int64s:
        return by_dimension(among.tally(at, flows, price_ns))

    offered, admitted = moved.offered(outcome.wanted, price_ns), outcome.served
    refused = tally(candidates, moved.refused)
    still_waiting = outcome.wanted - admitted - refused
    rejected = refused + tally(rows, moved.closed)
    wants = offered
    if len(moved.oversized):
        too_large = tally(rows, moved.oversized)
        rejected, wants = rejected + too_large, offered - too_large
    observed = outcome.marks.by_flow(flows)
    if len(moved.marked):
        observed += np.bincount(rows.flow[moved.marked], minlength=flows)
    rejected_rows = np.flatnonzero(decisions.verdict == Verdict.REJECT)
    left = np.flatnonzero(decisions.verdict[: rows.queued] == Verdict.ADMIT)
    waited_ms = np.maximum(now_ms - rows.arrival_ms[left], 0)
    delayed_ms = sums(rows.flow[left], waited_ms, flows)
    demand = _demand(wants, still_waiting, moved.waiting, plan, batch)
    moved_messages = offered + admitted + rejected + still_waiting
    told = {name: each[entered.at] for name, each in reserved.told(len(entered.known.flows)).items() if each.any()}
    is_active = moved_messages[:, _MESSAGES] > 0
    for each in told.values():
        is_active |= each > 0
    active = np.flatnonzero(is_active)
    told = {name: each[active] for name, each in told.items()}
    due_ms, due_with_quotas_ms, filled_ms = _due_ms(plan, moved, still_waiting, batch)
    came_back = None
    if returned is not None and returned.any():
        came_back = np.zeros((len(entered.known.flows), returned.shape[1]), dtype=np.int64)
        came_back[: len(returned)] = returned
        came_back = came_back[entered.at[active]]
    position = np.full(flows, -1)
    position[active] = np.arange(len(active))
    waited = WaitingTimes.of(position[rows.flow[left]], waited_ms)
    stops = outcome.stops
    held_by = np.stack([stops.level, plan.ends_by(np.arange(flows), stops.scope, stops.dimension)], axis=1)
    shares = under_share(policy, plan.shared.share_micro_per_ms).shared
    return UsageReport(
        batch.epoch, policy.revision, now_ms,
        entered.flows.names.take(pa.array(active)),
        entered.matches.tenant[active], entered.matches.group[active],
        np.where(entered.matches.is_exempt, 0, limits.weight)[active],
        offered.take(active, axis=0), admitted.take(active, axis=0), rejected.take(active, axis=0),
        still_waiting.take(active, axis=0), demand.take(active, axis=0),
        observed[active], delayed_ms[active],
        plan.shared.balance_micro, due_ms, due_with_quotas_ms, filled_ms,
        len(entered.unusable),
        rejected_by_reason=_by_reason(rejected_rows, decisions),
        oldest_ms=_oldest_ms(moved.waiting, flows, now_ms=now_ms)[active] if len(moved.waiting) else None,
        waited=waited if len(waited) else None,
        held_by=held_by[active] if (held_by >= 0).any() else None,
        granted_micro=_granted(limits, batch.elapsed_ms)[active] if limits.is_limited.any() else None,
        own_micro=plan.balance_micro[active, :_TIME] if limits.is_limited.any() else None,
        shared_granted_micro=_granted(shares, batch.elapsed_ms),
        own_time_ns=None if price_ns is None else plan.balance_micro[active, _TIME],
        returned=came_back,
        left_messages=left_messages,
        budgets=None if batch.windows is None else UsedBudgets(
            batch.windows, None if plan.spent is None else plan.spent.used[active],
            None if plan.shared.spent is None else plan.shared.spent.used,
            None if plan.shared.claims is None else plan.shared.claims.by_others,
        ),
        reservations=reserved.counts(now_ms=now_ms),
        reserved_messages=told.get("reserved_messages"),
        reserved_units=told.get("reserved_units"),
        given_back_units=told.get("given_back_units"),
        overdrawn_units=told.get("overdrawn_units"),
        unsettled_messages=told.get("unsettled_messages"),
    )  # fmt: skip


def _oldest_ms(waiting: Candidates, flows: int, *, now_ms: int) -> Int64s:
    """Return how long the oldest row of each flow has waited; -1 without one.

    It is not the first one where the time at which that came was set back afterwards.
    """
    return largest(waiting.flow, np.maximum(now_ms - waiting.arrival_ms, 0), flows, least=-1)


def _demand(wants: Int64s, still_waiting: Int64s, waiting: Candidates, plan: FlowPlan, batch: MicroBatch) -> Int64s:
    """Return what each flow could take of the shared scopes until the next batch, shape (flows, 4).

    That is its waiting rows, plus as much as arrived in this batch, but nothing from the first row on that its release
    time holds for longer. If its own limits let less pass, it is scaled down to that, all dimensions alike.
    """
    free = still_waiting
    until_ms = batch.now_ms + batch.elapsed_ms
    if waiting.holds(until_ms):
        first_held = waiting.first_of(len(wants), np.flatnonzero(waiting.is_held(until_ms)))
        is_free = np.arange(len(waiting)) < first_held[waiting.flow]
        free = by_dimension(waiting.tally(np.flatnonzero(is_free), len(wants), batch.entered.price_ns))
        wants = np.where((first_held < len(waiting))[:, None], 0, wants)
    wanted = wants + free
    passing = np.minimum(wanted, _may_pass(plan, batch.entered.limits, batch.elapsed_ms))
    if (passing == wanted).all():
        return wanted
    part = np.where(wanted > 0, quotient(passing, wanted, FACTOR_BITS, round_up=True), WHOLE)
    part = by_row(np.minimum, part)[:, None]
    return np.where(part > 0, np.minimum(times(wanted, part) + 1, passing), 0)


def _may_pass(plan: FlowPlan, limits: Limits, elapsed_ms: int) -> Int64s:
    """Return what each flow's own limits may let pass until the next batch; shape (flows, 4)."""
    is_enforced, budgets = limits.is_enforced, None if plan.spent is None else Budgets.of(limits)
    passing = np.full(is_enforced.shape, NEVER_MS)
    if is_enforced.any():
        soon = _soon(plan.balance_micro, limits.rate_micro_per_ms, elapsed_ms)
        passing = np.where(is_enforced, np.maximum(soon, 0), passing)
    if plan.spent is not None and budgets is not None:
        left = np.where(budgets.is_enforcing, plan.spent.rooms(budgets) + 1, NEVER_MS)
        for dimension, of_budget in zip(budgets.dimension, left.T, strict=True):
            np.minimum(passing[:, dimension], of_budget, out=passing[:, dimension])
    return passing


def _earned(rate_micro_per_ms: Int64s, elapsed_ms: int) -> Int64s:
    """Return what buckets earn in a time, 0 where there is no limit."""
    rate = np.maximum(rate_micro_per_ms, 0)
    # After a long pause, the product would leave int64; 2**62 micro-tokens are more than any batch offers.
    return rate * np.minimum(elapsed_ms, _MOST_EARNED_MICRO // np.maximum(rate, 1))


def _granted(limits: Limits, elapsed_ms: int) -> Int64s:
    """Return what quotas earn in a time, `UNLIMITED` where there is none; shape (n, 4)."""
    return np.where(limits.is_limited, _earned(limits.rate_micro_per_ms, elapsed_ms), UNLIMITED)


def _soon(balance_micro: Int64s, rate_micro_per_ms: Int64s, elapsed_ms: int) -> Int64s:
    """Return what buckets let pass within `elapsed_ms`, shape (n, 4); less than 1 where they stay in debt."""
    earned = _earned(rate_micro_per_ms, elapsed_ms)
    soon: Int64s = balance_micro // MICRO + 1 + earned // MICRO
    soon[:, _TIME] = balance_micro[:, _TIME] + 1 + earned[:, _TIME]
    return soon


def _leaves_ms(until: ThrottleTimes, moved: RowOutcomes, batch: MicroBatch) -> Int64s:
    """Return when each flow's first waiting row may leave, by its own limits and its release time."""
    entered, now_ms, waiting, waits = batch.entered, batch.now_ms, moved.waiting, moved.waits
    leaves_ms = np.full(len(entered.flows), NEVER_MS)
    is_enforcing = entered.limits.on_excess != OnExcess.OBSERVE
    own_wait_ms = by_row(np.maximum, until.own_ms)
    leaves_ms[waits] = now_ms
    np.copyto(leaves_ms, now_ms + np.minimum(own_wait_ms, NEVER_MS - now_ms), where=waits & is_enforcing)
    if waiting.holds(now_ms):
        heads = np.flatnonzero(waits)
        first = waiting.first_of(len(leaves_ms))[heads]
        leaves_ms[heads] = np.maximum(leaves_ms[heads], waiting.release_ms[first])
    return leaves_ms


def _due_ms(plan: FlowPlan, moved: RowOutcomes, still_waiting: Int64s, batch: MicroBatch) -> tuple[int, int, int]:
    """Return when the first waiting row can leave or expire, when it could with whole quotas, and `filled_ms`.

    A row can leave once its own limits and its release time let it, and none of its scopes owes anything. A wait ends
    in the millisecond in which the balance is no longer negative, so the row passes then, and not sooner. Who waits for
    full buckets does not wait for the calendar.
    """
    waiting = moved.waiting
    if not len(waiting):
        return NEVER_MS, NEVER_MS, NEVER_MS
    expires_ms = NEVER_MS
    if batch.policy.queue.age_ms is not None:
        expires_ms = int(waiting.arrival_ms.min()) + batch.policy.queue.age_ms + 1
    until = ThrottleTimes.of(plan, batch)
    own_ms, now_ms, shared = _leaves_ms(until, moved, batch), batch.now_ms, plan.shared
    waits = np.flatnonzero(own_ms < NEVER_MS)
    scopes = enforcing_scopes(batch.entered.matches.shared_scope.take(waits, axis=0), batch.policy)
    open_ms = now_ms + np.minimum(by_row(np.maximum, until.shared_ms), NEVER_MS - now_ms)
    leased_ms = np.where(shared.is_unleased(batch.policy), NEVER_MS, open_ms)
    with_quotas_ms, leaves_ms = (
        np.maximum(own_ms[waits], by_row(np.maximum, np.append(each, 0)[scopes])) for each in (open_ms, leased_ms)
    )
    filled_ms = np.maximum(leaves_ms, now_ms + _filling_ms(plan, still_waiting, batch)[waits])
    filled_ms = np.where(until.edges_of_flows(batch)[waits] > 0, NEVER_MS, filled_ms)
    first = [min(int(each.min(initial=NEVER_MS)), expires_ms) for each in (leaves_ms, with_quotas_ms, filled_ms)]
    return first[0], first[1], first[2]


def _filling_ms(plan: FlowPlan, still_waiting: Int64s, batch: MicroBatch) -> Int64s:
    """Return how long the bucket that stopped each flow takes until it is full, or has enough for all that waits.

    It is a minute at most: a query whose bursts are long does not stand still for hours.
    """
    stops, policy, entered = plan.outcome.stops, batch.policy, batch.entered
    shared = under_share(policy, plan.shared.share_micro_per_ms).shared
    wanted = taken_by(enforcing_scopes(entered.matches.shared_scope, policy), still_waiting.T, len(shared)).T
    of_own, of_shared = (
        throttle_time_ms(
            balance_micro - np.minimum(full(limits.rate_micro_per_ms, limits.burst_micro), in_micro(needed)),
            limits.rate_micro_per_ms,
        )
        for balance_micro, limits, needed in (
            (plan.balance_micro, entered.limits, still_waiting), (plan.shared.balance_micro, shared, wanted)
        )
    )  # fmt: skip
    at, is_shared = np.arange(len(entered.flows)), stops.scope >= 0
    of_stop = np.where(is_shared, of_shared[stops.scope, stops.dimension], of_own[at, stops.dimension])
    return np.minimum(np.where(stops.level >= 0, of_stop, 0), _LONGEST_FILLING_MS)


def _by_reason(rejected: Int64s, decisions: Decisions) -> tuple[int, ...]:
    """Return the number of rejected rows by `Reason`."""
    reasons = decisions.causes.reason[decisions.cause[rejected]]
    return tuple(np.bincount(reasons, minlength=len(Reason)).tolist())
