"""How far every flow gets in a batch, what stops it, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from spark_throttle.core import contention
from spark_throttle.core.contention import Contenders, Room
from spark_throttle.core.fair_order import FairOrder
from spark_throttle.core.layout import Candidates, Layout
from spark_throttle.core.matching import SHARED_LEVELS, Matches
from spark_throttle.core.quota import (
    Bools,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    Limits,
    OnExcess,
)
from spark_throttle.core.segments import sums
from spark_throttle.core.state import Flows, Grants
from spark_throttle.core.token_bucket import admissible_messages, byte_room, debit

_UNBOUNDED = 1 << 62
_TieOf: TypeAlias = Callable[[Int64s], Int64s]
"""`Layout.ties` of some flows."""

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """What observing scopes say of admitted candidates; -1 where nothing."""

    level: Int64s
    dimension: Int64s
    scope: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """The shared scope that stopped each flow; -1 where none did."""

    level: Int64s
    dimension: Int64s
    scope: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan:
    """The outcome of a batch for its flows; arrays run over the flows unless they say otherwise."""

    is_admitted: Bools
    """Of every candidate."""

    marks: Marks
    """Of every candidate."""

    stop_level: Int64s
    """The `Level` that stopped the flow; -1 where it was not stopped, or by a row that may not leave yet."""

    stop_dimension: Int64s
    stop_scope: Int64s
    balance_micro: Int64s
    """Shape (flows, 2): after the debits."""

    lead: Int64s
    """Shape (flows, 2): after the batch."""

    grants: Grants
    """After the debits."""


def plan_flows(
    candidates: Candidates,
    flows: Flows,
    limits: Limits,
    matches: Matches,
    grants: Grants,
    policy: CompiledPolicy,
    *,
    now_ms: int,
) -> FlowPlan:
    """Find how far every flow gets, and debit it."""
    layout = Layout.of(candidates, len(flows))
    counts = layout.segments.counts
    released = layout.segments.first(candidates.release_ms[layout.segments.order] > now_ms)
    by_messages, by_bytes = _own_prefixes(layout, flows.balance_micro, limits)
    passing = np.minimum(by_messages, by_bytes)
    is_observing = limits.on_excess == OnExcess.OBSERVE
    eligible = np.minimum(np.minimum(released, counts), np.where(is_observing, counts, passing))
    order = FairOrder.of(flows, limits, matches, policy)
    room = _room(grants, policy)
    tie_of = partial(layout.ties, candidates=candidates, names=flows.names, now_ms=now_ms)
    count, stops = _through_shared_scopes(layout, eligible, order, room, tie_of)
    served = np.stack([count, layout.bytes_of_first(count)], axis=1)
    is_own = ~is_observing & (count == passing) & (count < np.minimum(released, counts))
    taken = np.zeros((len(policy.shared), 2), dtype=np.int64)
    for scope in matches.shared_scope.T:
        taken += sums(scope[scope >= 0], served[scope >= 0], len(taken))
    is_admitted = layout.rank < count[layout.segments.key]
    marks = _own_marks(layout, is_admitted & is_observing[layout.segments.key], by_messages, passing)
    _mark_by_shared_scopes(marks, layout, is_admitted, order, room, tie_of)
    is_contended = np.zeros(len(policy.shared) + 1, dtype=np.bool_)
    is_contended[order.domain[stops.scope >= 0]] = True
    back = layout.segments.position
    return FlowPlan(
        is_admitted[back],
        Marks(marks.level[back], marks.dimension[back], marks.scope[back]),
        np.where(is_own, Level.NAMESPACE, stops.level),
        np.where(is_own, np.where(by_messages <= passing, _MESSAGES, _BYTES), stops.dimension),
        stops.scope,
        _debited(flows.balance_micro, served, limits.is_limited),
        order.leads_after(flows.lead, layout, eligible, served, is_contended),
        replace(grants, balance_micro=_debited(grants.balance_micro, taken, policy.shared.is_limited)),
    )


def _own_prefixes(layout: Layout, balance_micro: Int64s, limits: Limits) -> tuple[Int64s, Int64s]:
    """Return how many first rows of each flow its messages and its bytes balance let pass."""
    limited = limits.is_limited
    by_messages = np.where(limited[:, _MESSAGES], admissible_messages(balance_micro[:, _MESSAGES]), _UNBOUNDED)
    room = np.where(limited[:, _BYTES], byte_room(balance_micro[:, _BYTES]), _UNBOUNDED)
    by_bytes = layout.rows_within(room)
    return by_messages, np.where(by_bytes < layout.segments.counts, by_bytes, _UNBOUNDED)


def _room(grants: Grants, policy: CompiledPolicy) -> Room:
    limited = policy.shared.is_limited
    return Room(
        np.where(limited[:, _MESSAGES], admissible_messages(grants.balance_micro[:, _MESSAGES]), _UNBOUNDED),
        np.where(limited[:, _BYTES], byte_room(grants.balance_micro[:, _BYTES]), _UNBOUNDED),
    )


def _running_short(scope: Int64s, messages: Int64s, size_bytes: Int64s, room: Room) -> Int64s:
    """Return `scope`, shape (flows, levels), without those that have room for all that their flows want."""
    wanted_messages = np.zeros_like(room.messages)
    wanted_bytes = np.zeros_like(room.bytes)
    for column in scope.T:
        held = column >= 0
        wanted_messages += sums(column[held], messages[held], len(wanted_messages))
        wanted_bytes += sums(column[held], size_bytes[held], len(wanted_bytes))
    is_short = (wanted_messages > room.messages) | ((wanted_bytes > room.bytes) & (wanted_messages > 0))
    return np.where(np.append(is_short, False)[scope], scope, -1)


def _through_shared_scopes(
    layout: Layout, eligible: Int64s, order: FairOrder, room: Room, tie_of: _TieOf
) -> tuple[Int64s, Stops]:
    """Return how many first rows of each flow are admitted, and which scope stopped it."""
    none = np.full(len(eligible), -1, dtype=np.int64)
    stops = Stops(none, none.copy(), none.copy())
    scope = _running_short(order.enforcing, eligible, layout.bytes_of_first(eligible), room)
    contenders = np.flatnonzero((scope >= 0).any(axis=1) & (eligible > 0))
    if not len(contenders):
        return eligible, stops
    # No row can pass that its own flow alone would keep out; the first such row shows what stopped the flow.
    most = eligible.copy()
    for column in scope.T:
        held = column >= 0
        messages = np.where(held, room.messages[column], _UNBOUNDED)
        size_bytes = np.where(held, room.bytes[column], _UNBOUNDED)
        most = np.minimum(most, np.minimum(messages, layout.rows_within(size_bytes)) + 1)
    rows = layout.first_rows(contenders, most[contenders])
    flow = layout.segments.key[rows]
    key = order.keys(flow, layout.rank[rows], layout.bytes_before[rows])
    rows = rows[np.lexsort((tie_of(contenders)[flow], key))]
    flow = layout.segments.key[rows]
    competing = Contenders(flow, layout.size_bytes[rows], scope[flow])
    admitted = contention.admit_in_order(competing, room)
    count = eligible.copy()
    count[contenders] = np.bincount(flow[admitted], minlength=len(eligible))[contenders]
    refusals = contention.first_refusals(competing, room, admitted)
    stops.level[refusals.flow] = np.array(SHARED_LEVELS)[refusals.level]
    stops.dimension[refusals.flow] = refusals.dimension
    stops.scope[refusals.flow] = refusals.scope
    return count, stops


def _own_marks(layout: Layout, is_marking: Bools, by_messages: Int64s, passing: Int64s) -> Marks:
    """Mark admitted rows whose observing namespace had a negative balance."""
    key = layout.segments.key
    is_marked = is_marking & (layout.rank >= passing[key])
    dimension = np.where(layout.rank >= by_messages[key], _MESSAGES, _BYTES)
    return Marks(np.where(is_marked, Level.NAMESPACE, -1), np.where(is_marked, dimension, -1), np.full(len(key), -1))


def _mark_by_shared_scopes(
    marks: Marks, layout: Layout, is_admitted: Bools, order: FairOrder, room: Room, tie_of: _TieOf
) -> None:
    """Mark, in `marks`, the admitted rows that find an observing shared scope's balance negative."""
    key = layout.segments.key
    count = np.bincount(key[is_admitted], minlength=len(order.observing))
    scope = _running_short(order.observing, count, layout.bytes_of_first(count), room)
    watched = np.flatnonzero((scope >= 0).any(axis=1) & (count > 0))
    if not len(watched):
        return
    rows = layout.first_rows(watched, count[watched])
    flow = key[rows]
    rows = rows[np.lexsort((tie_of(watched)[flow], order.keys(flow, layout.rank[rows], layout.bytes_before[rows])))]
    for column, level in enumerate(SHARED_LEVELS):
        here = scope[key[rows], column]
        held = np.flatnonzero(here >= 0)
        before = contention.totals_before(here[held], layout.size_bytes[rows[held]], len(room.messages))
        is_short = room.is_short(here[held], *before) & (marks.level[rows[held]] < 0)
        at = rows[held[is_short]]
        marks.level[at] = level
        marks.scope[at] = here[held[is_short]]
        over_messages = before[0][is_short] >= room.messages[here[held[is_short]]]
        marks.dimension[at] = np.where(over_messages, _MESSAGES, _BYTES)


def _debited(balance_micro: Int64s, tokens: Int64s, is_limited: Bools) -> Int64s:
    return np.where(is_limited, debit(balance_micro, tokens), balance_micro)
