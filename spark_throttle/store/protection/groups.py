"""The resource groups of a revision and of some changes of it: their limits, and who is attached to them.

A store looks for the members of one group among all entries. For one group it is asked; for more, everything is read
once, so that what a change costs takes no longer to find where there are more groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from spark_throttle.store.entries import entries_of_kind, resource_group_of
from spark_throttle.store.protection.holding_rules import terms_of_entry
from spark_throttle.store.protection.loss import Terms
from spark_throttle.store.store import MEMBER_KINDS, Change, Entry, Kind, PolicyStore

MOST_MEMBERS: Final = 1000
"""Number of a group's members of a kind, beyond which no more of them are looked at."""


@dataclass(frozen=True, slots=True)
class HoldingGroup:
    """The group of some names; its name may be empty, for none."""

    name: str
    terms: Terms

    @property
    def where(self) -> str:
        """The place of the group in a document."""
        return f"resource_groups.{self.name}"


class Groups:
    """The groups before some changes of a revision, and after them.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author
    >>> store = MemoryStore()
    >>> changes = [Change("resource_group", name, "{}") for name in ("gold", "silver")]
    >>> changes.append(Change("tenant", "acme", '{"resource_group":"gold"}'))
    >>> store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> groups = Groups(store, 1, [Change("tenant", "blue", '{"resource_group":"silver"}')])
    >>> groups.members_before("gold"), groups.members_given("silver"), sorted(groups.of_tenants)
    ([('tenant', 'acme')], [('tenant', 'blue')], ['gold', 'silver'])
    """

    def __init__(self, store: PolicyStore, revision: int, changes: Sequence[Change]) -> None:
        self._store, self._revision = store, revision
        self._changed = {
            change.name: Entry(change.kind, change.name, change.body, 0) if change.body is not None else None
            for change in changes
            if change.kind == "resource_group"
        }
        self._given: dict[str, list[tuple[Kind, str]]] = {}
        for change in changes:
            if (group := resource_group_of(change.body)) is not None:
                self._given.setdefault(group, []).append(change.key)
        self._read: dict[str, Entry | None] = {}

    def before(self, name: str | None) -> HoldingGroup:
        """Return a group as it was before the changes."""
        if name is None:
            return HoldingGroup("", {})
        if name not in self._read:
            self._read[name] = self._store.get("resource_group", name, at=self._revision)
        return HoldingGroup(name, terms_of_entry(self._read[name]))

    def after(self, name: str | None) -> HoldingGroup:
        """Return a group as the changes leave it."""
        if name is None or name not in self._changed:
            return self.before(name)
        return HoldingGroup(name, terms_of_entry(self._changed[name]))

    def members_given(self, group: str) -> list[tuple[Kind, str]]:
        """Return the entries that the changes attach to a group, or write anew with it."""
        return self._given.get(group, [])

    def members_before(self, group: str) -> list[tuple[Kind, str]] | None:
        """Return the entries that were attached to a group, or `None` where they are too many to look at each."""
        if len(self._changed) > 1:
            members = self._all_members.get(group, [])
            return None if len(members) >= MOST_MEMBERS else members
        members = []
        for kind in MEMBER_KINDS:
            page = self._store.page(kind, limit=MOST_MEMBERS, at=self._revision, resource_group=group)
            members += ((kind, entry.name) for entry in page)
            if len(members) >= MOST_MEMBERS:
                return None
        return members

    @cached_property
    def of_tenants(self) -> frozenset[str]:
        """Every group that a tenant has, before or after the changes: which tenant, is not asked, they are too many.

        The groups themselves are read too, a page at a time: whoever asks for these names looks at each.
        """
        groups, tenants = (
            entries_of_kind(self._store, kind, at=self._revision) for kind in ("resource_group", "tenant")
        )
        self._read |= {entry.name: entry for entry in groups}
        named = {resource_group_of(entry.body) for entry in tenants}
        given = {group for group, members in self._given.items() if any(kind == "tenant" for kind, _ in members)}
        return frozenset(given.union(group for group in named if group is not None))

    @cached_property
    def _all_members(self) -> dict[str, list[tuple[Kind, str]]]:
        found: dict[str, list[tuple[Kind, str]]] = {}
        for entry in self._store.scan(at=self._revision):
            if entry.kind in MEMBER_KINDS and (group := resource_group_of(entry.body)) is not None:
                found.setdefault(group, []).append((entry.kind, entry.name))
        return found
