"""How far every flow gets in a batch, what stops it, and the debits of its buckets.

A flow gets a prefix of its rows, so all of this is arithmetic over flows. Whether everything in a batch fits is known
from the sums of its flows, before any row is put in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.batch.marks import DebtFloors, Marks, MarkStarts
from spark_throttle.core.batch.scope_room import (
    UNBOUNDED,
    OwnRoom,
    is_overdrawn,
    is_short_of,
    limited_scopes,
    room_of,
    taken_by,
)
from spark_throttle.core.fair import contention
from spark_throttle.core.fair.ends import Claims, Room, rows_before_end
from spark_throttle.core.fair.fair_order import FairOrder, limited_by
from spark_throttle.core.fair.fair_rows import FairRows
from spark_throttle.core.fair.layout import Candidates, Layout
from spark_throttle.core.limits.token_bucket import debit
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, domains_of, enforcing_scopes, scopes_where
from spark_throttle.core.quota import Bools, CompiledPolicy, Dimension, Int64s, Level, Limits, OnExcess
from spark_throttle.core.shared_buckets import SharedBuckets, under_share
from spark_throttle.core.state import Flows

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """What stopped each flow; -1 where nothing did."""

    level: Int64s
    """The `Level` that stopped the flow; also -1 where a row that may not leave yet stopped it."""

    dimension: Int64s
    scope: Int64s
    """The shared scope, -1 for the namespace itself."""

    @classmethod
    def none(cls, flows: int) -> Stops:
        """Return the stops of `flows` flows, none of which was stopped."""
        return cls(*(np.full(flows, -1, dtype=np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The admission of a batch; arrays run over the flows unless they say otherwise."""

    behind: Int64s
    """The positions, ascending, of the candidates that are not admitted."""

    marks: Marks
    """The marks of observing scopes on the admitted candidates."""

    stops: Stops
    wanted: Int64s
    """Shape (flows, 2): the messages and bytes of all candidates."""

    served: Int64s
    """Shape (flows, 2): the messages and bytes of the admitted candidates."""

    queues: Layout | None = None
    """The layout of the candidates that are not admitted; `None` if no candidate was put in order."""

    @classmethod
    def of_all(cls, wanted: Int64s) -> Outcome:
        """Return the outcome of a batch that admits everything."""
        return cls(np.zeros(0, dtype=np.int64), Marks.none(), Stops.none(len(wanted)), wanted, wanted)


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan:
    """The outcome of a batch for its flows, and the balances and leads that it leaves."""

    outcome: Outcome
    balance_micro: Int64s
    """Shape (flows, 2): the balances after the debits."""

    lead_vt: Int64s
    """Shape (flows, 2): the leads after the batch."""

    shared: SharedBuckets
    """The shared buckets after the debits."""


def plan_flows(
    candidates: Candidates,
    flows: Flows,
    limits: Limits,
    matches: Matches,
    shared: SharedBuckets,
    policy: CompiledPolicy,
    *,
    now_ms: int,
) -> FlowPlan:
    """Return the plan of a batch: how far every flow gets, and the balances and leads after its debits."""
    given = policy
    policy, balance_micro = shared.in_force(given)
    room, scopes = room_of(balance_micro, policy), limited_scopes(matches, policy)
    own, counts = OwnRoom.of(flows, limits), np.bincount(candidates.flow, minlength=len(flows))
    prices = None if shared.time is None else shared.time.prices_of(flows.names)
    may_hold = not is_overdrawn(room, policy).any()
    outcome = _outcome_if_all_fits(candidates, counts, own, room, scopes, now_ms=now_ms, may_hold=may_hold)
    if outcome is not None:
        leads = _leads_where_all_fits(flows.lead_vt, room, matches, policy)
        taken = taken_by(scopes, outcome.served[:, _MESSAGES], outcome.served[:, _BYTES], len(policy.shared))
        return _settled(outcome, leads, flows, limits, taken, shared, given, floors=DebtFloors.none())
    layout = Layout.of(candidates, counts)
    by_messages, passing = own.prefixes(layout)
    is_observing = limits.on_excess == OnExcess.OBSERVE
    released = counts
    if candidates.holds(now_ms):
        released = layout.segments.first(candidates.is_held(now_ms)[layout.segments.order])
    eligible = np.minimum(released, np.where(is_observing, counts, passing))
    is_short = is_short_of(scopes, eligible, layout.bytes_of_first(eligible), room)
    count, stops, levels, contest = eligible, Stops.none(len(flows)), [], None
    if is_short.any() or is_overdrawn(room, policy).any():  # otherwise no order matters
        only_observes = policy.shared.on_excess == OnExcess.OBSERVE
        short = scopes_where(is_short & ~only_observes, scopes)
        is_loose = _is_loose(is_short, matches, eligible, layout.bytes_of_first(eligible), room, policy)
        order = FairOrder.of(limits, matches, policy, is_loose, prices).entered(flows.lead_vt, short, policy)
        contest = _Contest(layout, order, room, candidates, flows.names, now_ms)
        count, stops = contest.decide(eligible, short)
        levels = contest.marked_from(count, scopes_where(is_short & only_observes, scopes))
    if is_observing.any():
        own_rank = np.where(is_observing, np.minimum(passing, count), count)
        levels.insert(0, MarkStarts(Level.NAMESPACE, np.full(len(flows), -1), own_rank, by_messages))
    is_own = ~is_observing & (count == passing) & (count < released)
    held_back = np.bincount(stops.scope[stops.scope >= 0], minlength=len(policy.shared)) > 0
    stops = Stops(
        np.where(is_own, Level.NAMESPACE, stops.level),
        np.where(is_own, np.where(by_messages <= passing, _MESSAGES, _BYTES), stops.dimension),
        stops.scope,
    )
    outcome = Outcome(
        layout.beyond(count),
        Marks.narrowest(layout, count, levels),
        stops,
        np.stack([counts, layout.bytes_of_first(counts)], axis=1),
        np.stack([count, layout.bytes_of_first(count)], axis=1),
        layout.behind(count),
    )
    taken = taken_by(scopes, count, outcome.served[:, _BYTES], len(policy.shared))
    left = room.less(*taken)
    is_contended = held_back | is_overdrawn(left, policy)
    leads = np.zeros((len(flows), 2), dtype=np.int64)
    if contest is not None:
        leads = contest.leads_after(flows.lead_vt, eligible, outcome.served, is_contended, policy)
    floors = DebtFloors.none() if not levels else DebtFloors.of(
        layout, count, levels, flows.balance_micro, limits, shared.balance_micro,
        under_share(given, shared.share_micro_per_ms).shared,
    )  # fmt: skip
    return _settled(outcome, leads, flows, limits, taken, shared, given, floors=floors)


def _is_loose(
    is_short: Bools, matches: Matches, messages: Int64s, size_bytes: Int64s, room: Room, policy: CompiledPolicy
) -> Bools:
    """Return which shared scopes have tokens for all that other scopes let pass of their flows.

    Those are the scopes that do not run short, and the job if each group and each tenant has no more left than fits.
    """
    domain = domains_of(enforcing_scopes(matches.shared_scope, policy))
    wanted_messages, wanted_bytes = taken_by(domain[:, None], messages, size_bytes, len(room.messages))
    passing_messages = np.minimum(wanted_messages[1:], np.maximum(room.messages[1:], 0)).sum() + wanted_messages[0]
    passing_bytes = np.minimum(wanted_bytes[1:], np.maximum(room.bytes[1:], 0)).sum() + wanted_bytes[0]
    is_loose = ~is_short
    is_loose[0] |= passing_messages <= room.messages[0] and passing_bytes <= room.bytes[0]
    return is_loose


def _leads_where_all_fits(lead_vt: Int64s, room: Room, matches: Matches, policy: CompiledPolicy) -> Int64s:
    """Return the leads after a batch that held no flow back: the busy period of scopes that owe nothing is over."""
    owes = is_overdrawn(room, policy)
    if not owes.any() or not lead_vt.any():
        return np.zeros_like(lead_vt)
    is_kept = limited_by(scopes_where(owes, matches.shared_scope), policy.shared.is_limited)
    return np.where(is_kept, lead_vt, 0)


def _outcome_if_all_fits(
    candidates: Candidates,
    counts: Int64s,
    own: OwnRoom,
    room: Room,
    scope: Int64s,
    *,
    now_ms: int,
    may_hold: bool,
) -> Outcome | None:
    """Return the outcome of a batch in which no balance runs short, `None` if one does.

    So all rows leave, but those from each flow's first row on that a release time holds.

    Parameters
    ----------
    counts
        The number of rows of each flow.
    scope
        Shape (flows, 3): the limited shared scopes of each flow, -1 where there is none.
    may_hold
        Whether release times may hold rows: while a scope owes bytes, the order of rows matters if any row is held.
    """
    behind, messages, flow, size_bytes = None, counts, candidates.flow, candidates.size_bytes
    if candidates.holds(now_ms):
        if not may_hold:
            return None
        first_held = candidates.first_of(len(counts), np.flatnonzero(candidates.is_held(now_ms)))
        is_free = np.arange(len(candidates)) < first_held[flow]
        behind = np.flatnonzero(~is_free)
        messages = counts - np.bincount(flow[behind], minlength=len(counts))
    nothing = np.zeros_like(messages)
    if (messages > own.messages).any() or is_short_of(scope, messages, nothing, room).any():
        return None
    wanted_bytes = sums(flow, size_bytes, len(counts))
    held_bytes = nothing if behind is None else sums(flow[behind], size_bytes[behind], len(counts))
    free_bytes = wanted_bytes - held_bytes
    if ((free_bytes > own.bytes) & (messages > 0)).any() or is_short_of(scope, messages, free_bytes, room).any():
        return None
    wanted = np.stack([counts, wanted_bytes], axis=1)
    if behind is None:
        return Outcome.of_all(wanted)
    served = np.stack([messages, free_bytes], axis=1)
    return replace(Outcome.of_all(wanted), behind=behind, served=served)


@dataclass(frozen=True, slots=True, eq=False)
class _Contest:
    """The competition of a batch's flows for its shared scopes."""

    layout: Layout
    order: FairOrder
    room: Room
    candidates: Candidates
    names: pa.StringArray
    now_ms: int

    def decide(self, eligible: Int64s, scope: Int64s) -> tuple[Int64s, Stops]:
        """Return how many of the first `eligible` rows of each flow are admitted, and which scope stopped the flow.

        Parameters
        ----------
        scope
            Shape (flows, 3): the scopes of each flow that run short, -1 for its other scopes.
        """
        stops = Stops.none(len(eligible))
        contenders = np.flatnonzero(by_row(np.logical_or, scope >= 0) & (eligible > 0))
        if not len(contenders):
            return eligible, stops
        # A row that would not fit even if its flow were alone cannot pass; the first such row shows what stopped the
        # flow.
        most = np.minimum(eligible, self._passing_alone(scope) + 1)[contenders]
        rows, scope = self._rows(contenders), scope.take(contenders, axis=0)
        admitted = contention.admit_in_order(rows, most, scope, self.room)
        count = eligible.copy()
        count[contenders] = admitted
        refusals = contention.first_refusals(rows, most, scope, self.room, admitted)
        flow = contenders[refusals.flow]
        stops.level[flow] = np.array(SHARED_LEVELS)[refusals.level]
        stops.dimension[flow] = refusals.dimension
        stops.scope[flow] = refusals.scope
        return count, stops

    def _passing_alone(self, scope: Int64s) -> Int64s:
        """Return how many first rows of each flow would pass its scopes, shape (flows, 3), if it were alone."""
        messages = by_row(np.minimum, np.append(self.room.messages, UNBOUNDED)[scope])
        within = self.layout.rows_within(by_row(np.minimum, np.append(self.room.bytes, UNBOUNDED)[scope]))
        return np.minimum(messages, within)

    def marked_from(self, count: Int64s, scope: Int64s) -> list[MarkStarts]:
        """Return, for every level that marks rows, the first of each flow's first `count` rows that it marks.

        Parameters
        ----------
        scope
            Shape (flows, 3): the observing scopes of each flow that may run short, -1 for its other scopes.
        """
        if scope.max(initial=-1) < 0:
            return []
        scope = scopes_where(is_short_of(scope, count, self.layout.bytes_of_first(count), self.room), scope)
        watched = np.flatnonzero(by_row(np.logical_or, scope >= 0) & (count > 0))
        if not len(watched):
            return []
        rows, levels = self._rows(watched), []
        # By messages alone: a row behind that end is short of messages, whatever else it is short of.
        messages_only = Room(self.room.messages, np.full_like(self.room.bytes, UNBOUNDED))
        for column, level in enumerate(SHARED_LEVELS):
            at = np.flatnonzero(scope[watched, column] >= 0)
            flow = watched[at]
            claims = Claims(at, scope[flow, column], np.zeros_like(at), count[flow])
            rank, messages_rank = count.copy(), count.copy()
            rank[flow] = rows_before_end(rows, claims, self.room)
            messages_rank[flow] = rows_before_end(rows, claims, messages_only)
            levels.append(MarkStarts(level, scope[:, column], rank, messages_rank))
        return levels

    def leads_after(
        self, lead_vt: Int64s, eligible: Int64s, served: Int64s, is_contended: Bools, policy: CompiledPolicy
    ) -> Int64s:
        """Return the leads that the batch leaves (`FairOrder.leads_after`)."""
        return self.order.leads_after(lead_vt, self.layout, eligible, served, is_contended, policy)

    def _rows(self, flows: Int64s) -> FairRows:
        """Return the rows of `flows`, which ascend, in the form that `contention` takes."""

        def ties(at: Int64s) -> Int64s:
            return self.layout.ties(flows[at], self.candidates, self.names, now_ms=self.now_ms)

        order = self.order if len(flows) == len(self.order.domain) else self.order.take(flows)
        return FairRows(self.layout, order, self.layout.segments.starts[flows], ties)


def _settled(  # noqa: PLR0913 - all that a batch debits
    outcome: Outcome,
    lead_vt: Int64s,
    flows: Flows,
    limits: Limits,
    taken: Int64s,
    shared: SharedBuckets,
    policy: CompiledPolicy,
    *,
    floors: DebtFloors,
) -> FlowPlan:
    """Return the plan of a batch, with the admitted rows debited: those of all scopes together are `taken`."""
    left = debit(flows.balance_micro, outcome.served, floors.own)
    balance_micro = np.where(limits.is_limited, left, flows.balance_micro)
    return FlowPlan(outcome, balance_micro, lead_vt, shared.debited(taken.T, policy, floors.shared))
