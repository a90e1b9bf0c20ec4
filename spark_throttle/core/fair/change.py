"""What the fair tree keeps when the policy changes: the leads of those that pass the same scopes and count the same.

A lead is work, as the scopes on its way counted it. Where one of them is another, or counts otherwise, it says nothing,
and is forgotten: it is at most two of the largest rows. Weights may change: the next batch honours of the leads what
can be paid under them (`promises`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    is_same: Bools,
    names: pa.StringArray,
    matches: tuple[Matches, Matches],
) -> NodeLeads:
    """Return the leads of those nodes whose scopes count work under `after` as they did under `before`.

    A node that all of its flows have left loses its lead: they pay it nowhere, and its siblings would.

    Parameters
    ----------
    former, is_same
        As in `counts_the_same`.
    names, matches
        The flows that are remembered, and their scopes before and after.
    """
    if not len(nodes):
        return nodes
    old, new = (_scopes_of(nodes, policy) for policy in (before, after))
    is_kept = counts_the_same(old, new, former, is_same)
    had, has = (_above(names, found, policy) for found, policy in zip(matches, (before, after), strict=True))
    key = _node_key(nodes.group, nodes.tenant)
    is_left = pc.and_not(pc.is_in(key, value_set=had), pc.is_in(key, value_set=has))
    return nodes.take(np.flatnonzero(is_kept & ~is_left.to_numpy(zero_copy_only=False)))


def _above(names: pa.StringArray, matches: Matches, policy: CompiledPolicy) -> pa.StringArray:
    """Return the keys of all inner nodes above namespaces, in any order."""
    group, tenant = named(policy.group_names, matches.group), tenants_of(names)
    return pa.concat_arrays([_node_key(group, tenant), _node_key(group, pa.nulls(len(names), pa.string()))])


def _node_key(group: pa.StringArray, tenant: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(group, tenant, "/", null_handling="replace", null_replacement="")


def is_same_work(before: CompiledPolicy, after: CompiledPolicy, former: Int64s) -> Bools:
    """Return whether each shared scope of `after` counts work as it did before; `former` has its former position."""
    is_same = by_row(np.logical_and, before.shared.is_limited[former] == after.shared.is_limited)
    for work_of in (byte_work, time_work):
        is_same &= work_of(before.shared.rate_micro_per_ms)[former] == work_of(after.shared.rate_micro_per_ms)
    is_same &= _between_namespaces(before)[former] == _between_namespaces(after)
    return (former >= 0) & is_same


def _between_namespaces(policy: CompiledPolicy) -> Bools:
    """Return whether namespaces, and not tenants, divide the tokens of each shared scope."""
    found = np.zeros(len(policy.shared), dtype=np.bool_)
    if policy.is_between_namespaces is not None:
        found[1 + len(policy.tenant_names) :] = policy.is_between_namespaces
    return found


def counts_the_same(old: Int64s, new: Int64s, former: Int64s, is_same: Bools) -> Bools:
    """Return which rows of scopes, shape (n, 3), are the scopes that they were, and count work the same.

    Parameters
    ----------
    former, is_same
        Of every shared scope of the policy after: its position before, and `is_same_work`.
    """
    kept = np.where(new >= 0, np.append(is_same, True)[new] & (np.append(former, -1)[new] == old), old < 0)
    return by_row(np.logical_and, kept)


def _scopes_of(nodes: NodeLeads, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of the tenant, the group and the job of each node, -1 where there is none."""
    tenant, group = positions_in(policy.tenant_names, nodes.tenant), positions_in(policy.group_names, nodes.group)
    return np.stack([*scopes_of(tenant, group, policy), np.zeros_like(group)], axis=1)
