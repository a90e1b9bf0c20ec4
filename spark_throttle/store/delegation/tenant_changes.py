"""What the administrator of a tenant may change: the entries of its namespaces, where no name gets looser by it.

A tenant's administrator divides what administrators gave. What they gave a name is found by leaving out every entry
that a tenant's administrator wrote: it is the name's own entry, or else the most specific glob, or else the defaults,
and the group that this rule leads to. A change is judged by its effect on every name that it can touch:

* An entry or a glob that is written must not be looser (`looseness`) than any rule of the administrators that it takes
  names from: for a name, the one rule that it would have; for a glob, all rules that some of its names could have.
* If an entry is removed, the same holds for each rule of the tenant's that takes its names.
* What is as tight as it was before, in every part, is allowed, even if administrators have since given less.

An entry that administrators wrote can be tightened and not removed: the store keeps what they gave, and a tighter entry
is judged by that. An entry that they locked stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from spark_throttle.core.names.globs import covers, is_glob, is_of_tenant, overlaps, specificity
from spark_throttle.errors import NotPermittedError
from spark_throttle.policy.model import DIRECTIONS, MAX_GLOBS, NamespacePolicy, ScopePolicy, TenantPolicy
from spark_throttle.store.delegation.glob_index import GlobIndex
from spark_throttle.store.delegation.looseness import LooserPart, Rule, looser_parts
from spark_throttle.store.entries import EMPTY, policy_of
from spark_throttle.store.store import NOTHING, Change, Entry, Kind, PolicyStore

MOST_TENANT_GLOBS: Final = 50
"""Bound on the globs other than ``tenant/*`` that one tenant's administrator may write: a policy has room for
`MAX_GLOBS`, and beyond that no job could apply it."""


class TenantChanges:
    """Judges the changes of tenants' administrators; safe for use by several threads."""

    def __init__(self, store: PolicyStore) -> None:
        self._store = store
        self._globs = GlobIndex(store)

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
        return [self._permitted(change, tenant, revision) for change in changes]

    def _permitted(self, change: Change, tenant: str, revision: int) -> Change:
        judgement = _Judgement(self._store, self._globs, change.kind, change.name, tenant, revision)
        return judgement.of_removal() if change.body is None else judgement.of_writing(change.body)


class _Judgement:
    """The facts that one change is judged by."""

    def __init__(self, store: PolicyStore, globs: GlobIndex, kind: Kind, name: str, tenant: str, revision: int) -> None:
        self._store, self._kind, self._name, self._tenant_name, self._revision = store, kind, name, tenant, revision
        if kind != "namespace" or name.partition("/")[0] != tenant:
            raise self._refused(f"the token is only for namespaces of the tenant {tenant!r}; ask an administrator")
        self._tenant = self._policy_of_tenant()
        self._entry = store.get(kind, name, at=revision)
        if self._entry is not None and _namespace_policy(self._entry).locked:
            raise self._refused("an administrator locked it, and only an administrator changes or removes it", "locked")
        self._globs = globs

    def of_writing(self, body: str) -> Change:
        """Return the change that writes the entry, with what administrators gave."""
        entry = self._entry
        policy = _namespace_policy(Entry(self._kind, self._name, body, 0))
        if policy.locked:
            raise self._refused("only an administrator locks an entry", "locked")
        if entry is None:
            given: str | None = NOTHING
            self._check_room()
        else:
            given = entry.body if entry.given is None else entry.given
        before = None if entry is None else self._rule(entry)
        written = self._rule(Entry(self._kind, self._name, body, 0, given))
        for other in self._given_rules(self._name, given):
            self._check(written, other, before)
        # Who writes what administrators gave undoes all changes of the tenant's, and the entry is theirs again.
        return Change(self._kind, self._name, body, None if body == given else given)

    def of_removal(self) -> Change:
        """Return the change that removes the entry."""
        entry = self._entry
        if entry is not None:
            if entry.given != NOTHING:
                raise self._refused("an administrator wrote it, and only an administrator removes it")
            before = self._rule(entry)
            for rule, given in self._heirs():
                for other in self._given_rules(rule.name, given):
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
        bound = part.bound
        if part.path == "resource_group":
            bound += f" ({self._quotas(other.group)})"
        return (
            f"it would be {part.value}{by}; at the level {part.level.name.lower()}, administrators gave {bound} "
            f"({other.where}); give no more than that, or ask an administrator"
        )

    def _quotas(self, group: str | None) -> str:
        """Return the quotas of a group in words."""
        entry = None if group is None else self._store.get("resource_group", group, at=self._revision)
        policy = EMPTY["resource_group"] if entry is None else policy_of(entry)
        said = [
            f"{direction}.{key}: {value:f}"
            for direction in DIRECTIONS
            for key in ("messages_per_second", "bytes_per_second")
            if (value := getattr(getattr(policy, direction), key)) is not None
        ]
        return ", ".join(said) or "unlimited"

    # ------------------------------------------------------------------------------------------------- rules

    def _given_rules(self, name: str, given: str | None) -> Iterator[Rule]:
        """Yield the rules that names which `name` stands for could have, without what tenants' administrators wrote.

        A glob that covers `name` leaves no name to less specific ones. One that is more specific than `name` keeps its
        names, unless it covers it and so leaves none.
        """
        if given:
            yield self._rule(Entry("namespace", name, given, 0))
            return
        for entry in self._administrators(self._globs.overlapping(name, self._revision)):
            is_covering = covers(entry.name, name)
            if entry.name == name or (not is_covering and specificity(entry.name) < specificity(name)):
                continue
            yield self._rule(entry)
            if is_covering:
                return
        yield self._defaults()

    @staticmethod
    def _administrators(entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries as administrators gave them."""
        for entry in entries:
            if entry.given is None:
                yield entry
            elif entry.given:
                yield replace(entry, body=entry.given, given=None)

    def _heirs(self) -> Iterator[tuple[Rule, str]]:
        """Yield the rules of the tenant's that take over names when the entry is removed, and what was given there."""
        for entry in self._globs.overlapping(self._name, self._revision):
            if entry.name == self._name or (is_glob(self._name) and specificity(entry.name) < specificity(self._name)):
                continue
            if entry.given is not None:
                yield self._rule(entry), entry.given
            if covers(entry.name, self._name):
                return

    def _rule(self, entry: Entry) -> Rule:
        policy = _namespace_policy(entry)
        return Rule(entry.name, policy, policy.resource_group or self._tenant.resource_group)

    def _defaults(self) -> Rule:
        entry = self._store.get("defaults", "", at=self._revision)
        policy = NamespacePolicy() if entry is None else _namespace_policy(entry)
        return Rule("", policy, self._tenant.resource_group or policy.resource_group)

    def _policy_of_tenant(self) -> TenantPolicy:
        entry = self._store.get("tenant", self._tenant_name, at=self._revision)
        policy = TenantPolicy() if entry is None else policy_of(entry)
        assert isinstance(policy, TenantPolicy)  # noqa: S101 - the policy of this kind
        if policy.resource_group is None and not _is_limited(policy):
            raise self._refused(
                f"the tenant {self._tenant_name!r} has neither a quota nor a group; an admin gives it one first"
            )
        return policy

    def _check_room(self) -> None:
        if not is_glob(self._name) or is_of_tenant(self._name):
            return
        others = self._globs.matched_one_by_one(self._revision)
        own = sum(1 for entry in others if entry.given == NOTHING and entry.name.partition("/")[0] == self._tenant_name)
        if own >= MOST_TENANT_GLOBS or len(others) >= MAX_GLOBS:
            raise self._refused(
                f"the tenant's administrator has written {own} globs of {MOST_TENANT_GLOBS}, and the policy has "
                f"{len(others)} of {MAX_GLOBS}; remove one, name the namespaces, or ask an administrator"
            )

    def _refused(self, problem: str, path: str | None = None) -> NotPermittedError:
        return NotPermittedError(self._kind, self._name, problem, path=path)


def _namespace_policy(entry: Entry) -> NamespacePolicy:
    policy = policy_of(entry)
    assert isinstance(policy, NamespacePolicy)  # noqa: S101 - the policy of the kinds namespace and defaults
    return policy


def _is_limited(policy: ScopePolicy) -> bool:
    quotas = (policy.publish, policy.dispatch)
    return any(q.messages_per_second is not None or q.bytes_per_second is not None for q in quotas)
