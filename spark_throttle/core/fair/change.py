"""What the fair tree keeps when the policy changes: leads, as the policy after counts them, and never more of them.

A lead is work, as the scopes on its way counted it. It stays where these limit the same resources, in whatever
proportion: if a change were to forget it, each would begin with the tie, and who loses the tie would get nothing while
policies change as fast as rows go. Where a byte or a millisecond counts less after the change, so does the lead: it may
be all of them. Where one counts more, the lead stays as it is. So in no resource does it become larger, siblings keep
their order, and their leads sum to 0. Where a scope is another, or limits other resources, the lead says nothing, and
is forgotten: it is at most two of the largest rows. Weights may change: the next batch honours of the leads what can be
paid under them (`promises`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.fair.work import byte_work, time_work
from spark_throttle.core.names.matching import Matches, named, positions_in, scopes_of, tenants_of
from spark_throttle.core.quota import Bools, CompiledPolicy, Int64s
from spark_throttle.core.state import NodeLeads


def carried_nodes(
    nodes: NodeLeads,
    former: Int64s,
    before: CompiledPolicy,
    after: CompiledPolicy,
    kept: Int64s,
    names: pa.StringArray,
    matches: tuple[Matches, Matches],
) -> NodeLeads:
    """Return the leads of nodes that `after` leaves.

    A node that all of its flows have left loses its lead: they pay it nowhere, and its siblings would.

    Parameters
    ----------
    former, kept
        As in `kept_on_the_way`.
    names, matches
        The flows that are remembered, and their scopes before and after.
    """
    if not len(nodes):
        return nodes
    old, new = (_scopes_of(nodes, policy) for policy in (before, after))
    lead_work = carried_work(nodes.lead_work, kept_on_the_way(old, new, former, kept))
    had, has = (_above(names, found, policy) for found, policy in zip(matches, (before, after), strict=True))
    key = _node_key(nodes.group, nodes.tenant)
    is_left = pc.and_not(pc.is_in(key, value_set=had), pc.is_in(key, value_set=has))
    stays = by_row(np.logical_or, lead_work != 0) & ~is_left.to_numpy(zero_copy_only=False)
    return NodeLeads(nodes.group, nodes.tenant, lead_work).take(np.flatnonzero(stays))


def _above(names: pa.StringArray, matches: Matches, policy: CompiledPolicy) -> pa.StringArray:
    """Return the keys of all inner nodes above namespaces, in any order."""
    group, tenant = named(policy.group_names, matches.group), tenants_of(names)
    return pa.concat_arrays([_node_key(group, tenant), _node_key(group, pa.nulls(len(names), pa.string()))])


def _node_key(group: pa.StringArray, tenant: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(group, tenant, "/", null_handling="replace", null_replacement="")


def kept_parts(before: CompiledPolicy, after: CompiledPolicy, former: Int64s) -> Int64s:
    """Return the factor by which each shared scope of `after` keeps leads; `former` has its position in `before`."""
    is_same = by_row(np.logical_and, before.shared.is_limited[former] == after.shared.is_limited)
    is_same &= _between_namespaces(before)[former] == _between_namespaces(after)
    kept = np.where((former >= 0) & is_same, WHOLE, 0)
    for work_of in (byte_work, time_work):
        was, becomes = work_of(before.shared.rate_micro_per_ms)[former], work_of(after.shared.rate_micro_per_ms)
        is_less = becomes < was
        kept = np.where(is_less, np.minimum(kept, quotient(np.where(is_less, becomes, 0), was, FACTOR_BITS)), kept)
    return kept


def _between_namespaces(policy: CompiledPolicy) -> Bools:
    """Return whether namespaces, and not tenants, divide the tokens of each shared scope."""
    found = np.zeros(len(policy.shared), dtype=np.bool_)
    if policy.is_between_namespaces is not None:
        found[1 + len(policy.tenant_names) :] = policy.is_between_namespaces
    return found


def kept_on_the_way(old: Int64s, new: Int64s, former: Int64s, kept: Int64s) -> Int64s:
    """Return the factor by which leads are kept whose ways pass these scopes, shape (n, 3): 0 if they are others.

    Parameters
    ----------
    former, kept
        Of every shared scope of the policy after: its position before, and `kept_parts`.
    """
    is_same = np.where(new >= 0, np.append(former, -1)[new] == old, old < 0)
    return by_row(np.minimum, np.where(is_same, np.append(kept, WHOLE)[new], 0))


def carried_work(work: Int64s, kept: Int64s) -> Int64s:
    """Return leads, or the work of held rows, shape (n, 2), of which these factors are kept.

    Examples
    --------
    Two siblings keep a third, and one that is in another group now keeps nothing:

    >>> carried_work(np.array([[600, 0], [-600, 0], [90, 7]]), np.array([WHOLE // 3 + 1, WHOLE // 3 + 1, 0])).tolist()
    [[200, 0], [-200, 0], [0, 0]]
    """
    return np.sign(work) * times(np.abs(work), kept[:, None])


def _scopes_of(nodes: NodeLeads, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of the tenant, the group and the job of each node, -1 where there is none."""
    tenant, group = positions_in(policy.tenant_names, nodes.tenant), positions_in(policy.group_names, nodes.group)
    return np.stack([*scopes_of(tenant, group, policy), np.zeros_like(group)], axis=1)
