"""A change of an entry is made only where the entry is as its author has read it, and what it names is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spark_throttle.errors import ConflictError, InUseError, NotFoundError, PolicyError, did_you_mean
from spark_throttle.store.entries import (
    ABSENT_VERSION,
    EMPTY,
    EntryVersion,
    StoredEntry,
    body_of,
    parse_policy,
    path_of,
)
from spark_throttle.store.store import MEMBER_KINDS, SINGLE_KINDS, Author, Change, Entry, Kind, PolicyStore


@dataclass(frozen=True, slots=True)
class AnyVersion:
    """The condition that an entry is there, whatever it says; `defaults`, `job` and `queue` always are."""


@dataclass(frozen=True, slots=True)
class NoVersion:
    """A condition that no entry fits.

    Parameters
    ----------
    mismatch
        Why; it follows the name of the entry.
    """

    mismatch: str


Expected: TypeAlias = "int | EntryVersion | tuple[EntryVersion, ...] | AnyVersion | NoVersion | None"
"""The condition of a change of an entry: a version that the caller has read, or one of several; a revision, which is
all that a person gives, and 0 for an entry that must not exist; that it is there; `None` for no condition."""


def check_expected(kind: Kind, name: str, expected: Expected, entry: Entry | None) -> None:
    """Refuse a change of an entry that is not as its author expects it.

    It is judged where the change is planned, on the revision that the change is committed on.

    Raises
    ------
    ConflictError
        If it is at another revision, has other contents at the same one, or is not there.
    """
    if expected is None:
        return
    found = entry.revision if entry is not None else 0
    what = f"{kind.replace('_', ' ')} {name}".strip()
    if isinstance(expected, AnyVersion):
        if entry is None and kind not in SINGLE_KINDS:
            raise ConflictError(what, None, 0, is_entry=True)
        return
    if isinstance(expected, NoVersion):
        raise ConflictError(what, None, found, is_entry=True, mismatch=expected.mismatch)
    if isinstance(expected, tuple):
        if _version_of(entry) not in expected:
            mismatch = f" is at none of the {len(expected)} versions that the change was made for"
            raise ConflictError(what, None, found, is_entry=True, mismatch=mismatch)
        return
    revision = expected.revision if isinstance(expected, EntryVersion) else expected
    if revision != found:
        raise ConflictError(what, revision, found, is_entry=True)
    if isinstance(expected, EntryVersion) and expected != _version_of(entry):
        mismatch = (
            f" has other contents at revision {found} than the change was made for; the store may have been restored "
            f"from a backup since, which gives revisions twice"
        )
        raise ConflictError(what, revision, found, is_entry=True, mismatch=mismatch)


def _version_of(entry: Entry | None) -> EntryVersion:
    if entry is None:
        return ABSENT_VERSION
    return EntryVersion.of(entry.revision, entry.body, given=entry.given)


_USERS_NAMED: Final = 10


def change_of(
    store: PolicyStore, kind: Kind, name: str, values: Mapping[str, object], revision: int, author: Author
) -> list[Change]:
    """Return the change that gives an entry these values; its resource group must exist.

    Raises
    ------
    PolicyError
        If the entry cannot be applied.
    """
    policy = parse_policy(kind, name, values)
    group = getattr(policy, "resource_group", None)
    # A tenant's administrator may name only the group that is there already, and learns nothing of others.
    if author.tenant is None and group is not None and store.get("resource_group", group, at=revision) is None:
        where = path_of(kind, name)
        hint = hint_of(store, "resource_group", group, revision, author.tenant) or "; create it first"
        raise PolicyError(f"{where}.resource_group", f"{group!r} is not a resource group{hint}")
    body = body_of(policy)
    return [Change(kind, name, None if kind in SINGLE_KINDS and body == body_of(EMPTY[kind]) else body)]


def found_entry(store: PolicyStore, kind: Kind, name: str, revision: int, expected: Expected, author: Author) -> Entry:
    """Return an entry that must exist, at the version that its author expects.

    Raises
    ------
    NotFoundError
        If it does not exist.
    ConflictError
        If it is at another version.
    """
    entry = store.get(kind, name, at=revision)
    if entry is None:
        if kind in SINGLE_KINDS:
            check_expected(kind, name, expected, None)
            return Entry(kind, "", "{}", 0)
        raise NotFoundError(kind, name, hint_of(store, kind, name, revision, author.tenant))
    check_expected(kind, name, expected, entry)
    return entry


def expected_values(
    store: PolicyStore, kind: Kind, name: str, revision: int, expected: Expected
) -> dict[str, Any] | None:
    """Return what an entry says, at the version that its author expects; `None` if it does not exist."""
    entry = store.get(kind, name, at=revision)
    check_expected(kind, name, expected, entry)
    return None if entry is None else StoredEntry.of(entry).values


def check_unused(store: PolicyStore, group: str, revision: int) -> None:
    """Refuse to remove a resource group that somebody uses.

    Raises
    ------
    InUseError
        If a tenant, a namespace or the defaults are attached to it.
    """
    users: list[str] = []
    for kind in MEMBER_KINDS:
        room = _USERS_NAMED + 1 - len(users)
        page = store.page(kind, limit=room, at=revision, resource_group=group)
        users += [f"{kind} {entry.name}".strip() for entry in page]
    if users:
        raise InUseError(group, users[:_USERS_NAMED], has_more=len(users) > _USERS_NAMED)


def hint_of(store: PolicyStore, kind: Kind, name: str, at: int | None, tenant: str | None) -> str:
    """Return a hint with the nearest of the first thousand names that are a tenant's, or of all if it is `None`."""
    if tenant is not None and kind not in ("tenant", "namespace"):
        return ""
    after = "" if tenant is None or kind == "tenant" else f"{tenant}/"
    names = (entry.name for entry in store.page(kind, after=after, limit=1000, at=at))
    return did_you_mean(name[:64], (name for name in names if tenant in (None, name.partition("/")[0])))
