"""The globs, and entries that are locked, excepted or guaranteed, are read once, then followed commit by commit.

A store finds an entry by its name. Which are globs, locked, excepted, guaranteed something, or a tenant's own is found
only among all.
A store that was restored from a backup has other commits under the same numbers. It tells so
(`PolicyStore.generation`), and everything is read anew.
"""

from __future__ import annotations

import threading

from spark_throttle.core.names.globs import is_glob, is_of_tenant, overlaps, specificity
from spark_throttle.store.entries import exception_of, namespace_policy
from spark_throttle.store.store import NOTHING, Entry, Key, PolicyStore


def says_of_guarantees(body: str | None) -> bool:
    """Return whether an entry guarantees something, also by an exception."""
    return body is not None and '"guaranteed_' in body


class EntryIndex:
    """The entries of a store that are globs, locked, excepted, guaranteed or tenants' own; for use by several threads.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author, Change
    >>> store = MemoryStore()
    >>> changes = [Change("namespace", name, "{}") for name in ("*", "acme/*", "other/*")]
    >>> changes.append(Change("namespace", "acme/x", '{"locked":true}'))
    >>> store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> index = EntryIndex(store)
    >>> [entry.name for entry in index.overlapping("acme/a*", 1)], [entry.name for entry in index.locked_after("")]
    (['acme/*', '*'], ['acme/x'])
    """

    def __init__(self, store: PolicyStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._revision = -1
        self._generation = -1
        self._of_tenants: dict[str, Entry] = {}
        self._others: dict[str, Entry] = {}
        self._locked: dict[str, Entry] = {}
        self._excepted: dict[Key, Entry] = {}
        """The entries with an exception, of every kind."""

        self._guaranteed: dict[Key, Entry] = {}
        """The entries that say of a guarantee, of every kind."""

        self._made: dict[str, set[str]] = {}
        """By tenant, the single namespaces whose entries the tenant's administrator made."""

    def overlapping(self, name: str, revision: int) -> list[Entry]:
        """Return the globs that match some name that `name`, a namespace or a glob, stands for; most specific first."""
        with self._lock:
            self._follow(revision)
            all_of_tenant = self._of_tenants.get(f"{name.partition('/')[0]}/*")
            found = [*self._others.values(), *([all_of_tenant] if all_of_tenant else [])]
        return sorted((e for e in found if overlaps(e.name, name)), key=lambda entry: specificity(entry.name))

    def matched_one_by_one(self, revision: int) -> list[Entry]:
        """Return the globs other than ``tenant/*``, of which a policy may have `MAX_GLOBS`."""
        with self._lock:
            self._follow(revision)
            return list(self._others.values())

    def made_by(self, tenant: str, revision: int) -> int:
        """Return for how many single namespaces the administrator of a tenant made an entry that is still there."""
        with self._lock:
            self._follow(revision)
            return len(self._made.get(tenant, ()))

    def locked_after(self, name: str, *, tenant: str | None = None) -> list[Entry]:
        """Return the locked entries after a name, by name, at the newest revision; those of one tenant, if given."""
        with self._lock:
            self._follow(self._store.revision())
            found = [entry for entry in self._locked.values() if entry.name > name]
        mine = (entry for entry in found if tenant in (None, entry.name.partition("/")[0]))
        return sorted(mine, key=lambda entry: entry.name)

    def excepted(self) -> list[Entry]:
        """Return the entries with an exception at the newest revision, in no order."""
        with self._lock:
            self._follow(self._store.revision())
            return list(self._excepted.values())

    def guaranteed(self, revision: int) -> list[Entry]:
        """Return the entries that are guaranteed something, in no order."""
        with self._lock:
            self._follow(revision)
            return list(self._guaranteed.values())

    def _follow(self, revision: int) -> None:
        """Read what was committed up to a revision; the lock is held."""
        generation = self._store.generation
        if generation == self._generation and 0 <= self._revision <= revision:
            entries = self._store.changed(after=self._revision, until=revision)
        else:
            for part in (self._of_tenants, self._others, self._locked, self._excepted, self._guaranteed, self._made):
                part.clear()
            entries = self._store.scan(at=revision)
        # If reading fails half-way, everything is read again.
        self._revision = -1
        for entry in entries:
            if exception_of(entry.body) is None:
                self._excepted.pop(entry.key, None)
            else:
                self._excepted[entry.key] = entry
            if says_of_guarantees(entry.body):
                self._guaranteed[entry.key] = entry
            else:
                self._guaranteed.pop(entry.key, None)
            if entry.kind == "namespace":
                self._keep(entry)
        self._generation, self._revision = generation, revision

    def _keep(self, entry: Entry) -> None:
        name, body = entry.name, entry.body
        if body is not None and '"locked"' in body and namespace_policy(entry).locked:
            self._locked[name] = entry
        else:
            self._locked.pop(name, None)
        if is_glob(name):
            part = self._of_tenants if is_of_tenant(name) else self._others
            if body is None:
                part.pop(name, None)
            else:
                part[name] = entry
        elif body is not None and entry.given == NOTHING:
            self._made.setdefault(name.partition("/")[0], set()).add(name)
        else:
            self._made.get(name.partition("/")[0], set()).discard(name)
