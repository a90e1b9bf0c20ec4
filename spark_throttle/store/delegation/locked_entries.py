"""The namespaces' entries that administrators have locked, kept while the store grows.

A store finds an entry by its name, and the locked ones are found only among all of them. They are read once, and then
follow the store's commits, as `namespace_index` does.
"""

from __future__ import annotations

import threading

from spark_throttle.store.delegation.given_rules import namespace_policy
from spark_throttle.store.store import Entry, PolicyStore


class LockedEntries:
    """The locked entries of a store at its newest revision; safe for use by several threads.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author, Change
    >>> store = MemoryStore()
    >>> changes = [Change("namespace", "acme/x", '{"locked":true}'), Change("namespace", "acme/y", "{}")]
    >>> store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> [entry.name for entry in LockedEntries(store).after("")]
    ['acme/x']
    """

    def __init__(self, store: PolicyStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._revision = -1
        self._entries: dict[str, Entry] = {}

    def after(self, name: str, *, tenant: str | None = None) -> list[Entry]:
        """Return the locked entries after a name, by name; those of one tenant only, if it is given."""
        with self._lock:
            self._follow(self._store.revision())
            found = [entry for entry in self._entries.values() if entry.name > name]
        mine = (entry for entry in found if tenant in (None, entry.name.partition("/")[0]))
        return sorted(mine, key=lambda entry: entry.name)

    def _follow(self, revision: int) -> None:
        if self._revision < 0 or revision < self._revision:
            self._entries.clear()
            entries = self._store.scan(at=revision)
        else:
            entries = self._store.changed(after=self._revision, until=revision)
        # If reading fails half-way, everything is read again.
        self._revision = -1
        for entry in entries:
            if entry.kind != "namespace":
                continue
            if entry.body is not None and '"locked"' in entry.body and namespace_policy(entry).locked:
                self._entries[entry.name] = entry
            else:
                self._entries.pop(entry.name, None)
        self._revision = revision
