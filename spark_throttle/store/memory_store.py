"""A policy store in memory, for tests and notebooks; a file store also keeps its content in one between reads.

All versions of every entry are kept, as (revision, change) in the order of the revisions.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from spark_throttle.store.entries import resource_group_of
from spark_throttle.store.store import (
    KINDS,
    Author,
    Change,
    Entry,
    Key,
    Kind,
    PolicyStore,
    Revision,
    check_newest,
    check_revision,
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One complete commit."""

    revision: Revision
    changes: tuple[Change, ...]


class MemoryStore:
    """A `PolicyStore` whose content ends with the process.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.commit([Change("tenant", "acme", "{}")], expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> store.page("tenant")
    [Entry(kind='tenant', name='acme', body='{}', revision=1, given=None)]
    """

    def __init__(self, location: str = "memory:") -> None:
        self._location = location
        self._lock = threading.Lock()
        self._commits: list[Commit] = []
        self._names: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
        self._versions: dict[tuple[Kind, str], list[tuple[int, Change]]] = {}

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return self._location

    @property
    def generation(self) -> int:
        """0: nobody else can replace what is in memory."""
        return 0

    def revision(self) -> int:
        """Return the newest revision, 0 before the first commit."""
        return len(self._commits)

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        with self._lock:
            return self._entry(kind, name, check_revision(at, len(self._commits)))

    def find(self, keys: Collection[Key], *, at: int | None = None) -> dict[Key, Entry]:
        """Return those of some entries that exist."""
        with self._lock:
            revision = check_revision(at, len(self._commits))
            return {key: entry for key in keys if (entry := self._entry(*key, revision))}

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return at most `limit` entries of a kind whose names follow `after`, by name."""
        found: list[Entry] = []
        with self._lock:
            revision = check_revision(at, len(self._commits))
            names = self._names[kind]
            # The entry of a single kind has an empty name, which must follow an empty `after`.
            for name in names[bisect_right(names, after) if after else 0 :]:
                if len(found) >= limit:
                    break
                entry = self._entry(kind, name, revision)
                if entry and resource_group in (None, resource_group_of(entry.body)):
                    found.append(entry)
        return found

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        """Yield every entry, by kind and name."""
        with self._lock:
            revision = check_revision(at, len(self._commits))
            keys = [(kind, name) for kind in KINDS for name in self._names[kind]]
            found = [self._entry(kind, name, revision) for kind, name in keys]
        yield from (entry for entry in found if entry)

    def delegated(self, *, at: int | None = None) -> list[Entry]:
        """Return the namespaces' entries that tenants' administrators wrote, by name."""
        with self._lock:
            revision = check_revision(at, len(self._commits))
            found = [self._entry("namespace", name, revision) for name in self._names["namespace"]]
        return [entry for entry in found if entry and entry.given is not None]

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield the entries that the commits after revision `after`, up to and including `until`, wrote, in order."""
        for commit in self._commits[after:until]:
            for change in commit.changes:
                yield _written(change, commit.revision.revision)

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        end = len(self._commits) if before is None else max(0, before - 1)
        return [commit.revision for commit in self._commits[max(0, end - limit) : end][::-1]]

    def check_whole(self) -> None:
        """Do nothing: what is in memory is whole."""

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that holds nobody up: a lost race costs little here."""
        return nullcontext()

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision."""
        with self._lock:
            newest = len(self._commits)
            check_newest(self, expected_revision, newest)
            revision = Revision.of(newest + 1, at_ms, author, len(changes))
            self._append(Commit(revision, tuple(changes)))
            return revision.revision

    def with_changes(self, commit: Commit) -> MemoryStore:
        """Return a store of one commit that has the entries of this one, changed by another commit."""
        there = (Change(entry.kind, entry.name, entry.body, entry.given) for entry in self.scan())
        after = MemoryStore(self._location)
        after.replay([Commit(replace(commit.revision, revision=1), (*there, *commit.changes))])
        return after

    @classmethod
    def copy_of(cls, store: PolicyStore, revision: int) -> MemoryStore:
        """Return a store whose revision 1 has the entries that another store has at a revision."""
        entries = tuple(Change(each.kind, each.name, each.body, each.given) for each in store.scan(at=revision))
        memory = cls(store.location)
        memory.replay([Commit(Revision(1, 0, "", "", len(entries)), entries)])
        return memory

    def replay(self, commits: Sequence[Commit]) -> None:
        """Add commits that were made before, in their order."""
        with self._lock:
            for commit in commits:
                self._append(commit)

    def _append(self, commit: Commit) -> None:
        for change in commit.changes:
            versions = self._versions.setdefault(change.key, [])
            if not versions:
                insort(self._names[change.kind], change.name)
            versions.append((commit.revision.revision, change))
        self._commits.append(commit)

    def _entry(self, kind: Kind, name: str, revision: int) -> Entry | None:
        versions = self._versions.get((kind, name), [])
        at = bisect_right(versions, revision, key=lambda version: version[0])
        if not at or versions[at - 1][1].body is None:
            return None
        return _written(versions[at - 1][1], versions[at - 1][0])


def _written(change: Change, revision: int) -> Entry:
    return Entry(change.kind, change.name, change.body, revision, change.given)
