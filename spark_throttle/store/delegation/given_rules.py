"""The rules of a tenant's namespaces, and which of them administrators gave, at a revision or after a change of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from spark_throttle.core.names.globs import covers, is_glob, is_of_tenant, overlaps, specificity
from spark_throttle.policy.model import NamespacePolicy, TenantPolicy
from spark_throttle.store.delegation.looseness import Rule
from spark_throttle.store.delegation.namespace_index import NamespaceIndex
from spark_throttle.store.entries import policy_of
from spark_throttle.store.store import Change, Entry, Kind, PolicyStore


class PolicyView:
    """The entries of a revision, or those after some changes of it that are not committed yet."""

    def __init__(
        self, store: PolicyStore, index: NamespaceIndex, revision: int, changes: Sequence[Change] = ()
    ) -> None:
        self._store, self._index, self._revision = store, index, revision
        self._changed = {
            change.key: Entry(change.kind, change.name, change.body, 0, change.given) for change in changes
        }
        changed = [entry for entry in self._changed.values() if entry.kind == "namespace" and is_glob(entry.name)]
        self._of_tenants = {entry.name: entry for entry in changed if is_of_tenant(entry.name)}
        self._others = [entry for entry in changed if not is_of_tenant(entry.name)]

    def get(self, kind: Kind, name: str) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        if (kind, name) in self._changed:
            entry = self._changed[kind, name]
            return None if entry.body is None else entry
        return self._store.get(kind, name, at=self._revision)

    def overlapping(self, name: str) -> list[Entry]:
        """Return the globs that match some name that `name`, a namespace or a glob, stands for; most specific first."""
        found = self._index.overlapping(name, self._revision)
        if not self._changed:
            return found
        of_tenant = self._of_tenants.get(f"{name.partition('/')[0]}/*")
        changed = [*self._others, *([of_tenant] if of_tenant else [])]
        kept = [entry for entry in found if ("namespace", entry.name) not in self._changed]
        kept += [entry for entry in changed if entry.body is not None and overlaps(entry.name, name)]
        return sorted(kept, key=lambda entry: specificity(entry.name))

    def matched_one_by_one(self) -> list[Entry]:
        """Return the globs other than ``tenant/*``."""
        return self._index.matched_one_by_one(self._revision)

    def made_by(self, tenant: str) -> int:
        """Return for how many single namespaces the administrator of a tenant made an entry, before the changes."""
        return self._index.made_by(tenant, self._revision)


class TenantRules:
    """The rules for the namespaces of one tenant."""

    def __init__(self, view: PolicyView, tenant: str) -> None:
        self._view = view
        entry = view.get("tenant", tenant)
        policy = TenantPolicy() if entry is None else policy_of(entry)
        assert isinstance(policy, TenantPolicy)  # noqa: S101 - the policy of this kind
        self.tenant = policy
        """The tenant's own policy."""

        self._name = tenant

    def rule(self, entry: Entry) -> Rule:
        """Return the rule that an entry or a glob is."""
        policy = namespace_policy(entry)
        if policy.resource_group is not None:
            return Rule(entry.name, policy, policy.resource_group)
        return self._in_tenants_group(Rule(entry.name, policy, None))

    def given(self, name: str, given: str | None) -> Iterator[Rule]:
        """Yield the rules that names which `name` stands for could have, without what tenants' administrators wrote.

        A glob that covers `name` leaves no name to less specific ones. One that is more specific than `name` keeps its
        names, unless it covers it and so leaves none.

        Parameters
        ----------
        given
            `Entry.given` of the entry of that name.
        """
        if given:
            yield self.rule(Entry("namespace", name, given, 0))
            return
        for entry in _administrators(self._view.overlapping(name)):
            is_covering = covers(entry.name, name)
            if entry.name == name or (not is_covering and specificity(entry.name) < specificity(name)):
                continue
            yield self.rule(entry)
            if is_covering:
                return
        yield self._defaults()

    def heirs(self, name: str) -> Iterator[tuple[Rule, str]]:
        """Yield the tenant's rules that take over names when the entry `name` is removed, and what was given there."""
        for entry in self._view.overlapping(name):
            if entry.name == name or (is_glob(name) and specificity(entry.name) < specificity(name)):
                continue
            if entry.given is not None:
                yield self.rule(entry), entry.given
            if covers(entry.name, name):
                return

    def _defaults(self) -> Rule:
        entry = self._view.get("defaults", "")
        policy = NamespacePolicy() if entry is None else namespace_policy(entry)
        return self._in_tenants_group(Rule("", policy, policy.resource_group))

    def _in_tenants_group(self, rule: Rule) -> Rule:
        group = self.tenant.resource_group
        return rule if group is None else replace(rule, group=group, group_of=self._name)


def namespace_policy(entry: Entry) -> NamespacePolicy:
    """Return the policy of an entry for namespaces, or of the defaults."""
    policy = policy_of(entry)
    assert isinstance(policy, NamespacePolicy)  # noqa: S101 - the policy of the kinds namespace and defaults
    return policy


def _administrators(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries as administrators gave them."""
    for entry in entries:
        if entry.given is None:
            yield entry
        elif entry.given:
            yield replace(entry, body=entry.given, given=None)
