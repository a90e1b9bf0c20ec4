"""What is kept of a store's namespaces while it grows: all read once, and then the commits that follow.

A store finds an entry by its name. Which entries are globs, locked, or a tenant's own is found only among all of them.

A store that was restored from a backup has other commits under the same numbers. It tells so
(`PolicyStore.generation`), and everything is read anew.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from spark_throttle.store.store import Entry, PolicyStore


class FollowedNamespaces(ABC):
    """Something that is kept of a store's namespaces; for use by several threads, under `lock`."""

    def __init__(self, store: PolicyStore) -> None:
        self.store = store
        self.lock = threading.Lock()
        self._revision = -1
        self._generation = -1

    @abstractmethod
    def forget(self) -> None:
        """Keep nothing; called before everything is read anew."""

    @abstractmethod
    def keep(self, entry: Entry) -> None:
        """Keep what matters of an entry of a namespace; its body is `None` if it was removed."""

    def follow(self, revision: int) -> None:
        """Read what was committed up to a revision; `lock` is held."""
        generation = self.store.generation
        if generation == self._generation and 0 <= self._revision <= revision:
            entries = self.store.changed(after=self._revision, until=revision)
        else:
            self.forget()
            entries = self.store.scan(at=revision)
        # If reading fails half-way, everything is read again.
        self._revision = -1
        for entry in entries:
            if entry.kind == "namespace":
                self.keep(entry)
        self._generation, self._revision = generation, revision
