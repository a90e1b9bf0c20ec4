"""A change of a policy costs protection, judged by its effect on every name that it can touch.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from spark_throttle.core.names.globs import covers, is_glob, overlaps
from spark_throttle.core.quota import Level
from spark_throttle.policy.model import ScopePolicy
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.checks.limit_changes import KINDS_OF_LOSS, Limits, Loss, limits_of, losses_between
from spark_throttle.store.checks.policy_view import Moments, PolicyView, Rule, Scope
from spark_throttle.store.entries import Difference, entries_of_kind, path_of, policy_of, resource_group_of
from spark_throttle.store.store import MEMBER_KINDS, Change, Entry, Key, Kind, PolicyStore, check_wanted

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What a change of many entries would do, if it were made now."""

    revision: int
    """The store's revision that it would change; `expected` makes sure of it."""

    changes: int
    """How many entries would change."""

    differences: tuple[Difference, ...]
    """The first of them, as many as were asked for."""

    losses: tuple[Loss, ...]
    """What it costs; if there is any, it must be confirmed."""


def losses_of(
    store: PolicyStore,
    index: EntryIndex,
    changes: Sequence[Change],
    revision: int,
    *,
    now_ms: int,
    is_whole: bool = False,
) -> list[Loss]:
    """Return what changes of a revision cost, the worst first; nothing is written.

    The first commit of a store costs nothing: no job can have followed it yet.

    Parameters
    ----------
    now_ms
        The wall clock: what an exception costs, or its absence, counts if it has not ended.
    is_whole
        Whether the changes are those of a document or a rollback, which say the whole policy.

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
    >>> for loss in losses_of(store, EntryIndex(store), [Change("tenant", "acme", None)], 1, now_ms=0):
    ...     print(loss)
    tenants.acme: publish.messages_per_second of resource_groups.gold is lifted (it was 5)
    """
    if not revision:
        return []
    found = _Judgement(store, index, changes, revision, Moments(now_ms)).losses()
    return [loss for loss in found if is_whole or not loss.is_end_of_own_emergency]


class _Judgement:
    """The facts that some changes of one revision are judged by."""

    def __init__(
        self, store: PolicyStore, index: EntryIndex, changes: Sequence[Change], revision: int, moments: Moments
    ) -> None:
        self._moments = moments
        self._store, self._changes, self._revision = store, changes, revision
        self._changed = {change.key for change in changes}
        self._before = PolicyView(store, index, revision, moments=moments)
        self._after = PolicyView(store, index, revision, changes, moments=moments)
        self._views = (self._before, self._after)
        self._tenants_without = {
            change.name.partition("/")[0]
            for change in changes
            if change.kind == "namespace" and change.body is not None and resource_group_of(change.body) is None
        }
        """Tenants of which a namespace's entry is written that names no group."""

    def losses(self) -> list[Loss]:
        hours: dict[Loss, frozenset[str]] = {}
        for change in self._changes:
            for _ in self._moments.each():
                for loss in [*self._losses_of(change)]:
                    hours[loss] = hours.get(loss, self._moments.hours) & self._moments.hours
        found = [replace(loss, hours=tuple(sorted(texts))) for loss, texts in hours.items()]
        if any(loss.kind == "lifted" for loss in found) and not any(map(_limits_of, self._entries_after())):
            found = [Loss("no_policy", ""), *found]
        return sorted(found, key=lambda loss: KINDS_OF_LOSS.index(loss.kind))

    def _losses_of(self, change: Change) -> Iterator[Loss]:
        check_wanted()
        name, path = change.name, path_of(*change.key)
        match change.kind:
            case "resource_group":
                # A group that is removed has no members any more: what they lose is theirs.
                if self._after.get("resource_group", name) is not None:
                    losses = list(self._of_scope(Level.RESOURCE_GROUP, change.key, path))
                    yield from losses if losses and self._is_used(name) else ()
            case "tenant":
                losses = list(self._of_tenant(name, path))
                yield from () if losses and self._is_free(*names_of("tenant", name)) else losses
            case "namespace":
                yield from self._of_namespace(name, path)
            case "defaults":
                # A rule for all names leaves none to the defaults.
                if all(view.get("namespace", "*") is None for view in self._views):
                    yield from self._of_rules(self._before.defaults, self._after.defaults, "*", path)
            case "job":
                yield from self._of_scope(Level.JOB, change.key, path)
            case "exempt":
                yield from self._of_exemption(change, path)
            case "queue":
                return

    def _of_scope(self, level: Level, key: Key, path: str) -> Iterator[Loss]:
        before, after = (Scope(level, path, view.policy(*key)) for view in self._views)
        yield from losses_between(before, after, path)

    # --------------------------------------------------------------------------------------------- groups, tenants

    def _is_used(self, group: str) -> bool:
        """Return whether a group has members, not exempt as a whole, both before the changes and after them.

        A member that joins or leaves is judged by its own change.
        """
        members = [key for key in self._members.get(group, ()) if not self._is_free(*names_of(*key))]
        given = (change.key for change in self._changes if resource_group_of(change.body) == group)
        is_used = any(not self._is_free(*names_of(*key)) for key in given)
        return bool(members) and (is_used or any(key not in self._changed for key in members))

    def _of_tenant(self, tenant: str, path: str) -> Iterator[Loss]:
        yield from self._of_scope(Level.TENANT, ("tenant", tenant), path)
        old, new = (view.group_of(tenant) for view in self._views)
        if old == new:
            return
        if not self._has_rule_for_all_of(tenant):
            yield from self._of_groups(self._before.defaults.group_in(old), self._after.defaults.group_in(new), path)
        if self._has_rule_without_group(tenant):
            yield from self._of_groups(old, new, path)

    def _has_rule_for_all_of(self, tenant: str) -> bool:
        """Return whether globs leave none of a tenant's namespaces to the defaults, before and after."""
        return all(
            any(covers(entry.name, names) for entry in view.overlapping(names))
            for view in self._views
            for names in names_of("tenant", tenant)
        )

    def _has_rule_without_group(self, tenant: str) -> bool:
        """Return whether a rule that names no group may apply to a namespace of a tenant."""
        if tenant in self._tenants_without:
            return True
        names = names_of("tenant", tenant)
        entries = [entry for view in self._views for name in names for entry in view.overlapping(name)]
        entries += [own for view in self._views if (own := view.get("namespace", tenant))]
        folder = f"{tenant}/"
        page = self._store.page("namespace", after=folder, limit=_PAGE, at=self._revision)
        entries += (entry for entry in page if entry.name.startswith(folder))
        is_more = len(page) == _PAGE and page[-1].name.startswith(folder)
        return is_more or any(resource_group_of(entry.body) is None for entry in entries)

    def _of_groups(self, first: str | None, second: str | None, path: str) -> Iterator[Loss]:
        """Yield what names lose that go from one group to another."""
        if first != second:
            yield from losses_between(_group(self._before, first), _group(self._after, second), path)

    # -------------------------------------------------------------------------------------------------- namespaces

    def _of_namespace(self, name: str, path: str) -> Iterator[Loss]:
        before, after = (view.rule(name) for view in self._views)
        if before and before.policy.locked and not (after and after.policy.locked):
            yield Loss("unlocked", path)
        if before is None and after is None:
            return
        for first in self._before.rules_of(name):
            for second in self._after.rules_of(name):
                names = narrower_of(name, first.name if before is None else second.name)
                yield from self._of_rules(first, second, names, path)

    def _of_rules(self, first: Rule, second: Rule, names: str, path: str) -> Iterator[Loss]:
        """Yield what some names lose, a name or a glob, that go from one rule to another.

        What is exempt before or after loses nothing by it; the beginning or end of an exemption is judged by itself.
        """
        losses = list(self._of_rules_that_hold(first, second, names, path))
        yield from () if losses and self._is_free(names) else losses

    def _of_rules_that_hold(self, first: Rule, second: Rule, names: str, path: str) -> Iterator[Loss]:
        was, becomes = (Scope(Level.NAMESPACE, rule.where, rule.policy) for rule in (first, second))
        yield from losses_between(was, becomes, path)
        if (first.policy.resource_group, not first.name) == (second.policy.resource_group, not second.name):
            return  # whatever becomes of the group is the change of the tenant, or of the group itself
        tenant, slash, _ = names.partition("/")
        groups: Iterable[tuple[str | None, str | None]]
        if not is_glob(tenant) and (slash or not is_glob(names)):
            groups = [(self._before.group_of(tenant), self._after.group_of(tenant))]
        else:
            groups = ((group, group) for group in (None, *self._groups_of_tenants))
        for old, new in groups:
            yield from self._of_groups(first.group_in(old), second.group_in(new), path)

    # -------------------------------------------------------------------------------------------------- exemptions

    @cached_property
    def _exempt(self) -> tuple[Exemptions, Exemptions]:
        """What is exempt before the changes, and after them."""
        before = {entry.name for entry in entries_of_kind(self._store, "exempt", at=self._revision)}
        after = before - {change.name for change in self._changes if change.kind == "exempt" and change.body is None}
        after |= {change.name for change in self._changes if change.kind == "exempt" and change.body is not None}
        return Exemptions(before), Exemptions(after)

    def _is_free(self, *names: str) -> bool:
        """Return whether all of some names and globs are exempt, each before or after the changes."""
        return all(any(exempt.covers(name) for exempt in self._exempt) for name in names)

    def _of_exemption(self, change: Change, path: str) -> Iterator[Loss]:
        """Yield what an exemption that begins or ends costs."""
        was_exempt, is_exempt = self._exempt
        begins = change.body is not None
        if begins == (self._before.get("exempt", change.name) is not None):
            return
        if (was_exempt if begins else is_exempt).covers(change.name):
            return
        if not is_glob(change.name):
            nothing = ScopePolicy()
            for scope in _passed(self._before if begins else self._after, change.name):
                free = replace(scope, policy=nothing)
                yield from losses_between(*((scope, free) if begins else (free, scope)), path)
        elif begins and change.name in self._globs_that_lose:
            yield Loss("lifted", path, "every limit", "", "in force", None, "the names that it matches")
        elif not begins and change.name in self._globs_that_stop:
            yield Loss("zero", path, "a quota", "", None, "0", "the names that it matches")

    @cached_property
    def _globs_that_lose(self) -> set[str]:
        """The globs of the changes whose names, exempt after them, may have been held by a limit before."""
        return _held(self._changed_exemptions, self._entries.values(), bool, self._exempt[0])

    @cached_property
    def _globs_that_stop(self) -> set[str]:
        """The globs of the changes whose names, exempt before them, may be held by a quota of 0 after."""
        return _held(self._changed_exemptions, self._entries_after(), _is_shut, self._exempt[1])

    @property
    def _changed_exemptions(self) -> set[str]:
        return {change.name for change in self._changes if change.kind == "exempt" and is_glob(change.name)}

    # --------------------------------------------------------------------------------------------------- all at once

    @cached_property
    def _entries(self) -> dict[Key, Entry]:
        """Every entry before the changes, for what depends on who else there is; read once, and then known."""
        found = {entry.key: entry for entry in self._store.scan(at=self._revision)}
        for view in self._views:
            view.known = found
        return found

    @cached_property
    def _members(self) -> dict[str, list[Key]]:
        """Who is attached to each group, before the changes."""
        found: dict[str, list[Key]] = {}
        for entry in self._entries.values():
            if entry.kind in MEMBER_KINDS and (group := resource_group_of(entry.body)) is not None:
                found.setdefault(group, []).append(entry.key)
        return found

    @cached_property
    def _groups_of_tenants(self) -> list[str]:
        """Every group that a tenant has, before or after the changes: which tenant, is not asked, they are too many."""
        named = {group for group, members in self._members.items() if any(kind == "tenant" for kind, _ in members)}
        given = (resource_group_of(change.body) for change in self._changes if change.kind == "tenant")
        return sorted(named.union(group for group in given if group is not None))

    def _entries_after(self) -> Iterator[Entry]:
        yield from (Entry(change.kind, change.name, change.body, 0) for change in self._changes if change.body)
        yield from (entry for key, entry in self._entries.items() if key not in self._changed)


class Exemptions:
    """The names and globs that are exempt at one moment.

    Examples
    --------
    >>> exempt = Exemptions(["acme/*", "blue/x"])
    >>> exempt.covers("acme/a*"), exempt.covers("blue/x"), exempt.covers("blue/*")
    (True, True, False)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._globs = [name for name in self._names if is_glob(name)]

    def covers(self, name: str) -> bool:
        """Return whether a name, or each name that a glob matches, is exempt by one of them."""
        return name in self._names or any(covers(glob, name) for glob in self._globs)


def names_of(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the names and globs that stand for all names that an entry may hold.

    Examples
    --------
    >>> names_of("tenant", "acme")
    ('acme', 'acme/*')
    """
    return {"tenant": (name, f"{name}/*"), "defaults": ("*",), "job": ("*",)}.get(kind, (name,))


def narrower_of(name: str, other: str) -> str:
    """Return which of a name or glob, and a glob, says more about the tenant of the names that both match.

    Examples
    --------
    >>> narrower_of("*x", "acme/*"), narrower_of("acme/x*", "*")
    ('acme/*', 'acme/x*')
    """
    return other if is_glob(name) and "/" in other.partition("*")[0] else name


def _passed(view: PolicyView, name: str) -> list[Scope]:
    """Return the scopes that a namespace passes."""
    rule, tenant = next(view.rules_of(name)), name.partition("/")[0]
    own = Scope(Level.NAMESPACE, rule.where, rule.policy)
    return [own, *view.shared(tenant, rule.group_in(view.group_of(tenant)))]


def _group(view: PolicyView, name: str | None) -> Scope:
    policy = ScopePolicy() if name is None else view.policy("resource_group", name)
    return Scope(Level.RESOURCE_GROUP, f"resource_groups.{name or ''}", policy)


def _limits_of(entry: Entry) -> Limits:
    """Return the limits by which an entry can hold rows back, those of its exception and its schedule too."""
    policy = policy_of(entry) if entry.kind != "exempt" else None
    if not isinstance(policy, ScopePolicy):
        return {}
    found = {**limits_of(policy)}
    for key, _, then in policy.parts:
        found |= {f"{key}.{path}": limit for path, limit in limits_of(then).items()}
    return found


def _is_shut(limits: Limits) -> bool:
    return any(limit.is_shut for limit in limits.values())


def _held(globs: set[str], entries: Iterable[Entry], counts: Callable[[Limits], bool], exempt: Exemptions) -> set[str]:
    """Return the globs of which a name may be held by limits that count; the entries are read once, for all globs.

    A group that counts and has members holds all of them: whether its members share names with them, is not asked.
    An entry whose names are all exempt at that moment holds nobody, and is no member.
    """
    free, held = set(globs), set[str]()
    counting, named = set[str](), set[str]()
    for entry in entries:
        names = names_of(entry.kind, entry.name)
        group = resource_group_of(entry.body)
        if group is not None and group not in named and not all(map(exempt.covers, names)):
            named.add(group)
        if not counts(_limits_of(entry)):
            continue
        if entry.kind == "resource_group":
            counting.add(entry.name)
            continue
        found = {glob for glob in free if any(overlaps(glob, name) for name in names)}
        if found and not all(map(exempt.covers, names)):
            held, free = held | found, free - found
        if not free:
            break
    return held if counting.isdisjoint(named) else held | free
