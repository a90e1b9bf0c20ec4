"""What lies between two revisions of a store: each entry that differs, as it was at the one and at the other."""

from __future__ import annotations

from typing import Final

from spark_throttle.store.store import KINDS, Change, Entry, Key, PolicyStore, check_revision

_ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}


def differing(store: PolicyStore, before: int, after: int) -> list[tuple[Change, Change]]:
    """Return the entries that differ between two revisions, by kind and name: what makes them each of the two.

    The log between the revisions says which entries may differ, and what they are at the later one; one read says what
    they were at the earlier.

    Raises
    ------
    NotFoundError
        If a revision does not exist.
    """
    newest = store.revision()
    earlier, later = sorted(check_revision(at, newest) for at in (before, after))
    new = {entry.key: entry for entry in store.changed(after=earlier, until=later)}
    old = store.find(new, at=earlier)
    keys = sorted(new, key=lambda key: (_ORDER[key[0]], key[1]))
    pairs = ((change_to(key, old.get(key)), change_to(key, new[key])) for key in keys)
    return [pair if before == earlier else pair[::-1] for pair in pairs if pair[0] != pair[1]]


def change_to(key: Key, entry: Entry | None) -> Change:
    """Return the change that makes an entry what it is; `None` is for one that does not exist."""
    return Change(*key, None) if entry is None else Change(*key, entry.body, entry.given)
