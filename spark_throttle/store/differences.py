"""What lies between two revisions of a store: the entries that differ, and the changes that restore the older."""

from __future__ import annotations

from spark_throttle.errors import NotFoundError
from spark_throttle.store.committer import change_to
from spark_throttle.store.entries import Difference
from spark_throttle.store.store import KINDS, Change, Kind, PolicyStore


def differences(store: PolicyStore, before: int, after: int) -> list[Difference]:
    """Return the entries that differ between two revisions, by kind and name.

    Raises
    ------
    NotFoundError
        If a revision does not exist.
    """
    found = []
    for kind, name in _touched(store, before, after):
        old, new = (change_to(store, kind, name, revision).body for revision in (before, after))
        if old != new:
            found.append(Difference.of(kind, name, old, new))
    return found


def restoring(store: PolicyStore, to: int, revision: int) -> list[Change]:
    """Return the changes that give the entries of `revision` what they said at revision `to`."""
    changes = []
    for kind, name in _touched(store, to, revision):
        old, new = (change_to(store, kind, name, at) for at in (to, revision))
        if old != new:
            changes.append(old)
    return changes


def _touched(store: PolicyStore, before: int, after: int) -> list[tuple[Kind, str]]:
    newest = store.revision()
    for revision in (before, after):
        if not 0 <= revision <= newest:
            raise NotFoundError("revision", str(revision), f"; the newest is {newest}")
    changed = store.changed(after=min(before, after), until=max(before, after))
    keys = {(entry.kind, entry.name) for entry in changed}
    return sorted(keys, key=lambda key: (KINDS.index(key[0]), key[1]))
