"""The namespaces' entries that administrators have locked."""

from __future__ import annotations

from spark_throttle.store.delegation.followed_namespaces import FollowedNamespaces
from spark_throttle.store.delegation.given_rules import namespace_policy
from spark_throttle.store.store import Entry, PolicyStore


class LockedEntries(FollowedNamespaces):
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
        super().__init__(store)
        self._entries: dict[str, Entry] = {}

    def after(self, name: str, *, tenant: str | None = None) -> list[Entry]:
        """Return the locked entries after a name, by name; those of one tenant only, if it is given."""
        with self.lock:
            self.follow(self.store.revision())
            found = [entry for entry in self._entries.values() if entry.name > name]
        mine = (entry for entry in found if tenant in (None, entry.name.partition("/")[0]))
        return sorted(mine, key=lambda entry: entry.name)

    def forget(self) -> None:
        """Keep nothing."""
        self._entries.clear()

    def keep(self, entry: Entry) -> None:
        """Keep an entry if it is locked."""
        if entry.body is not None and '"locked"' in entry.body and namespace_policy(entry).locked:
            self._entries[entry.name] = entry
        else:
            self._entries.pop(entry.name, None)
