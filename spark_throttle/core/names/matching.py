"""A namespace passes the scopes that match its name: its own limits, its tenant, its resource group, the job.

The tenant of `acme/orders` is `acme`, the text before the first slash; a namespace without a slash is its own tenant.
The rule for a namespace by itself is the one that names it, else the most specific glob that it matches (`globs`), else
the default. Its group is the one that this rule or its tenant names: a name or a glob takes precedence over the tenant,
and the tenant over the default. So a namespace is in one group, and counts in it once, however it came to be there. An
exempt namespace passes no scope at all. All names are resolved at once; there is no call per namespace.

A rule for many names may only observe a part of them (`observe_percent`). Which ones a hash of the name alone decides,
so they are the same in every job and whatever other names there are, and a smaller part has no other names.

To resolve a name costs a hash and a split, which is more than anything else that a batch does for a namespace without
rows. The names that are remembered after one batch are those that are known before the next. So the process keeps
their matches, and finds them again by content: equal names under the same policy have equal matches. No decision
depends on this memory, which is empty when a process starts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import name_hash
from spark_throttle.core.names.globs import first_match
from spark_throttle.core.quota import Bools, CompiledPolicy, Int64s, Level, Limits, OnExcess


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The scopes of many namespaces, one position per namespace."""

    rule: Int64s
    """The position in `CompiledPolicy.namespace_limits`."""

    tenant: Int64s
    """The position in `tenant_names`, -1 where the policy does not name the tenant."""

    group: Int64s
    """The position in `group_names`, -1 for none."""

    shared_scope: Int64s
    """Shape (n, 3): the shared scopes of the tenant, the resource group and the job, -1 where there is none."""

    is_observed: Bools
    """Whether the rule's quota only observes the namespace, although it holds others back."""

    def own_limits(self, policy: CompiledPolicy) -> Limits:
        """Return the limits of the namespaces by themselves."""
        limits = policy.namespace_limits.take(self.rule)
        if not self.is_observed.any():
            return limits
        return replace(limits, on_excess=np.where(self.is_observed, OnExcess.OBSERVE, limits.on_excess))

    @property
    def group_scope(self) -> Int64s:
        """The shared scope of the namespace's resource group, -1 where it has none."""
        return self.shared_scope[:, SHARED_LEVELS.index(Level.RESOURCE_GROUP)]

    @property
    def is_exempt(self) -> Bools:
        """Whether no quota applies to the namespace; every other namespace passes the job."""
        return self.shared_scope[:, -1] < 0


_HASHED_AT_ONCE = 1 << 16
"""To hash a name takes some 24 times the memory of its bytes."""

SHARED_LEVELS = (Level.TENANT, Level.RESOURCE_GROUP, Level.JOB)
"""The levels of the columns of `Matches.shared_scope`."""


def enforcing_scopes(shared_scope: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes that can hold each flow back, shape (flows, 3), -1 where there is none."""
    return scopes_where(policy.shared.may_hold, shared_scope)


def scopes_where(is_kept: Bools, shared_scope: Int64s) -> Int64s:
    """Return the shared scopes of each flow that are kept, -1 in place of the others and where there is none.

    Examples
    --------
    >>> scopes_where(np.array([True, False]), np.array([[0, 1], [1, -1]])).tolist()
    [[0, -1], [-1, -1]]
    """
    if not is_kept.any():
        return np.full_like(shared_scope, -1)
    return np.append(np.where(is_kept, np.arange(len(is_kept)), -1), -1).take(shared_scope)


def domains_of(enforcing: Int64s) -> Int64s:
    """Return the scope in which each flow takes turns: its group, else its tenant, else the job; -1 for none.

    Examples
    --------
    >>> domains_of(np.array([[1, 5, 0], [1, -1, 0], [-1, -1, 0], [-1, -1, -1]])).tolist()
    [5, 1, 0, -1]
    """
    tenant, group, job = enforcing.T
    return np.where(group >= 0, group, np.where(tenant >= 0, tenant, job))


def positions_in(known: pa.Array, names: pa.Array, missing: int = -1) -> Int64s:
    """Return the position in `known` of each name, `missing` where it is not there.

    Examples
    --------
    >>> positions_in(pa.array(["a", "b"]), pa.array(["b", "c", None])).tolist()
    [1, -1, -1]
    """
    found = pc.fill_null(pc.index_in(names, value_set=known), missing)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)


def tenants_of(names: pa.StringArray) -> pa.StringArray:
    """Return the tenant of each namespace, the text before the first slash."""
    return pc.list_element(pc.split_pattern(names, "/", max_splits=1), 0) if len(names) else names


def scopes_of(tenant: Int64s, group: Int64s, policy: CompiledPolicy) -> tuple[Int64s, Int64s]:
    """Return the shared scopes of tenants and of groups, given by their positions in the policy; -1 stands for none."""
    first_group = 1 + len(policy.tenant_names)
    return np.where(tenant >= 0, 1 + tenant, -1), np.where(group >= 0, first_group + group, -1)


def named(names: pa.StringArray, at: Int64s) -> pa.StringArray:
    """Return the names at `at`, null for -1."""
    return names.take(pa.array(at, mask=at < 0))


def _exempt(names: pa.StringArray, tenant_of: pa.StringArray, policy: CompiledPolicy) -> Bools:
    """Return which namespaces the policy exempts."""
    is_exempt: Bools = positions_in(policy.exempt_names, names) >= 0
    if len(policy.exempt_globs):
        is_exempt |= first_match(names, tenant_of, policy.exempt_globs) >= 0
    return is_exempt


def match(names: pa.StringArray, policy: CompiledPolicy) -> Matches:
    """Resolve the scopes of `names`."""
    unnamed = policy.default_rule
    rule = positions_in(policy.namespace_names, names, unnamed)
    tenant_of = tenants_of(names)
    if len(policy.glob_patterns):
        rest = np.flatnonzero(rule == unnamed)
        at = first_match(names.take(pa.array(rest)), tenant_of.take(pa.array(rest)), policy.glob_patterns)
        rule[rest] = np.where(at >= 0, len(policy.namespace_names) + at, unnamed)
    tenant = positions_in(policy.tenant_names, tenant_of)
    through_tenant = np.append(policy.tenant_group, -1)[tenant]
    group = policy.namespace_group[rule]
    takes_tenants = ((rule == unnamed) | (group < 0)) & (through_tenant >= 0)
    group = np.where(takes_tenants, through_tenant, group)
    job = np.zeros_like(group)
    if len(policy.exempt_names) or len(policy.exempt_globs):
        is_exempt = _exempt(names, tenant_of, policy)
        rule = np.where(is_exempt, policy.exempt_rule, rule)
        tenant, group, job = (np.where(is_exempt, -1, each) for each in (tenant, group, job))
    shared_scope = np.stack([*scopes_of(tenant, group, policy), job], axis=1)
    return Matches(rule, tenant, group, shared_scope, _observed(names, rule, policy))


def _observed(names: pa.StringArray, rule: Int64s, policy: CompiledPolicy) -> Bools:
    """Return which names are in the part of those of their rule that it only observes."""
    found = np.zeros(len(names), dtype=np.bool_)
    percent = policy.namespace_limits.settings.get("observe_percent")
    if percent is None:
        return found
    asked = np.flatnonzero(percent[rule] > 0)
    for first in range(0, len(asked), _HASHED_AT_ONCE):
        at = asked[first : first + _HASHED_AT_ONCE]
        found[at] = name_hash(names.take(pa.array(at))) % 100 < percent[rule[at]]
    return found


def weights_in(scope: Int64s, weight: Int64s, domain: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the weights of flows in scopes of one level: their own, times their domains' if those are narrower."""
    is_within = (domain >= 0) & (domain != scope)
    return weight * np.where(is_within, policy.shared.weight[domain], 1) if is_within.any() else weight


_MOST_NAMES = 1 << 20
_MOST_TABLES = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The names that were remembered after a batch, and their matches."""

    names: pa.StringArray
    matches: Matches
    policy: CompiledPolicy

    def is_of(self, names: pa.StringArray, policy: CompiledPolicy) -> bool:
        """Return whether this table holds the matches of `names` under `policy`; its queue bounds do not matter."""
        return len(names) == len(self.names) and self._is_under(policy) and names.equals(self.names)

    def _is_under(self, policy: CompiledPolicy) -> bool:
        columns = (field.name for field in fields(policy) if field.name != "queue")
        return all(getattr(policy, column) is getattr(self.policy, column) for column in columns)


class MatchMemory:
    """The matches of the batches that this process decided last; beyond a million names, the oldest are dropped."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    def match(self, known: pa.StringArray, new: pa.StringArray, policy: CompiledPolicy) -> Matches:
        """Resolve `known`, whose matches may have been kept, then `new`."""
        for table in reversed(self._tables):
            if table.is_of(known, policy):
                self._tables.remove(table)
                return _joined(table.matches, match(new, policy)) if len(new) else table.matches
        return match(pa.concat_arrays([known, new]), policy)

    def keep(self, names: pa.StringArray, matches: Matches, policy: CompiledPolicy) -> None:
        """Keep the matches of `names` for the next batch."""
        self._tables.append(_Table(names, matches, policy))
        while len(self._tables) > _MOST_TABLES or sum(len(table.names) for table in self._tables) > _MOST_NAMES:
            del self._tables[0]


def taken(matches: Matches, at: Int64s) -> Matches:
    """Return the matches at `at`."""
    return Matches(*(getattr(matches, field.name).take(at, axis=0) for field in fields(matches)))


def _joined(first: Matches, second: Matches) -> Matches:
    pairs = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    return Matches(*(np.concatenate(pair) for pair in pairs))
