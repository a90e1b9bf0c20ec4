"""What holds the rows of a name, as a view of a policy has it: its rule, and the limits of the levels that it passes.

An entry of a namespace wins, else the most specific glob, else the defaults. The group that an entry or a glob names
comes before the group of the tenant; the one that the defaults name comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_throttle.core.names.globs import covers, specificity
from spark_throttle.policy.model import NamespacePolicy, ScopePolicy, TenantPolicy
from spark_throttle.store.delegation.given_rules import PolicyView, namespace_policy
from spark_throttle.store.entries import policy_of
from spark_throttle.store.protection.loss import Terms, terms_of
from spark_throttle.store.store import Entry, Kind


@dataclass(frozen=True, slots=True)
class HoldingRule:
    """An entry, a glob, or the defaults, as it holds names."""

    name: str
    """Empty for the defaults."""

    policy: NamespacePolicy

    @classmethod
    def of(cls, entry: Entry) -> HoldingRule:
        """Return the rule that an entry of a namespace, or of a glob, is."""
        return cls(entry.name, namespace_policy(entry))

    @property
    def terms(self) -> Terms:
        """The rule's own limits."""
        return terms_of(self.policy)

    @property
    def group(self) -> str | None:
        """The group that the rule itself names."""
        return self.policy.resource_group

    @property
    def where(self) -> str:
        """The place of the rule in a document."""
        return f"namespaces.{self.name}" if self.name else "defaults"

    def group_in(self, tenants_group: str | None) -> str | None:
        """Return the group of the rule's names whose tenant has a certain group."""
        return self.group or tenants_group if self.name else tenants_group or self.group


def holds(entry: Entry) -> bool:
    """Return whether an entry can hold rows back by a limit."""
    return entry.kind not in ("exempt", "queue")


def rule_of(view: PolicyView, name: str) -> HoldingRule:
    """Return the rule that holds a namespace."""
    entry = view.get("namespace", name) or next(iter(view.overlapping(name)), None)
    return defaults_of(view) if entry is None else HoldingRule.of(entry)


def defaults_of(view: PolicyView) -> HoldingRule:
    """Return the rule that holds the names which no entry and no glob holds."""
    entry = view.get("defaults", "")
    return HoldingRule("", NamespacePolicy() if entry is None else namespace_policy(entry))


def other_rules(view: PolicyView, glob: str) -> Iterator[HoldingRule]:
    """Yield the less specific rules that share names with a glob: those that its names go to, or come from."""
    for entry in view.overlapping(glob):
        if entry.name == glob or specificity(entry.name) < specificity(glob):
            continue
        yield HoldingRule.of(entry)
        if covers(entry.name, glob):
            return
    yield defaults_of(view)


def narrower_of(glob: str, other: str) -> str:
    """Return the one of two globs that says more about the tenant of the names that both match.

    Examples
    --------
    >>> narrower_of("*x", "acme/*"), narrower_of("acme/x*", "*")
    ('acme/*', 'acme/x*')
    """
    return other if other and "/" in other.partition("*")[0] else glob


def group_of_tenant(view: PolicyView, tenant: str) -> str | None:
    """Return the group that a tenant's entry names."""
    entry = view.get("tenant", tenant)
    policy = None if entry is None else policy_of(entry)
    return policy.resource_group if isinstance(policy, TenantPolicy) else None


def terms_in(view: PolicyView, kind: Kind, name: str) -> Terms:
    """Return the limits of an entry of a tenant, a group or the job; none if it does not exist."""
    return terms_of_entry(view.get(kind, name))


def terms_of_entry(entry: Entry | None) -> Terms:
    """Return the limits of an entry."""
    policy = None if entry is None else policy_of(entry)
    return terms_of(policy if isinstance(policy, ScopePolicy) else None)
