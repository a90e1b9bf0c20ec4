"""What the fair tree keeps when the policy changes: the leads of those that pass the same scopes.

A lead is work. Where a scope on its way is another, it says nothing, and is forgotten: it is at most two of the largest
rows. Weights, rates and what counts as work may change: of what is owed, the next batch honours what its siblings can
pay in time as it counts, which is a row's turn and no more (`promises`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.names.matching import Matches, named, positions_in, scopes_of, tenants_of
from spark_throttle.core.quota import Bools, CompiledPolicy, Int64s
from spark_throttle.core.state import NodeLeads


def carried_nodes(
    nodes: NodeLeads,
    former: Int64s,
    before: CompiledPolicy,
    after: CompiledPolicy,
    names: pa.StringArray,
    matches: tuple[Matches, Matches],
) -> NodeLeads:
    """Return the leads of those nodes that pass the same scopes under `after` as under `before`.

    A node that all of its flows have left loses its lead: they pay it nowhere, and its siblings would.

    Parameters
    ----------
    former
        As in `passes_the_same`.
    names, matches
        The flows that are remembered, and their scopes before and after.
    """
    if not len(nodes):
        return nodes
    old, new = (_scopes_of(nodes, policy) for policy in (before, after))
    is_kept = passes_the_same(old, new, former)
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


def passes_the_same(old: Int64s, new: Int64s, former: Int64s) -> Bools:
    """Return which rows of scopes, shape (n, 3), are the scopes that they were.

    Parameters
    ----------
    former
        Of every shared scope of the policy after: its position before, -1 where it is new.
    """
    return by_row(np.logical_and, np.where(new >= 0, np.append(former, -1)[new] == old, old < 0))


def _scopes_of(nodes: NodeLeads, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of the tenant, the group and the job of each node, -1 where there is none."""
    tenant, group = positions_in(policy.tenant_names, nodes.tenant), positions_in(policy.group_names, nodes.group)
    return np.stack([*scopes_of(tenant, group, policy), np.zeros_like(group)], axis=1)
