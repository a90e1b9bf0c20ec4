"""A policy at one moment, as names are held by it: which rule, tenant, group and job hold a name, or may hold it.

A *rule* is the entry of a namespace, a glob, or the defaults. An entry holds its own name; the most specific glob holds
the names without one, and the defaults the rest. Names have no end, so the names that a glob stands for are judged by
the rules that they can have, which are few. A group that an entry or a glob names comes before the tenant's, and that
comes before the one of the defaults.

Exceptions end, and schedules have hours, so names are held otherwise at different moments. What is judged is judged at
each of them (`Moments`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import TypeVar

from spark_throttle.core.names.globs import holders, is_glob, is_of_tenant, overlaps, specificity
from spark_throttle.core.quota import NEVER_MS, Level
from spark_throttle.policy.model import JobPolicy, NamespacePolicy, ScopePolicy
from spark_throttle.policy.weekly_hours import moments_ms, phase_at, valid_at
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.entries import EMPTY, namespace_policy, path_of, policy_of, resource_group_of
from spark_throttle.store.store import Change, Entry, Key, Kind, PolicyStore

P = TypeVar("P", bound=ScopePolicy)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry, a glob or the defaults."""

    name: str
    """Empty for the defaults."""

    policy: NamespacePolicy
    given: str | None = None
    """`Entry.given`."""

    @property
    def where(self) -> str:
        """The place of the rule in a document."""
        return f"namespaces.{self.name}" if self.name else "defaults"

    def group_in(self, tenants_group: str | None) -> str | None:
        """Return the group of the rule's names whose tenant has a certain group."""
        own = self.policy.resource_group
        return own or tenants_group if self.name else tenants_group or own


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope that rows pass."""

    level: Level
    where: str
    policy: ScopePolicy


class Moments:
    """The moments at which a judgement may differ: one for each phase that the entries which it meets may be in.

    They are now, the ends of exceptions in force, and, before and after each, times at which the hours of schedules
    begin or end.

    Examples
    --------
    >>> thrice = {"until": "1970-01-01T00:00:09Z", "reason": "a move", "publish": {"messages_per_second": 15}}
    >>> acme = ScopePolicy.model_validate({"publish": {"messages_per_second": 5}, "exception": thrice})
    >>> moments = Moments(0)
    >>> [(moments.at_ms, int(moments.policy(acme, "UTC").publish.messages_per_second)) for _ in moments.each()]
    [(0, 15), (9000, 5)]
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = self.at_ms = now_ms
        self._ends_ms: set[int] = set()
        self._hours: set[str] = set()
        self._zone = "UTC"

    def each(self) -> Iterator[None]:
        """Go through the moments; what is read at one is as it is then."""
        judged: set[int] = set()
        at_ms: int | None = self.now_ms
        while at_ms is not None:
            self.at_ms = at_ms
            yield
            judged.add(at_ms)
            at_ms = self._next_ms(judged)
        self.at_ms = NEVER_MS

    @property
    def hours(self) -> frozenset[str]:
        """The hours, of schedules that were met, that hold at the present one of the moments."""
        texts = sorted(self._hours)
        return frozenset(compress(texts, valid_at(texts, self._zone, self.at_ms)))

    def policy(self, policy: P, zone: str) -> P:
        """Return an entry's policy as it is at the present one of the moments, in a time zone."""
        if policy.exception is not None and policy.exception.until_ms > self.now_ms:
            self._ends_ms.add(policy.exception.until_ms)
        if policy.schedule:
            self._hours.update(policy.schedule)
            self._zone = zone
        return policy.at(self.at_ms, zone)

    def _next_ms(self, judged: set[int]) -> int | None:
        """Return the first moment of a phase that none of those judged has."""
        ends, hours = sorted(self._ends_ms), sorted(self._hours)
        seen = {phase_at(ends, hours, self._zone, at_ms) for at_ms in judged}
        found = moments_ms(ends, hours, self._zone, self.now_ms)
        return next((at_ms for at_ms in found if phase_at(ends, hours, self._zone, at_ms) not in seen), None)


class PolicyView:
    """The entries of a revision, or those after some changes of it that are not committed yet.

    Parameters
    ----------
    moments
        When: an exception that ends later is in force.
    is_given
        Whether what tenants' administrators wrote is left out, so that each entry is as administrators gave it.
    """

    def __init__(
        self,
        store: PolicyStore,
        index: EntryIndex,
        revision: int,
        changes: Sequence[Change] = (),
        *,
        moments: Moments,
        is_given: bool = False,
    ) -> None:
        self._store, self._index, self._revision, self._changes = store, index, revision, changes
        self.moments = moments
        self._is_given = is_given
        self.known: Mapping[Key, Entry] | None = None
        """Every entry before the changes, once somebody has read them; the store is asked no more then."""

        self._changed = {
            change.key: Entry(change.kind, change.name, change.body, 0, change.given) for change in changes
        }
        changed = [entry for entry in self._changed.values() if entry.kind == "namespace" and is_glob(entry.name)]
        self._of_tenants = {entry.name: entry for entry in changed if is_of_tenant(entry.name)}
        self._others = [entry for entry in changed if not is_of_tenant(entry.name)]

    @cached_property
    def _zone(self) -> str:
        """The time zone in which schedules are meant."""
        entry = self.get("job", "")
        policy = EMPTY["job"] if entry is None else policy_of(entry)
        assert isinstance(policy, JobPolicy)  # noqa: S101 - an entry of the job
        return policy.time_zone

    def as_given(self) -> PolicyView:
        """Return the view without what tenants' administrators wrote."""
        return PolicyView(
            self._store, self._index, self._revision, self._changes, moments=self.moments, is_given=True
        )  # fmt: skip

    def get(self, kind: Kind, name: str) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        entry = self._changed.get((kind, name))
        if entry is None and self.known is None:
            entry = self._store.get(kind, name, at=self._revision)
        elif entry is None and self.known is not None:
            entry = self.known.get((kind, name))
        return None if entry is None else self._seen(entry)

    def policy(self, kind: Kind, name: str = "") -> ScopePolicy:
        """Return the policy of an entry; the empty one if it does not exist."""
        entry = self.get(kind, name)
        policy = EMPTY[kind] if entry is None else policy_of(entry)
        assert isinstance(policy, ScopePolicy)  # noqa: S101 - only the queue's is another
        return self.moments.policy(policy, self._zone)

    def rule(self, name: str) -> Rule | None:
        """Return the entry of a namespace or a glob, `None` if there is none."""
        entry = self.get("namespace", name)
        return None if entry is None else self._rule_of(entry)

    def rules_of(self, name: str) -> Iterator[Rule]:
        """Yield the rules that names which `name` stands for have: its entry, or else those beside it."""
        own = self.rule(name)
        yield from self.rules_beside(name) if own is None else (own,)

    def rules_beside(self, name: str) -> Iterator[Rule]:
        """Yield the rules that names which `name`, a namespace or a glob, stands for may have if it has no entry."""
        globs = {entry.name: entry for entry in self.overlapping(name)}
        for glob in holders(name, globs):
            yield self.defaults if glob is None else self._rule_of(globs[glob])

    def overlapping(self, name: str) -> list[Entry]:
        """Return the globs that match some name that `name`, a namespace or a glob, stands for; most specific first."""
        kept = self._index.overlapping(name, self._revision)
        if self._changed:
            of_tenant = self._of_tenants.get(f"{name.partition('/')[0]}/*")
            changed = [*self._others, *([of_tenant] if of_tenant else [])]
            kept = [entry for entry in kept if entry.key not in self._changed]
            kept = [*kept, *(entry for entry in changed if overlaps(entry.name, name))]
            kept.sort(key=lambda entry: specificity(entry.name))
        return [seen for entry in kept if (seen := self._seen(entry))]

    @property
    def defaults(self) -> Rule:
        """The rule of the names that no entry and no glob holds."""
        entry = self.get("defaults", "")
        return Rule(
            "", NamespacePolicy() if entry is None else self.moments.policy(namespace_policy(entry), self._zone)
        )

    def group_of(self, tenant: str) -> str | None:
        """Return the group that a tenant's entry names."""
        entry = self.get("tenant", tenant)
        return None if entry is None else resource_group_of(entry.body)

    def shared(self, tenant: str, group: str | None) -> list[Scope]:
        """Return the scopes that names of a tenant share if they are in a group, the narrowest first."""
        keys: list[tuple[Level, Kind, str]] = [(Level.TENANT, "tenant", tenant)]
        keys += [(Level.RESOURCE_GROUP, "resource_group", group)] if group is not None else []
        keys.append((Level.JOB, "job", ""))
        return [Scope(level, path_of(kind, name), self.policy(kind, name)) for level, kind, name in keys]

    def matched_one_by_one(self) -> list[Entry]:
        """Return the globs other than ``tenant/*``, before the changes."""
        return self._index.matched_one_by_one(self._revision)

    def made_by(self, tenant: str) -> int:
        """Return for how many single namespaces the administrator of a tenant made an entry, before the changes."""
        return self._index.made_by(tenant, self._revision)

    def _seen(self, entry: Entry) -> Entry | None:
        """Return an entry as the view has it."""
        if self._is_given and entry.given is not None:
            entry = replace(entry, body=entry.given or None, given=None)
        return None if entry.body is None else entry

    def _rule_of(self, entry: Entry) -> Rule:
        return Rule(entry.name, self.moments.policy(namespace_policy(entry), self._zone), entry.given)
