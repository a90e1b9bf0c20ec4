"""Balances, leads and waiting rows survive a change of policy, converted to the new one.

A policy acts from the batch that brings it. What was remembered under the old policy is first converted to the new:

- *Time* up to the change is paid at the old rates, so that no window holds more than the rates in force in it earn.
- *A bucket* keeps its balance, cut to its new burst. It begins full in a dimension that had no limit, and holds nothing
  in one that no longer has any. A debt stays, whatever the new burst. An observing scope's overdraft is not a debt: it
  owes one burst at most. A bucket of rate 0 that owes nothing is empty once the rate is raised; a namespace that was
  forgotten meanwhile begins full.
- *A guarantee* keeps its balance, cut to what it may keep. One that is new begins with nothing, and lets its first row
  go all the same.
- *What a smaller burst cuts off* stays spent. A namespace that is forgotten returns with the burst then in force, so it
  is forgotten only when the largest bucket that it had since it was full would be full too, at the rates in force.
  Otherwise a burst could be had again and again, by a small burst for a moment.
- *A lead* in the fair tree stays, as the new rates count it, where the siblings pass the same scopes as before above
  them, and these limit the same resources. Elsewhere it is forgotten.
- *A row* that a Pegasus rule holds waits no longer than the namespace's present rule would make it wait.

A scope that is removed has no limit in the batches without it. If it is put back, it is treated as any scope that gets
its first limit: it begins full and without debt. That gives nothing away: without the entry, its rows passed freely.

A lead is work, as the scopes on its way counted it. It stays where these limit the same resources, in whatever
proportion: if a change were to forget it, each would begin with the tie, and who loses the tie would get nothing while
policies change as fast as rows go. Where a byte or a millisecond counts less after the change, so does the lead: it may
be all of them. Where one counts more, the lead stays as it is. So in no resource does it become larger, siblings keep
their order, and their leads sum to 0. Where a scope is another, or limits other resources, the lead says nothing, and
is forgotten: it is at most two of the largest rows. That is asked of the scopes that divide between a node and its
siblings, and not of the node's own: else a tenant could change its own entry behind each large row, and forget what it
is ahead. Weights may change: the next batch honours of the leads what can be paid under them (`fair.promises`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.fair.work import lasting_work
from spark_throttle.core.left_rows import charged, given_back, tally
from spark_throttle.core.limits.budgets import Budgets, CalendarWindows, Spent, paces
from spark_throttle.core.limits.token_bucket import full, refill, refilled_cut
from spark_throttle.core.measured_time import corrected
from spark_throttle.core.names.matching import Matches, match, named, positions_in, scopes_of, tenants_of
from spark_throttle.core.quota import (
    MIN_BALANCE_MICRO,
    UNLIMITED,
    Bools,
    CompiledPolicy,
    Int64s,
    Limits,
    OnExcess,
    WindowRules,
)
from spark_throttle.core.reservations import under_policy
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import ControlRow, DeciderState, NodeLeads, Queue

_SHUT = -1
"""The micro-tokens in a bucket of rate 0 that owes nothing."""


def under_epoch(
    state: DeciderState, row: ControlRow, before: CompiledPolicy, after: CompiledPolicy, *, now_ms: int
) -> DeciderState:
    """Return the state, paid up to `now_ms` under `before`, with what an epoch pins; `after` is the epoch's policy.

    What was measured of the batches before is charged first: it was used under `before`.

    Under the same policy, the shared buckets are paid up to the time at which the epoch was made: from then on they
    earn at the shares that it pins. Budgets whose windows have ended begin anew, those that there were before.
    """
    if row.measured is not None:
        state = corrected(state, row.measured, before)
    moves = len(state.left) > 0 and (after is not before or _begins(row.windows, state))
    sent_again = tally(state.left, len(state.flows)) if moves else None
    if sent_again is not None:
        state = given_back(state, sent_again, before)
    state = in_windows(state, row.windows, before)
    if after is before:
        pinned_ms = max(state.shared.as_of_ms, min(row.paying.paid_ms, now_ms))
        shared = state.shared.refilled(before, now_ms=pinned_ms, earns_until_ms=row.earns_until_ms)
        state = replace(state, shared=shared)
    else:
        state = carried(state, before, after, now_ms=now_ms, earns_until_ms=row.earns_until_ms)
    shared = state.shared.under(after, row.share_micro_per_ms, row.claims, row.parts_micro_per_ms)
    unavailable = np.zeros(0, dtype=np.int64) if row.unavailable is None else row.unavailable
    state = replace(state, shared=shared, epoch=row.epoch, unavailable=unavailable)
    return state if sent_again is None else charged(state, sent_again, after)


def carried(
    state: DeciderState,
    before: CompiledPolicy,
    after: CompiledPolicy,
    *,
    now_ms: int,
    earns_until_ms: Int64s | None = None,
) -> DeciderState:
    """Return the state, paid up to `now_ms` under `before` and converted to `after`.

    Parameters
    ----------
    earns_until_ms
        As in `SharedBuckets.refilled`, for the scopes of `before`.
    """
    flows = state.flows
    was, becomes = match(flows.names, before), match(flows.names, after)
    old, new = was.own_limits(before), becomes.own_limits(after)
    elapsed_ms = max(0, now_ms - state.advanced_to_ms)
    old_full_micro = full(old.rate_micro_per_ms, old.burst_micro)
    earned_micro = refill(flows.balance_micro, old.rate_micro_per_ms, old_full_micro, elapsed_ms)
    still_cut_micro = refilled_cut(
        flows.cut_micro, flows.balance_micro, earned_micro, old.rate_micro_per_ms, old_full_micro, elapsed_ms
    )
    balance_micro = carried_balances(earned_micro, old, new)
    cut_micro = carried_cut(still_cut_micro, earned_micro, balance_micro, old, new)
    ways = Ways.of(before, after)
    kept_by_flow = ways.kept(was.shared_scope, becomes.shared_scope)
    among_siblings = kept_by_flow
    if after.is_between_namespaces.any():  # there a namespace is its group's child
        is_alone = np.append(after.is_between_namespaces, False)[becomes.group_scope]
        in_group = ways.kept(*(_without_tenant(each.shared_scope) for each in (was, becomes)))
        among_siblings = np.where(is_alone, in_group, kept_by_flow)
    flows = replace(
        flows, balance_micro=balance_micro, cut_micro=cut_micro,
        lead_work=carried_work(flows.lead_work, np.stack([among_siblings, kept_by_flow], axis=1)),
        held=np.where(kept_by_flow[:, None] > 0, flows.held, 0),
        spent=carried_spent(flows.spent, np.arange(len(flows)), old, new),
    )  # fmt: skip
    nodes = carried_nodes(state.nodes, ways, flows.names, (was, becomes))
    queue = _released(state.queue, after.namespace_windows.take(becomes.rule), now_ms=now_ms)
    shared = state.shared.refilled(before, now_ms=now_ms, earns_until_ms=earns_until_ms)
    former = former_scopes(before, after)
    shared = SharedBuckets(
        carried_shared(shared.balance_micro, before, after), now_ms,
        guaranteed_micro=carried_guarantees(shared.guaranteed_micro, before, after),
        spent=carried_spent(shared.spent, former, before.shared, after.shared),
    )  # fmt: skip
    return replace(
        state,
        advanced_to_ms=now_ms,
        flows=flows,
        queue=queue,
        shared=shared,
        nodes=nodes,
        reservations=under_policy(state.reservations, was, becomes, before, after, former),
        new_weights=state.new_weights | ways.reweighed(old.weight != new.weight, was, becomes),
        paid_ms=state.paid_ms + elapsed_ms if state.advanced_to_ms else 0,
    )


def carried_shared(balance_micro: Int64s, before: CompiledPolicy, after: CompiledPolicy) -> Int64s:
    """Return the balances of the shared scopes of `after`, shape (scopes, 4), given those of `before`."""
    shared = after.shared
    carried_micro = full(shared.rate_micro_per_ms, shared.burst_micro)
    former = former_scopes(before, after)
    kept = np.flatnonzero(former >= 0)
    at = former[kept]
    carried_micro[kept] = carried_balances(balance_micro.take(at, axis=0), before.shared.take(at), shared.take(kept))
    return carried_micro


def carried_spent(spent: Spent | None, former: Int64s, before: Limits, after: Limits) -> Spent | None:
    """Return what scopes whose limits are `after` have used of their budgets, given that of those `before`.

    Parameters
    ----------
    former
        The position of each scope among those before, -1 where it is new.
    """
    becomes = Budgets.of(after)
    if spent is None or becomes is None:
        return None
    was = Budgets.of(before)
    return None if was is None else spent.take(former).under(was.take(former), becomes)


def in_windows(state: DeciderState, windows: CalendarWindows | None, policy: CompiledPolicy) -> DeciderState:
    """Return the state with the windows that are in force now, under the policy under which rows were charged."""
    before = state.windows
    if windows is None or before is None or not _begins(windows, state):
        return replace(state, windows=windows)
    flows, shared = state.flows, state.shared
    own, spent = Budgets.of(policy.namespace_limits), flows.spent
    if own is not None and spent is not None:
        of_flow = own.take(match(flows.names, policy).rule)
        flows = replace(flows, spent=spent.in_windows(windows, before, of_flow))
    budgets, spent = Budgets.of(policy.shared), shared.spent
    if budgets is not None and spent is not None:
        shared = replace(shared, spent=spent.in_windows(windows, before, budgets, shared.claims))
    return replace(state, flows=flows, shared=shared, windows=windows)


def _begins(windows: CalendarWindows | None, state: DeciderState) -> bool:
    """Return whether some of these windows are others than those in which rows were charged."""
    before = state.windows
    return windows is not None and before is not None and bool((windows.number != before.number).any())


def carried_guarantees(guaranteed_micro: Int64s | None, before: CompiledPolicy, after: CompiledPolicy) -> Int64s | None:
    """Return the balances of what `after` guarantees, shape (guarantees, 4), given those of `before`; 0 where new."""
    was, becomes = before.guarantees, after.guarantees
    if guaranteed_micro is None or was is None or becomes is None:
        return None
    names = positions_in(before.namespace_names, after.namespace_names)
    of_scope, of_rule = np.append(former_scopes(before, after), -1), np.append(names, -1)
    scopes, rules = becomes.scope, np.where(becomes.rule < len(names), becomes.rule, -1)
    former = np.full(len(becomes), -1, dtype=np.int64)
    for own, old in ((of_scope[scopes], was.scope), (of_rule[rules], was.rule)):
        position = np.full(max(int(old.max()), int(own.max())) + 2, -1, dtype=np.int64)
        position[old] = np.arange(len(old))
        former = np.maximum(former, np.where(own >= 0, position[own], -1))
    held = np.append(guaranteed_micro, np.zeros((1, guaranteed_micro.shape[1]), dtype=np.int64), axis=0)[former]
    return np.where(becomes.rate_micro_per_ms >= 0, held, 0)


def carried_balances(balance_micro: Int64s, before: Limits, after: Limits) -> Int64s:
    """Return the balances, shape (n, 4), of scopes whose limits change from `before` to `after`.

    Examples
    --------
    A limit on bytes is added, and the limit on messages is raised:

    >>> def limits(rates, bursts, on_excess=OnExcess.DELAY):
    ...     return Limits(np.array([rates]), np.array([bursts]), np.array([on_excess]), np.array([1]))
    >>> before, after = limits((1_000, -1), (9_000, 0)), limits((2_000, 5), (18_000, 50))
    >>> carried_balances(np.array([[-4_000_000, 0]]), before, after).tolist()
    [[-4000000, 50]]

    An observing scope was overdrawn by hours:

    >>> dry_run = limits((1_000, -1), (9_000, 0), OnExcess.OBSERVE)
    >>> carried_balances(np.array([[-4_000_000, 0]]), dry_run, after).tolist()
    [[-18000, 50]]
    """
    begins = full(after.rate_micro_per_ms, after.burst_micro)
    kept = np.minimum(_without_overdraft(balance_micro, before, after), begins)
    # A rate of 0 holds the balance just below zero, which is not a debt.
    was_shut = (before.rate_micro_per_ms == 0) & (after.rate_micro_per_ms > 0)
    kept = np.where(was_shut & (kept == _SHUT), 0, kept)
    return np.where(before.is_limited & after.is_limited, kept, begins)


def _without_overdraft(balance_micro: Int64s, before: Limits, after: Limits) -> Int64s:
    """Return the balances, those of observing scopes not below a burst of `after`."""
    is_observing = (before.on_excess == OnExcess.OBSERVE)[:, None]
    return np.maximum(balance_micro, np.where(is_observing, -after.burst_micro, MIN_BALANCE_MICRO))


def carried_cut(cut_micro: Int64s, balance_micro: Int64s, kept_micro: Int64s, before: Limits, after: Limits) -> Int64s:
    """Return what is cut off of buckets (`state.Flows`), shape (n, 4), after a change of their limits.

    Parameters
    ----------
    cut_micro, balance_micro
        As the buckets are before the change.
    kept_micro
        Their balances after it (`carried_balances`).

    Examples
    --------
    A bucket of 5 tokens that holds 3 is cut to 1 and is full. Later its burst is 5 again:

    >>> def limits(burst):
    ...     return Limits(np.array([[5_000]]), np.array([[burst]]), np.array([OnExcess.REJECT]), np.array([1]))
    >>> nothing, three, one = np.array([[0]]), np.array([[3]]), np.array([[1]])
    >>> cut = carried_cut(nothing, three, one, limits(5), limits(1))
    >>> cut.tolist(), carried_cut(cut, one, one, limits(1), limits(5)).tolist()
    ([[2]], [[0]])
    """
    had, has = (full(each.rate_micro_per_ms, each.burst_micro) for each in (before, after))
    lacked_micro = cut_micro + had - _without_overdraft(balance_micro, before, after)
    is_limited = before.is_limited & after.is_limited
    return np.where(is_limited, np.maximum(lacked_micro - (has - kept_micro), 0), 0)


def former_scopes(before: CompiledPolicy, after: CompiledPolicy) -> Int64s:
    """Return, for every shared scope of `after`, its position among those of `before`, -1 where it is new."""
    tenant = positions_in(before.tenant_names, after.tenant_names)
    group = positions_in(before.group_names, after.group_names)
    return np.concatenate([np.zeros(1, dtype=np.int64), *scopes_of(tenant, group, before)])


def _released(queue: Queue, rules: WindowRules, *, now_ms: int) -> Queue:
    """Return the waiting rows, none of them held longer than the `rules` of its flow would hold it from now on."""
    longest_ms = by_row(np.maximum, np.where(rules.delay_units > 0, rules.delay_ms, 0))
    return replace(queue, release_ms=np.minimum(queue.release_ms, now_ms + longest_ms[queue.flow]))


def carried_nodes(nodes: NodeLeads, ways: Ways, names: pa.StringArray, matches: tuple[Matches, Matches]) -> NodeLeads:
    """Return the leads of nodes that a change of the policy leaves.

    A node that all of its flows have left loses its lead: they pay it nowhere, and its siblings would.

    Parameters
    ----------
    names, matches
        The flows that are remembered, and their scopes before and after.
    """
    if not len(nodes):
        return nodes
    old, new = (_scopes_of(nodes, policy) for policy in (ways.before, ways.after))
    is_group = ~nodes.tenant.is_valid().to_numpy(zero_copy_only=False)
    above = [_without_tenant(each) for each in (old, new)]
    for each in above:
        each[is_group, 1] = -1
    beside = np.where(is_group & (new[:, 1] < 0), 0, ways.kept(*above))
    lead_work = carried_work(nodes.lead_work, np.stack([beside, ways.kept(old, new)], axis=1))
    had, has = (_above(names, found, policy) for found, policy in zip(matches, (ways.before, ways.after), strict=True))
    key = _node_key(nodes.group, nodes.tenant)
    is_left = pc.and_not(pc.is_in(key, value_set=had), pc.is_in(key, value_set=has))
    stays = by_row(np.logical_or, lead_work != 0) & ~is_left.to_numpy(zero_copy_only=False)
    return NodeLeads(nodes.group, nodes.tenant, lead_work).take(np.flatnonzero(stays))


def _without_tenant(scopes: Int64s) -> Int64s:
    """Return ways, shape (n, 4), from the group on: those of leads that a tenant's node has beside others."""
    scopes = scopes.copy()
    scopes[:, 0] = -1
    return scopes


def _above(names: pa.StringArray, matches: Matches, policy: CompiledPolicy) -> pa.StringArray:
    """Return the keys of all inner nodes above namespaces, in any order."""
    group, tenant = named(policy.group_names, matches.group), tenants_of(names)
    return pa.concat_arrays([_node_key(group, tenant), _node_key(group, pa.nulls(len(names), pa.string()))])


def _node_key(group: pa.StringArray, tenant: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(group, tenant, "/", null_handling="replace", null_replacement="")


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The ways to namespaces and nodes of the fair tree before and after a change of the policy."""

    before: CompiledPolicy
    after: CompiledPolicy
    former: Int64s
    """As `former_scopes`."""

    is_same: Bools
    """Whether each shared scope of `after` limits the same resources as before, and divides them between the same."""

    @classmethod
    def of(cls, before: CompiledPolicy, after: CompiledPolicy) -> Ways:
        """Return the ways of a change."""
        former = former_scopes(before, after)
        was, becomes = (paces(policy.shared) != UNLIMITED for policy in (before, after))
        is_same = by_row(np.logical_and, was[former] == becomes)
        is_same &= (before.is_between_namespaces[former] == after.is_between_namespaces) & (former >= 0)
        return cls(before, after, former, is_same)

    def kept(self, old: Int64s, new: Int64s) -> Int64s:
        """Return the factor by which leads are kept whose ways pass these scopes, shape (n, 4): 0 for others."""
        is_same = np.where(new >= 0, np.append(self.former, -1)[new] == old, old < 0)
        is_kept = by_row(np.logical_and, is_same & np.append(self.is_same, True)[new])
        was, becomes = lasting_work(old, self.before.shared), lasting_work(new, self.after.shared)
        is_less = becomes < was
        part = np.where(is_less, quotient(np.where(is_less, becomes, 0), was, FACTOR_BITS), WHOLE)
        return np.where(is_kept, by_row(np.minimum, part), 0)

    def reweighed(self, has_new_weight: Bools, was: Matches, becomes: Matches) -> int:
        """Return the levels of the fair tree that have other weights or siblings, as in `DeciderState`.

        Parameters
        ----------
        has_new_weight, was, becomes
            Of the namespaces that are remembered: whether each has another weight, and their scopes.
        """
        group = becomes.group_scope
        has_moved = np.where(group >= 0, np.append(self.former, -1)[group], -1) != was.group_scope
        if has_moved.any() or (was.is_exempt != becomes.is_exempt).any():
            return 0b111
        levels, tenants = 0, 1 + len(self.after.tenant_names)
        if has_new_weight.any():  # a namespace may be its group's child
            levels |= 0b011 if self.after.is_between_namespaces.any() else 0b001
        weight, names = np.append(self.before.shared.weight, 1)[self.former], len(self.before.tenant_names)
        is_other = weight != self.after.shared.weight
        is_gone = np.ones(len(self.before.shared), dtype=np.bool_)
        is_gone[self.former[self.former >= 0]] = False
        if is_other[1:tenants].any() or (is_gone & (self.before.shared.weight != 1))[1 : 1 + names].any():
            levels |= 0b110  # a tenant without a group is the job's child
        if is_other[tenants:].any() or is_gone[1 + names :].any():
            levels |= 0b100
        return levels


def carried_work(work: Int64s, kept: Int64s) -> Int64s:
    """Return leads of which these factors are kept, both of shape (n, 2).

    Examples
    --------
    Two siblings keep a third, and one that is in another group now keeps nothing:

    >>> third = WHOLE // 3 + 1
    >>> kept = np.array([[third, 0], [third, 0], [0, 0]])
    >>> carried_work(np.array([[600, 0], [-600, 0], [90, 7]]), kept).tolist()
    [[200, 0], [-200, 0], [0, 0]]
    """
    return np.sign(work) * times(np.abs(work), kept)


def _scopes_of(nodes: NodeLeads, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of the tenant, the group and the job of each node, -1 where there is none."""
    tenant, group = positions_in(policy.tenant_names, nodes.tenant), positions_in(policy.group_names, nodes.group)
    return np.stack([*scopes_of(tenant, group, policy), np.zeros_like(group)], axis=1)
