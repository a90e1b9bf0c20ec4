"""What the exemptions that begin or end by some changes cost, and what is exempt before or after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from spark_throttle.core.names.globs import is_glob, overlaps
from spark_throttle.core.quota import Level
from spark_throttle.store.delegation.given_rules import PolicyView
from spark_throttle.store.entries import entries_of_kind, policy_of
from spark_throttle.store.protection.exemptions import Exemptions, names_of
from spark_throttle.store.protection.groups import Groups, HoldingGroup
from spark_throttle.store.protection.holding_rules import group_of_tenant, holds, rule_of, terms_in
from spark_throttle.store.protection.loss import Loss, Terms, is_zero, losses_between, terms_of
from spark_throttle.store.store import Change, Entry, PolicyStore


class ExemptionChanges:
    """The exemptions before some changes of a revision and after them.

    Parameters
    ----------
    views
        The policy before the changes, and after them.
    entries_before, entries_after
        Read all entries at these two moments; called at most once each.
    """

    def __init__(
        self,
        store: PolicyStore,
        revision: int,
        changes: Sequence[Change],
        views: tuple[PolicyView, PolicyView],
        groups: Groups,
        entries_before: Callable[[], Iterable[Entry]],
        entries_after: Callable[[], Iterable[Entry]],
    ) -> None:
        self._store, self._revision, self._changes, self._groups = store, revision, changes, groups
        self._before, self._after = views
        self._entries_before, self._entries_after = entries_before, entries_after
        self._changed = {change.key for change in changes}

    def covers(self, *names: str) -> bool:
        """Return whether all of some names and globs are exempt, each before or after the changes."""
        return all(self._was_exempt.covers(name) or self._is_exempt_after.covers(name) for name in names)

    def losses_of(self, change: Change, path: str) -> Iterator[Loss]:
        """Yield what an exemption that begins or ends costs."""
        was_exempt = self._before.get("exempt", change.name) is not None
        if change.body is None and was_exempt:
            yield from self._of_end_of_exemption(change.name, path)
        if change.body is None or was_exempt:
            return
        if self._was_exempt.covers(change.name):
            return
        if is_glob(change.name):
            if change.name in self._globs_that_lose:
                yield Loss("lifted", path, "every limit", "", "in force", None, "the names that it matches")
            return
        for level, terms, where in _levels_of(self._before, self._groups.before, change.name):
            yield from losses_between(terms, {}, path=path, level=level, where=where)

    def _of_end_of_exemption(self, name: str, path: str) -> Iterator[Loss]:
        """Yield the quotas of 0 that hold names which are exempt no more."""
        if self._is_exempt_after.covers(name):
            return
        if is_glob(name):
            if name in self._globs_that_stop:
                yield Loss("zero", path, "a quota", "", None, "0", "the names that it matches")
            return
        for level, terms, where in _levels_of(self._after, self._groups.after, name):
            yield from losses_between({}, terms, path=path, level=level, where=where)

    @cached_property
    def _globs_that_lose(self) -> set[str]:
        """The globs of the changes whose names, exempt after them, may have been held by a limit before."""
        return _held(self._changed_exemptions, self._entries_before(), bool, self._was_exempt)

    @cached_property
    def _globs_that_stop(self) -> set[str]:
        """The globs of the changes whose names, exempt before them, may be held by a quota of 0 after."""
        return _held(self._changed_exemptions, self._entries_after(), _has_zero, self._is_exempt_after)

    @property
    def _changed_exemptions(self) -> set[str]:
        return {change.name for change in self._changes if change.kind == "exempt" and is_glob(change.name)}

    @cached_property
    def _was_exempt(self) -> Exemptions:
        return Exemptions(entry.name for entry in entries_of_kind(self._store, "exempt", at=self._revision))

    @cached_property
    def _is_exempt_after(self) -> Exemptions:
        given = (change.name for change in self._changes if change.kind == "exempt" and change.body is not None)
        stays = (name for name in self._was_exempt if ("exempt", name) not in self._changed)
        return Exemptions([*stays, *given])


def _levels_of(
    view: PolicyView, group_at: Callable[[str | None], HoldingGroup], name: str
) -> list[tuple[Level, Terms, str]]:
    """Return the levels that a namespace passes, with their limits and places."""
    rule, tenant = rule_of(view, name), name.partition("/")[0]
    group = group_at(rule.group_in(group_of_tenant(view, tenant)))
    return [
        (Level.NAMESPACE, rule.terms, rule.where),
        (Level.TENANT, terms_in(view, "tenant", tenant), f"tenants.{tenant}"),
        (Level.RESOURCE_GROUP, group.terms, group.where),
        (Level.JOB, terms_in(view, "job", ""), "job"),
    ]


def _held(globs: set[str], entries: Iterable[Entry], counts: Callable[[Terms], bool], exempt: Exemptions) -> set[str]:
    """Return the globs of which a name may be held by limits that count; the entries are read once, for all globs.

    A group that counts and has members holds all of them: whether its members share names with them, is not asked.
    An entry whose names are all exempt at that moment holds nobody, and is no member.
    """
    free, held = set(globs), set[str]()
    counting, named = set[str](), set[str]()
    for entry in entries:
        policy = policy_of(entry)
        group = getattr(policy, "resource_group", None)
        if group is not None and group not in named and not _is_exempt(entry, exempt):
            named.add(group)
        if not counts(terms_of(policy)):
            continue
        if entry.kind == "resource_group":
            counting.add(entry.name)
        elif holds(entry):
            found = {glob for glob in free if any(overlaps(glob, name) for name in names_of(entry.kind, entry.name))}
            if found and not _is_exempt(entry, exempt):
                held, free = held | found, free - found
        if not free:
            break
    return held if counting.isdisjoint(named) else held | free


def _has_zero(terms: Terms) -> bool:
    return any(map(is_zero, terms.values()))


def _is_exempt(entry: Entry, exempt: Exemptions) -> bool:
    """Return whether all names that an entry may hold are exempt."""
    return all(exempt.covers(name) for name in names_of(entry.kind, entry.name))
