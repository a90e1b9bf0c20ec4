"""What changes of a policy cost, judged by their effect on every name that they can touch.

Every namespace is held by the rule that applies to it (its entry, else the most specific glob, else the defaults), its
tenant, its group and the job. A change costs protection if for some name

* a limit at one of these levels is gone: it was removed, only observes, or another rule or group took its place;
* or a quota at one of these levels becomes 0, where it was not 0 before;
* or a rule or a group with a larger quota takes the place of one with a quota of 0: it would end an emergency that is
  written elsewhere, and that its author does not think of;
* or, in a document or a rollback, an entry's own quota of 0 is raised, or its lock is gone: such a change says
  everything at once, so its author may not think of these either. Who changes that entry alone means it.

Names without end are judged by the rules that they can go from and to: a glob that is removed leaves its names to less
specific globs and the defaults, a new one takes them from there, and a name with an entry goes exactly one way. Where
it depends on names that nobody has written whether a limit is lifted, it counts as lifted. Nobody knows which names
will come, so every namespace, tenant and glob counts as in use, and a group if something is attached to it. What is
exempt before or after a change loses nothing by it; an exemption that begins or ends is judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from spark_throttle.core.names.globs import covers, is_glob
from spark_throttle.core.quota import Level
from spark_throttle.store.delegation.given_rules import PolicyView, namespace_policy
from spark_throttle.store.delegation.namespace_index import NamespaceIndex
from spark_throttle.store.entries import path_of, policy_of, resource_group_of
from spark_throttle.store.protection.exemption_changes import ExemptionChanges
from spark_throttle.store.protection.exemptions import names_of
from spark_throttle.store.protection.groups import Groups
from spark_throttle.store.protection.holding_rules import (
    HoldingRule,
    defaults_of,
    group_of_tenant,
    holds,
    narrower_of,
    other_rules,
    rule_of,
    terms_in,
)
from spark_throttle.store.protection.loss import (
    KINDS_OF_LOSS,
    Loss,
    losses_between,
    terms_of,
)
from spark_throttle.store.store import Change, Entry, PolicyStore
from spark_throttle.store.wanted import check_wanted

_PAGE: Final = 1000


class ProtectionCheck:
    """Judges changes of one store; safe for use by several threads.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author
    >>> store = MemoryStore()
    >>> gold = Change("resource_group", "gold", '{"publish":{"messages_per_second":5}}')
    >>> store.commit(
    ...     [gold, Change("tenant", "acme", '{"resource_group":"gold"}')],
    ...     expected_revision=0,
    ...     author=Author("ann"),
    ...     at_ms=0,
    ... )
    1
    >>> for loss in ProtectionCheck(store, NamespaceIndex(store)).losses([Change("tenant", "acme", None)], 1):
    ...     print(loss)
    tenants.acme: publish.messages_per_second of resource_groups.gold is lifted (it was 5)
    """

    def __init__(self, store: PolicyStore, index: NamespaceIndex) -> None:
        self._store = store
        self._index = index

    def losses(self, changes: Sequence[Change], revision: int, *, is_whole: bool = False) -> list[Loss]:
        """Return what changes of a revision cost, the worst first; nothing is written.

        The first commit of a store costs nothing: no job can have followed it yet.

        Parameters
        ----------
        is_whole
            Whether the changes are those of a document or a rollback, which say the whole policy.
        """
        if not revision:
            return []
        found = _Judgement(self._store, self._index, changes, revision).losses()
        return [loss for loss in found if is_whole or not loss.is_end_of_own_emergency]


class _Judgement:
    """The facts that some changes of one revision are judged by."""

    def __init__(self, store: PolicyStore, index: NamespaceIndex, changes: Sequence[Change], revision: int) -> None:
        self._store, self._changes, self._revision = store, changes, revision
        self._changed = {change.key for change in changes}
        self._before = PolicyView(store, index, revision)
        self._after = PolicyView(store, index, revision, changes)
        self._views = (self._before, self._after)
        self._groups = Groups(store, revision, changes)
        self._exemptions = ExemptionChanges(
            store, revision, changes, self._views, self._groups, self._before_entries, self._entries_after
        )
        self._tenants_without = {
            change.name.partition("/")[0]
            for change in changes
            if change.kind == "namespace" and change.body is not None and resource_group_of(change.body) is None
        }
        """Tenants of which a namespace's entry is written that names no group."""

    def losses(self) -> list[Loss]:
        found = dict.fromkeys(loss for change in self._changes for loss in self._losses_of(change))
        if any(loss.kind == "lifted" for loss in found) and not self._has_limit(self._entries_after()):
            found = {Loss("no_policy", ""): None, **found}
        return sorted(found, key=lambda loss: KINDS_OF_LOSS.index(loss.kind))

    def _losses_of(self, change: Change) -> Iterator[Loss]:
        check_wanted()
        path = path_of(*change.key)
        match change.kind:
            case "resource_group":
                yield from self._of_group(change.name, path)
            case "tenant":
                yield from self._of_tenant(change.name, path)
            case "namespace":
                before, after = (view.get("namespace", change.name) for view in self._views)
                if before and namespace_policy(before).locked and not (after and namespace_policy(after).locked):
                    yield Loss("unlocked", path)
                yield from (
                    self._of_glob(change.name, path) if is_glob(change.name) else self._of_name(change.name, path)
                )
            case "defaults":
                # A rule for all names leaves none to the defaults.
                if all(view.get("namespace", "*") is None for view in self._views):
                    yield from self._of_rules(defaults_of(self._before), defaults_of(self._after), "*", path)
            case "job":
                terms = (terms_in(view, "job", "") for view in (self._before, self._after))
                yield from losses_between(*terms, path=path, level=Level.JOB)
            case "exempt":
                yield from self._exemptions.losses_of(change, path)
            case "queue":
                return

    # --------------------------------------------------------------------------------------------- groups, tenants

    def _of_group(self, name: str, path: str) -> Iterator[Loss]:
        # A group that is removed has no members any more: what they lose is theirs.
        if self._after.get("resource_group", name) is not None:
            before, after = self._groups.before(name), self._groups.after(name)
            losses = list(losses_between(before.terms, after.terms, path=path, level=Level.RESOURCE_GROUP))
            yield from losses if losses and self._is_used(name) else ()

    def _is_used(self, group: str) -> bool:
        """Return whether a group has members, not exempt as a whole, both before the changes and after them.

        A member that joins or leaves is judged by its own change.
        """
        before = self._groups.members_before(group)
        if before is None:  # to look at each would take too long
            return True
        members = [member for member in before if not self._exemptions.covers(*names_of(*member))]
        is_used = any(not self._exemptions.covers(*names_of(*member)) for member in self._groups.members_given(group))
        return bool(members) and (is_used or any(member not in self._changed for member in members))

    def _of_tenant(self, tenant: str, path: str) -> Iterator[Loss]:
        losses = list(self._of_tenants_names(tenant, path))
        yield from () if losses and self._exemptions.covers(*names_of("tenant", tenant)) else losses

    def _of_tenants_names(self, tenant: str, path: str) -> Iterator[Loss]:
        terms = (terms_in(view, "tenant", tenant) for view in (self._before, self._after))
        yield from losses_between(*terms, path=path, level=Level.TENANT)
        groups = [group_of_tenant(view, tenant) for view in (self._before, self._after)]
        if groups[0] == groups[1]:
            return
        by_default = [group or defaults_of(view).group for group, view in zip(groups, self._views, strict=True)]
        if not self._has_rule_for_all_of(tenant):
            yield from self._of_groups(by_default[0], by_default[1], path)
        if self._has_rule_without_group(tenant):
            yield from self._of_groups(groups[0], groups[1], path)

    def _has_rule_for_all_of(self, tenant: str) -> bool:
        """Return whether globs leave none of a tenant's namespaces to the defaults, before and after."""
        return all(
            any(covers(entry.name, names) for entry in view.overlapping(names))
            for view in self._views
            for names in names_of("tenant", tenant)
        )

    def _has_rule_without_group(self, tenant: str) -> bool:
        """Return whether a rule that names no group may apply to a namespace of a tenant."""
        for view in self._views:
            entries = [*view.overlapping(f"{tenant}/*"), *view.overlapping(tenant)]
            own = view.get("namespace", tenant)
            if any(namespace_policy(entry).resource_group is None for entry in [*entries, *([own] if own else [])]):
                return True
        folder = f"{tenant}/"
        page = self._store.page("namespace", after=folder, limit=_PAGE, at=self._revision)
        entries = [entry for entry in page if entry.name.startswith(folder)]
        if len(entries) == _PAGE or tenant in self._tenants_without:
            return True
        return any(resource_group_of(entry.body) is None for entry in entries)

    def _of_groups(self, before: str | None, after: str | None, path: str) -> Iterator[Loss]:
        """Yield what names lose that go from one group to another."""
        if before == after:
            return
        old, new = self._groups.before(before), self._groups.after(after)
        for loss in losses_between(old.terms, new.terms, path=path, level=Level.RESOURCE_GROUP):
            yield replace(loss, where=new.where if loss.kind == "zero" else old.where)

    # -------------------------------------------------------------------------------------------------- namespaces

    def _of_name(self, name: str, path: str) -> Iterator[Loss]:
        before, after = (rule_of(view, name) for view in self._views)
        yield from self._of_rules(before, after, name, path)

    def _of_glob(self, glob: str, path: str) -> Iterator[Loss]:
        before, after = (view.get("namespace", glob) for view in self._views)
        if before is not None and after is not None:
            yield from self._of_rules(HoldingRule.of(before), HoldingRule.of(after), glob, path)
        elif before is not None:
            for heir in other_rules(self._after, glob):
                yield from self._of_rules(HoldingRule.of(before), heir, narrower_of(glob, heir.name), path)
        elif after is not None:
            for loser in other_rules(self._before, glob):
                yield from self._of_rules(loser, HoldingRule.of(after), narrower_of(glob, loser.name), path)

    def _of_rules(self, before: HoldingRule, after: HoldingRule, names: str, path: str) -> Iterator[Loss]:
        """Yield what some names lose, a name or a glob, that go from one rule to another.

        What is exempt before or after loses nothing by it; the beginning or end of an exemption is judged by itself.
        """
        losses = list(self._of_rules_that_hold(before, after, names, path))
        yield from () if losses and self._exemptions.covers(names) else losses

    def _of_rules_that_hold(self, before: HoldingRule, after: HoldingRule, names: str, path: str) -> Iterator[Loss]:
        for loss in losses_between(before.terms, after.terms, path=path, level=Level.NAMESPACE):
            rule = after if loss.kind == "zero" else before
            yield replace(loss, where="" if rule.where == path else rule.where)
        if (before.group, before.name == "") == (after.group, after.name == ""):
            return  # whatever becomes of the group is the change of the tenant, or of the group itself
        tenant, slash, _ = names.partition("/")
        if not is_glob(tenant) and (slash or not is_glob(names)):
            old, new = (group_of_tenant(view, tenant) for view in self._views)
            yield from self._of_groups(before.group_in(old), after.group_in(new), path)
            return
        for group in (None, *sorted(self._groups.of_tenants)):
            yield from self._of_groups(before.group_in(group), after.group_in(group), path)

    # --------------------------------------------------------------------------------------------------- all at once

    def _entries_after(self) -> Iterator[Entry]:
        yield from (Entry(change.kind, change.name, change.body, 0) for change in self._changes if change.body)
        yield from (entry for entry in self._before_entries() if (entry.kind, entry.name) not in self._changed)

    def _before_entries(self) -> Iterator[Entry]:
        return self._store.scan(at=self._revision)

    @staticmethod
    def _has_limit(entries: Iterable[Entry]) -> bool:
        return any(terms_of(policy_of(entry)) for entry in entries if holds(entry))
