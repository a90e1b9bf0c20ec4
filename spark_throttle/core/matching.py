"""Which scopes a namespace passes: its own limits, its tenant, its resource group.

The tenant of `acme/orders` is `acme`, what stands before the first slash; a namespace without a slash is its
own tenant. A namespace's group is the one it names, else the one its tenant names, else, where no policy
names the namespace, the default's. All names are resolved at once; there is no call per namespace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import CompiledPolicy, Int64s, Level


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The scopes of many namespaces, one position a namespace."""

    rule: Int64s
    """Position in `CompiledPolicy.namespace_limits`, the last one for a namespace that no policy names."""

    tenant: Int64s
    """Position in `tenant_names`, -1 where the policy does not name the tenant."""

    group: Int64s
    """Position in `group_names`, -1 for none."""

    shared_scope: Int64s
    """Shape (n, 3): the shared scopes of tenant, resource group and job, -1 where there is none."""


SHARED_LEVELS = (Level.TENANT, Level.RESOURCE_GROUP, Level.JOB)
"""What the columns of `Matches.shared_scope` stand for."""


def _positions(values: pa.Array, known: pa.Array, missing: int) -> Int64s:
    found = pc.fill_null(pc.index_in(values, value_set=known), missing)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)


def match(names: pa.StringArray, policy: CompiledPolicy) -> Matches:
    """Resolve the scopes of `names`."""
    unnamed = len(policy.namespace_names)
    rule = _positions(names, policy.namespace_names, unnamed)
    tenant_of = pc.list_element(pc.split_pattern(names, "/", max_splits=1), 0) if len(names) else names
    tenant = _positions(tenant_of, policy.tenant_names, -1)
    through_tenant = np.append(policy.tenant_group, -1)[tenant]
    group = policy.namespace_group[rule]
    takes_tenants = ((rule == unnamed) | (group < 0)) & (through_tenant >= 0)
    group = np.where(takes_tenants, through_tenant, group)
    tenants = len(policy.tenant_names)
    shared_scope = np.stack(
        [
            np.where(tenant >= 0, 1 + tenant, -1),
            np.where(group >= 0, 1 + tenants + group, -1),
            np.zeros_like(group),
        ],
        axis=1,
    )
    return Matches(rule, tenant, group, shared_scope)
