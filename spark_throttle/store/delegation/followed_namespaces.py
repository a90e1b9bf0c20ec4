"""What is kept of a store's namespaces while it grows: all read once, and then the commits that follow.

A store finds an entry by its name. Which entries are globs, locked, or a tenant's own is found only among all of them.

A store that was restored from a backup has other commits under the same numbers. So the commit that was followed last
is compared with what the store says of it, and everything is read anew if they differ.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from spark_throttle.store.store import Entry, PolicyStore, Revision


class FollowedNamespaces(ABC):
    """Something that is kept of a store's namespaces; for use by several threads, under `lock`."""

    def __init__(self, store: PolicyStore) -> None:
        self.store = store
        self.lock = threading.Lock()
        self._revision = -1
        self._commit: Revision | None = None

    @abstractmethod
    def forget(self) -> None:
        """Keep nothing; called before everything is read anew."""

    @abstractmethod
    def keep(self, entry: Entry) -> None:
        """Keep what matters of an entry of a namespace; its body is `None` if it was removed."""

    def follow(self, revision: int) -> None:
        """Read what was committed up to a revision; `lock` is held."""
        if 0 <= self._revision <= revision and self._commit == self._commit_of(self._revision):
            entries = self.store.changed(after=self._revision, until=revision)
        else:
            self.forget()
            entries = self.store.scan(at=revision)
        # If reading fails half-way, everything is read again.
        self._revision = -1
        for entry in entries:
            if entry.kind == "namespace":
                self.keep(entry)
        self._commit, self._revision = self._commit_of(revision), revision

    def _commit_of(self, revision: int) -> Revision | None:
        return next(iter(self.store.history(before=revision + 1, limit=1)), None)
