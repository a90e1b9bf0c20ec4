"""A tenant's administrator changes the entries of its own namespaces, and no name gets looser by it.

A tenant's administrator divides what administrators gave. What they gave a name is found by leaving out every entry
that a tenant's administrator wrote: it is the name's own entry, or else the most specific glob, or else the defaults,
and the group that this rule leads to. A change is judged by its effect on every name that it can touch
(`limit_changes.looser_parts`), together with the tenant, the group and the job of that name:

* An entry or a glob that is written must not be looser than any rule of the administrators that it takes names from:
  for a name, the one rule that it would have; for a glob, all rules that some of its names could have.
* If an entry is removed, the same holds for each rule of the tenant's that takes its names.
* It must lead to the same group: another one, even with smaller quotas, is shared with others.
* What is as tight as it was before, in every part, is allowed, even if a store edited by hand has since given less.
* Where the tenant, the group or the job rejects, a name whose rule rejects too does not begin to wait, not even as it
  was given.

All this holds now and whenever an exception ends (`policy_view.Moments`): what a tenant writes fits what administrators
gave while an exception is in force, and afterwards. An exception that administrators gave stays until its end: who
writes the entry repeats it.

An entry that administrators wrote can be tightened and not removed: the store keeps what they gave, and a tighter entry
is judged by that. An entry that they locked stays as it is.

What was allowed must stay within what administrators give later: an entry of a tenant's that their change overtakes is
undone in the same commit. So at every revision no name is looser than administrators allow, in whatever order they and
the tenants write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Final

from spark_throttle.core.names.globs import is_glob, is_of_tenant, overlaps
from spark_throttle.core.quota import Level
from spark_throttle.errors import NotPermittedError
from spark_throttle.policy.model import DIRECTIONS, MAX_GLOBS, ScopePolicy
from spark_throttle.policy.quotas import HOLDS
from spark_throttle.policy.values import time_text
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.checks.limit_changes import LooserPart, looser_parts, newly_waiting
from spark_throttle.store.checks.policy_view import Moments, PolicyView, Rule
from spark_throttle.store.entries import namespace_policy
from spark_throttle.store.store import NOTHING, Change, Entry, PolicyStore

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
    now_ms
        The wall clock: exceptions that have not ended by it are in force.
    most_entries
        For how many single namespaces the administrator of one tenant may make an entry.
    """

    def __init__(
        self, store: PolicyStore, index: EntryIndex, *, now_ms: int, most_entries: int = MOST_TENANT_ENTRIES
    ) -> None:
        self._store = store
        self._now_ms = now_ms
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
        moments = Moments(self._now_ms)
        before = PolicyView(self._store, self._index, revision, moments=moments)
        permitted = []
        for change in changes:
            _check_owner(change, tenant, before)
            entry = before.get("namespace", change.name)
            made = _with_given(change, entry)
            _check_exception(made, self._now_ms)
            if change.body is not None and entry is None:
                self._check_room(change, tenant, before)
            after = PolicyView(self._store, self._index, revision, [made], moments=moments)
            for _ in moments.each():
                _check_tightness(made, tenant, before, after)
            # Who writes what administrators gave undoes all changes of the tenant's, and the entry is theirs again.
            permitted.append(replace(made, given=None) if made.body == made.given else made)
        return permitted

    def overtaken(self, changes: Sequence[Change], revision: int) -> list[Entry]:
        """Return the entries of tenants' administrators that are looser than what administrators give by `changes`."""
        touched = touched_by(changes)
        if touched is None:
            return []
        written = {change.key for change in changes}
        moments = Moments(self._now_ms)
        view = PolicyView(self._store, self._index, revision, changes, moments=moments)
        given = view.as_given()
        return [
            entry
            for entry in self._store.delegated(at=revision)
            if entry.key not in written
            and touched(entry.name)
            and any(part for _ in moments.each() for part in _looser(entry.name, view, given))
        ]

    def _check_room(self, change: Change, tenant: str, view: PolicyView) -> None:
        if not is_glob(change.name):
            made = view.made_by(tenant)
            if made >= self._most_entries:
                raise _refused(
                    change,
                    f"the tenant's administrator has made entries for {made} namespaces of {self._most_entries}; "
                    f"remove one, write a glob such as '{tenant}/*' for several, or ask an administrator",
                )
            return
        if is_of_tenant(change.name):
            return
        others = view.matched_one_by_one()
        own = sum(1 for entry in others if entry.given == NOTHING and entry.name.partition("/")[0] == tenant)
        if own >= MOST_TENANT_GLOBS or len(others) >= MAX_GLOBS:
            raise _refused(
                change,
                f"the tenant's administrator has written {own} globs of {MOST_TENANT_GLOBS}, and the policy has "
                f"{len(others)} of {MAX_GLOBS}; remove one, name the namespaces, or ask an administrator",
            )


def touched_by(changes: Sequence[Change]) -> Callable[[str], bool] | None:
    """Return which entries stand for names that changes by administrators may give less; `None` for no entry.

    The entry of a single namespace decides only about its own name. Without it, the name has a rule of administrators
    that every glob over it was judged by. A group or the job gives less only where it rejects: what delays then does
    not stay.
    """
    shared = (change for change in changes if change.kind in ("resource_group", "job") and change.body is not None)
    rejecting = any('"reject"' in (change.body or "") for change in shared)
    if rejecting or any(change.kind == "defaults" for change in changes):
        return lambda _: True
    globs = [change.name for change in changes if change.kind == "namespace" and is_glob(change.name)]
    tenants = {name[:-2] for name in globs if is_of_tenant(name)}
    tenants |= {change.name for change in changes if change.kind == "tenant"}
    others = [name for name in globs if not is_of_tenant(name)]
    if not tenants and not others:
        return None
    return lambda name: name.partition("/")[0] in tenants or any(overlaps(glob, name) for glob in others)


def _check_owner(change: Change, tenant: str, view: PolicyView) -> None:
    """Refuse a change that is not the tenant's to make, whatever it says."""
    if change.kind != "namespace" or change.name.partition("/")[0] != tenant:
        raise _refused(change, f"the token is only for namespaces of the tenant {tenant!r}; ask an administrator")
    if view.group_of(tenant) is None and not _is_limited(view.policy("tenant", tenant)):
        raise _refused(change, f"the tenant {tenant!r} has neither a quota nor a group; an admin gives it one first")
    entry = view.rule(change.name)
    if entry is not None and entry.policy.locked:
        problem = "an administrator locked it, and only an administrator changes or removes it"
        raise _refused(change, problem, "locked")
    if change.body is None and entry is not None and entry.given != NOTHING:
        raise _refused(change, "an administrator wrote it, and only an administrator removes it")
    if change.body is not None and namespace_policy(Entry("namespace", change.name, change.body, 0)).locked:
        raise _refused(change, "only an administrator locks an entry", "locked")


def _with_given(change: Change, entry: Entry | None) -> Change:
    """Return a change with what administrators gave under its name, by the entry before it."""
    if change.body is None:
        return Change("namespace", change.name, None)
    given = NOTHING if entry is None else entry.body if entry.given is None else entry.given
    return replace(change, given=given)


def _check_exception(made: Change, now_ms: int) -> None:
    """Refuse a change of an exception that administrators gave under its name, while it is in force."""
    body = made.given or None if made.body is not None else None
    exception = None if body is None else namespace_policy(Entry("namespace", made.name, body, 0)).exception
    if exception is None or exception.until_ms <= now_ms:
        return
    if namespace_policy(Entry("namespace", made.name, made.body, 0)).exception != exception:
        problem = f"an administrator gave it an exception until {exception.until} ({exception.reason})"
        raise _refused(made, f"{problem}; repeat it as it is, or ask an administrator", "exception")


def _check_tightness(change: Change, tenant: str, before: PolicyView, after: PolicyView) -> None:
    """Refuse a change after which a name is looser than administrators gave it, unless it is as tight as before.

    It must be as tight as one of the two in every part: parts of both could add up to more than either allows.
    """
    name, was = change.name, before.rule(change.name)
    for rule, bound, part in _looser(name, after, after.as_given()):
        if was is None or any(_parts(rule, was, tenant, after)):
            raise _refused(change, _words(change, part, rule, bound, after.moments), part.path)
    for rule, bound in product(after.rules_of(name), before.rules_of(name)):
        shared = after.shared(tenant, rule.group_in(after.group_of(tenant)))
        for direction in DIRECTIONS:
            for part in newly_waiting(direction, rule.policy, bound.policy, shared):
                raise _refused(change, _words(change, part, rule, bound, after.moments), part.path)


def _looser(name: str, view: PolicyView, given: PolicyView) -> Iterator[tuple[Rule, Rule, LooserPart]]:
    """Yield the tenant's rules of names that `name` stands for, each with a part looser than a rule that was given."""
    tenant = name.partition("/")[0]
    for rule in view.rules_of(name):
        if rule.given is None:
            continue
        for bound in given.rules_of(rule.name):
            part = next(_parts(rule, bound, tenant, view), None) if overlaps(bound.name or "*", name) else None
            if part is not None:
                yield rule, bound, part


def _parts(rule: Rule, bound: Rule, tenant: str, view: PolicyView) -> Iterator[LooserPart]:
    """Yield in what a rule is looser than another for names of a tenant."""
    of_tenant = view.group_of(tenant)
    group, other = rule.group_in(of_tenant), bound.group_in(of_tenant)
    if group != other:
        named_by_tenant = of_tenant is not None and (bound.policy.resource_group is None or not bound.name)
        where = f"tenants.{tenant}" if named_by_tenant else bound.where
        said = f"{other or 'none'} ({_quotas(other, view)})"
        yield LooserPart("resource_group", Level.RESOURCE_GROUP, group or "none", said, where)
    yield from looser_parts(rule.policy, bound.policy, view.shared(tenant, other))


def _words(change: Change, part: LooserPart, rule: Rule, bound: Rule, moments: Moments) -> str:
    by = f" by {rule.where}" if rule.name != change.name else ""
    by += f" from {time_text(moments.at_ms)} on" if moments.at_ms > moments.now_ms else ""
    return (
        f"it would be {part.value}{by}; at the level {part.level.name.lower()}, administrators gave {part.bound} "
        f"({part.where or bound.where}); give no more than that, or ask an administrator"
    )


def _quotas(group: str | None, view: PolicyView) -> str:
    """Return the quotas of a group in words."""
    policy = ScopePolicy() if group is None else view.policy("resource_group", group)
    said = [
        f"{direction}.{key}: {Decimal(value):f}"
        for direction in DIRECTIONS
        for key in HOLDS
        if (value := getattr(getattr(policy, direction), key)) is not None
    ]
    return ", ".join(said) or "unlimited"


def _is_limited(policy: ScopePolicy) -> bool:
    quotas = (policy.publish, policy.dispatch)
    return any(getattr(quota, key) is not None for quota in quotas for key in HOLDS)


def _refused(change: Change, problem: str, path: str | None = None) -> NotPermittedError:
    return NotPermittedError(change.kind, change.name, problem, path=path)
