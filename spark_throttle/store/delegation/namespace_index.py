"""The globs over namespaces of a store, and how many namespaces each tenant's administrator made an entry for."""

from __future__ import annotations

from spark_throttle.core.names.globs import is_glob, is_of_tenant, overlaps, specificity
from spark_throttle.store.delegation.followed_namespaces import FollowedNamespaces
from spark_throttle.store.store import NOTHING, Entry, PolicyStore


class NamespaceIndex(FollowedNamespaces):
    """The globs and the counts of a store at the revisions that changes are planned on; for use by several threads.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author, Change
    >>> store = MemoryStore()
    >>> changes = [Change("namespace", name, "{}") for name in ("*", "acme/*", "other/*", "acme/x")]
    >>> store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> [entry.name for entry in NamespaceIndex(store).overlapping("acme/a*", 1)]
    ['acme/*', '*']
    """

    def __init__(self, store: PolicyStore) -> None:
        super().__init__(store)
        self._of_tenants: dict[str, Entry] = {}
        self._others: dict[str, Entry] = {}
        self._made: dict[str, set[str]] = {}
        """By tenant, the single namespaces whose entries the tenant's administrator made."""

    def overlapping(self, name: str, revision: int) -> list[Entry]:
        """Return the globs that match some name that `name`, a namespace or a glob, stands for; most specific first."""
        with self.lock:
            self.follow(revision)
            all_of_tenant = self._of_tenants.get(f"{name.partition('/')[0]}/*")
            found = [*self._others.values(), *([all_of_tenant] if all_of_tenant else [])]
        return sorted((e for e in found if overlaps(e.name, name)), key=lambda entry: specificity(entry.name))

    def matched_one_by_one(self, revision: int) -> list[Entry]:
        """Return the globs other than ``tenant/*``, of which a policy may have `MAX_GLOBS`."""
        with self.lock:
            self.follow(revision)
            return list(self._others.values())

    def made_by(self, tenant: str, revision: int) -> int:
        """Return for how many single namespaces the administrator of a tenant made an entry that is still there."""
        with self.lock:
            self.follow(revision)
            return len(self._made.get(tenant, ()))

    def forget(self) -> None:
        """Keep nothing."""
        self._of_tenants.clear()
        self._others.clear()
        self._made.clear()

    def keep(self, entry: Entry) -> None:
        """Keep a glob, or count the entry of a single namespace that a tenant's administrator made."""
        if is_glob(entry.name):
            part = self._of_tenants if is_of_tenant(entry.name) else self._others
            if entry.body is None:
                part.pop(entry.name, None)
            else:
                part[entry.name] = entry
        elif entry.body is not None and entry.given == NOTHING:
            self._made.setdefault(entry.name.partition("/")[0], set()).add(entry.name)
        else:
            self._made.get(entry.name.partition("/")[0], set()).discard(entry.name)
