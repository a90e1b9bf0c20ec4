"""What the administrator of a tenant may change: the entries of its namespaces, where no name gets looser by it.

A tenant's administrator divides what administrators gave. What they gave a name is found by leaving out every entry
that a tenant's administrator wrote: it is the name's own entry, or else the most specific glob, or else the defaults,
and the group that this rule leads to. A change is judged by its effect on every name that it can touch:

* An entry or a glob that is written must not be looser (`looseness`) than any rule of the administrators that it takes
  names from: for a name, the one rule that it would have; for a glob, all rules that some of its names could have.
* If an entry is removed, the same holds for each rule of the tenant's that takes its names.
* What is as tight as it was before, in every part, is allowed, even if a store edited by hand has since given less.

An entry that administrators wrote can be tightened and not removed: the store keeps what they gave, and a tighter entry
is judged by that. An entry that they locked stays as it is.

What was allowed must stay within what administrators give later: an entry of a tenant's that their change overtakes is
undone in the same commit. So at every revision no name is looser than administrators allow, in whatever order they and
the tenants write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from spark_throttle.core.names.globs import is_glob, is_of_tenant, overlaps
from spark_throttle.errors import NotPermittedError
from spark_throttle.policy.model import DIRECTIONS, MAX_GLOBS, RATES, ScopePolicy
from spark_throttle.store.delegation.given_rules import PolicyView, TenantRules, namespace_policy
from spark_throttle.store.delegation.looseness import LooserPart, Rule, looser_parts
from spark_throttle.store.delegation.namespace_index import NamespaceIndex
from spark_throttle.store.entries import EMPTY, policy_of
from spark_throttle.store.store import NOTHING, Change, Entry, Kind, PolicyStore

MOST_TENANT_GLOBS: Final = 50
"""Bound on the globs other than ``tenant/*`` that one tenant's administrator may write: a policy has room for
`MAX_GLOBS`, and beyond that no job could apply it."""


MOST_TENANT_ENTRIES: Final = 1000
"""Bound on the single namespaces for which one tenant's administrator may make an entry, unless another is configured:
every job that follows the store reads and keeps all entries."""


class TenantChanges:
    """Judges the changes of tenants' administrators; safe for use by several threads.

    Parameters
    ----------
    most_entries
        For how many single namespaces the administrator of one tenant may make an entry.
    """

    def __init__(self, store: PolicyStore, index: NamespaceIndex, *, most_entries: int = MOST_TENANT_ENTRIES) -> None:
        self._store = store
        self._index = index
        self._most_entries = most_entries

    def permitted(self, changes: Sequence[Change], tenant: str, revision: int) -> list[Change]:
        """Return the changes with what administrators gave (`Change.given`), if the tenant's administrator may make it.

        Raises
        ------
        NotPermittedError
            If a change loosens something, or is not the tenant's to make; it names the level and the number.
        """
        if len(changes) > 1:
            # Each change is judged on the revision, not on what the others make of it.
            raise NotPermittedError(changes[0].kind, changes[0].name, "a tenant's administrator changes one at a time")
        view = PolicyView(self._store, self._index, revision)
        return [self._permitted(change, tenant, view) for change in changes]

    def overtaken(self, changes: Sequence[Change], revision: int) -> list[Entry]:
        """Return the entries of tenants' administrators that are looser than what administrators give by `changes`."""
        touched = touched_by(changes)
        if touched is None:
            return []
        written = {change.key for change in changes}
        view = PolicyView(self._store, self._index, revision, changes)
        return [
            entry
            for entry in self._store.delegated(at=revision)
            if (entry.kind, entry.name) not in written and touched(entry.name) and _is_looser(entry, view)
        ]

    def _permitted(self, change: Change, tenant: str, view: PolicyView) -> Change:
        judgement = _Judgement(view, change.kind, change.name, tenant, self._most_entries)
        return judgement.of_removal() if change.body is None else judgement.of_writing(change.body)


class _Judgement:
    """The facts that one change is judged by."""

    def __init__(self, view: PolicyView, kind: Kind, name: str, tenant: str, most_entries: int) -> None:
        self._view, self._kind, self._name, self._tenant = view, kind, name, tenant
        self._most_entries = most_entries
        if kind != "namespace" or name.partition("/")[0] != tenant:
            raise self._refused(f"the token is only for namespaces of the tenant {tenant!r}; ask an administrator")
        self._rules = TenantRules(view, tenant)
        if self._rules.tenant.resource_group is None and not _is_limited(self._rules.tenant):
            raise self._refused(f"the tenant {tenant!r} has neither a quota nor a group; an admin gives it one first")
        self._entry = view.get(kind, name)
        if self._entry is not None and namespace_policy(self._entry).locked:
            raise self._refused("an administrator locked it, and only an administrator changes or removes it", "locked")

    def of_writing(self, body: str) -> Change:
        """Return the change that writes the entry, with what administrators gave."""
        entry = self._entry
        if namespace_policy(Entry(self._kind, self._name, body, 0)).locked:
            raise self._refused("only an administrator locks an entry", "locked")
        if entry is None:
            given: str | None = NOTHING
            self._check_room()
        else:
            given = entry.body if entry.given is None else entry.given
        before = None if entry is None else self._rules.rule(entry)
        written = self._rules.rule(Entry(self._kind, self._name, body, 0, given))
        for other in self._rules.given(self._name, given):
            self._check(written, other, before)
        # Who writes what administrators gave undoes all changes of the tenant's, and the entry is theirs again.
        return Change(self._kind, self._name, body, None if body == given else given)

    def of_removal(self) -> Change:
        """Return the change that removes the entry."""
        entry = self._entry
        if entry is not None:
            if entry.given != NOTHING:
                raise self._refused("an administrator wrote it, and only an administrator removes it")
            before = self._rules.rule(entry)
            for rule, given in self._rules.heirs(self._name):
                for other in self._rules.given(rule.name, given):
                    if overlaps(other.name or "*", self._name):
                        self._check(rule, other, before)
        return Change(self._kind, self._name, None)

    def _check(self, rule: Rule, other: Rule, before: Rule | None) -> None:
        """Refuse a rule that is looser than what administrators gave, unless it is as tight as the one before it.

        It must be as tight as one of the two in every part: parts of both could add up to more than either allows.
        """
        found = next(looser_parts(rule, other), None)
        if found is not None and (before is None or any(looser_parts(rule, before))):
            raise self._refused(self._said(found, rule, other), found.path)

    def _said(self, part: LooserPart, rule: Rule, other: Rule) -> str:
        by = f" by {rule.where}" if rule.name != self._name else ""
        bound, where = part.bound, other.where
        if part.path == "resource_group":
            bound, where = f"{bound} ({self._quotas(other.group)})", other.where_group
        return (
            f"it would be {part.value}{by}; at the level {part.level.name.lower()}, administrators gave {bound} "
            f"({where}); give no more than that, or ask an administrator"
        )

    def _quotas(self, group: str | None) -> str:
        """Return the quotas of a group in words."""
        entry = None if group is None else self._view.get("resource_group", group)
        policy = EMPTY["resource_group"] if entry is None else policy_of(entry)
        said = [
            f"{direction}.{key}: {value:f}"
            for direction in DIRECTIONS
            for key in RATES
            if (value := getattr(getattr(policy, direction), key)) is not None
        ]
        return ", ".join(said) or "unlimited"

    def _check_room(self) -> None:
        if not is_glob(self._name):
            made = self._view.made_by(self._tenant)
            if made >= self._most_entries:
                raise self._refused(
                    f"the tenant's administrator has made entries for {made} namespaces of {self._most_entries}; "
                    f"remove one, write a glob such as '{self._tenant}/*' for several, or ask an administrator"
                )
            return
        if is_of_tenant(self._name):
            return
        others = self._view.matched_one_by_one()
        own = sum(1 for entry in others if entry.given == NOTHING and entry.name.partition("/")[0] == self._tenant)
        if own >= MOST_TENANT_GLOBS or len(others) >= MAX_GLOBS:
            raise self._refused(
                f"the tenant's administrator has written {own} globs of {MOST_TENANT_GLOBS}, and the policy has "
                f"{len(others)} of {MAX_GLOBS}; remove one, name the namespaces, or ask an administrator"
            )

    def _refused(self, problem: str, path: str | None = None) -> NotPermittedError:
        return NotPermittedError(self._kind, self._name, problem, path=path)


def _is_limited(policy: ScopePolicy) -> bool:
    quotas = (policy.publish, policy.dispatch)
    return any(getattr(quota, key) is not None for quota in quotas for key in RATES)


def touched_by(changes: Sequence[Change]) -> Callable[[str], bool] | None:
    """Return which entries stand for names that changes by administrators may give less; `None` for no entry.

    The entry of a single namespace decides only about its own name. Without it, the name has a rule of administrators
    that every glob over it was judged by.
    """
    if any(change.kind == "defaults" for change in changes):
        return lambda _: True
    globs = [change.name for change in changes if change.kind == "namespace" and is_glob(change.name)]
    tenants = {name[:-2] for name in globs if is_of_tenant(name)}
    tenants |= {change.name for change in changes if change.kind == "tenant"}
    others = [name for name in globs if not is_of_tenant(name)]
    if not tenants and not others:
        return None
    return lambda name: name.partition("/")[0] in tenants or any(overlaps(glob, name) for glob in others)


def _is_looser(entry: Entry, view: PolicyView) -> bool:
    rules = TenantRules(view, entry.name.partition("/")[0])
    rule = rules.rule(entry)
    return any(any(looser_parts(rule, other)) for other in rules.given(entry.name, entry.given))
