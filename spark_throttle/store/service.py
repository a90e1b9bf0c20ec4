"""What can be done with policies, whoever asks: the command line, the admin API, a notebook.

Every change is checked against what the store holds, then committed on exactly that revision; if another change came in
between, it is checked and tried anew, so no change is lost and no check is stale. A change that would say what is
there already commits nothing.

`expected` makes a change conditional (an ETag's If-Match): it is the revision of the entry that the caller has read,
0 for one that should not be there. Changes of other entries do not matter to it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from spark_throttle.errors import (
    ConfigurationError,
    ConflictError,
    DuplicateError,
    InUseError,
    NotFoundError,
    PolicyError,
    did_you_mean,
)
from spark_throttle.policy.model import PolicyDocument, QueuePolicy, ScopePolicy
from spark_throttle.store.effects import idle_parts, idle_parts_of
from spark_throttle.store.entries import (
    EMPTY,
    SECTIONS,
    body_of,
    changes_between,
    document_of,
    entries_of,
    parse_policy,
    policy_of,
    resource_group_of,
    values_of,
)
from spark_throttle.store.store import KINDS, SINGLE_KINDS, Author, Change, Entry, Kind, PolicyStore, Revision

MOST_ATTEMPTS: Final = 200
"""A change that loses so many times against others is given up; each time another author's change was made."""

_LONGEST_PAUSE_SECONDS: Final = 0.1
_USERS_NAMED: Final = 10
_NOTES: Final = 20
_MEMBER_KINDS: Final[tuple[Kind, ...]] = ("tenant", "namespace", "defaults")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as a caller sees it."""

    kind: Kind
    name: str
    policy: ScopePolicy | QueuePolicy
    revision: int
    """Of the commit that wrote it: its ETag. 0 for defaults, job or queue that nobody has written."""

    @property
    def values(self) -> dict[str, Any]:
        """What the policy says, as plain values, without what is default."""
        return values_of(self.policy)

    @property
    def resource_group(self) -> str | None:
        """The resource group that it is attached to."""
        return getattr(self.policy, "resource_group", None)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a change."""

    revision: int
    """Of the store after it; that of the entry if `is_changed`."""

    is_changed: bool
    """False where the store said the same before, and nothing was committed."""

    notes: tuple[str, ...] = ()
    """What the author may not expect: when the change acts otherwise than it reads."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry at two revisions, as plain values; `None` where it is not there."""

    kind: Kind
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def path(self) -> str:
        """Where the entry stands in a document."""
        return SECTIONS[self.kind] + (f".{self.name}" if self.name else "")


class PolicyService:
    """The use cases over one store; safe for use by several threads.

    Parameters
    ----------
    store
        Where policies live.
    clock_ms
        The wall clock, for the time of a commit.
    pause
        Waits so many seconds, between two attempts.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> service = PolicyService(MemoryStore(), clock_ms=lambda: 0)
    >>> ann = Author("ann", "first customers")
    >>> service.create("resource_group", "gold", {"publish": {"messages_per_second": 5000}}, ann).revision
    1
    >>> service.attach("tenant", "acme", "gold", ann).revision
    2
    >>> service.delete("resource_group", "gold", ann)
    Traceback (most recent call last):
    ...
    spark_throttle.errors.InUseError: the resource group 'gold' is in use by tenant acme: detach these first
    """

    def __init__(
        self,
        store: PolicyStore,
        *,
        clock_ms: Callable[[], int],
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.store = store
        self._clock_ms = clock_ms
        self._pause = pause or threading.Event().wait
        self._random = random.Random()  # noqa: S311 - spreads attempts; nothing is decided by it

    # ------------------------------------------------------------------------------------------ entries

    def get(self, kind: Kind, name: str = "", *, at: int | None = None) -> StoredEntry:
        """Return an entry; of `defaults`, `job` and `queue` there always is one.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        """
        entry = self.store.get(kind, name, at=at)
        if entry is not None:
            return _stored(entry)
        if kind in SINGLE_KINDS:
            return StoredEntry(kind, "", EMPTY[kind], 0)
        raise NotFoundError(kind, name, self._hint(kind, name, at))

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[StoredEntry]:
        """Return the entries whose names follow `after`, by name; of those attached to `resource_group`, if given."""
        page = self.store.page(kind, after=after, limit=limit, at=at, resource_group=resource_group)
        return [_stored(entry) for entry in page]

    def create(self, kind: Kind, name: str, values: Mapping[str, object], author: Author) -> CommitResult:
        """Write an entry that is not there yet.

        Raises
        ------
        DuplicateError
            If there is one.
        PolicyError
            If it cannot be applied.
        """

        def plan(revision: int) -> list[Change]:
            if self.store.get(kind, name, at=revision) is not None:
                raise DuplicateError(kind, name, "is there already; update it instead")
            return self._writing(kind, name, values, revision)

        return self._noted(kind, name, values, self._commit(plan, author))

    def update(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: int | None = None
    ) -> CommitResult:
        """Write an entry that is there, in place of what it said.

        Raises
        ------
        NotFoundError
            If there is none.
        ConflictError
            If it is at another revision than `expected`.
        """

        def plan(revision: int) -> list[Change]:
            self._found(kind, name, revision, expected)
            return self._writing(kind, name, values, revision)

        return self._noted(kind, name, values, self._commit(plan, author))

    def put(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: int | None = None
    ) -> CommitResult:
        """Write an entry, whether it is there or not; `expected` 0 asks that it is not."""

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            _check_expected(kind, name, expected, entry.revision if entry else 0)
            return self._writing(kind, name, values, revision)

        return self._noted(kind, name, values, self._commit(plan, author))

    def delete(self, kind: Kind, name: str, author: Author, *, expected: int | None = None) -> CommitResult:
        """Remove an entry; `defaults`, `job` and `queue` are then as they are where a policy does not name them.

        Raises
        ------
        NotFoundError
            If there is none.
        InUseError
            If it is a resource group that something is attached to.
        """

        def plan(revision: int) -> list[Change]:
            self._found(kind, name, revision, expected)
            if kind == "resource_group":
                users = self._users(name, revision)
                if users:
                    raise InUseError(name, users[:_USERS_NAMED], has_more=len(users) > _USERS_NAMED)
            return [Change(kind, name, None)]

        return self._commit(plan, author)

    # -------------------------------------------------------------------------------------- attachments

    def attach(
        self,
        kind: Kind,
        name: str,
        resource_group: str,
        author: Author,
        *,
        expected: int | None = None,
        is_moved: bool = False,
    ) -> CommitResult:
        """Attach a tenant, a namespace or the defaults to a resource group.

        A namespace that no policy names becomes one that a policy names: the defaults hold it no longer, which a note
        says.

        Parameters
        ----------
        is_moved
            Whether it may be taken from another group.

        Raises
        ------
        NotFoundError
            If there is no such group.
        DuplicateError
            If it is attached to another group.
        """
        notes: list[str] = []

        def plan(revision: int) -> list[Change]:
            notes.clear()
            self._found("resource_group", resource_group, revision, None)
            entry = self.store.get(kind, name, at=revision)
            _check_expected(kind, name, expected, entry.revision if entry else 0)
            values = {} if entry is None else _stored(entry).values
            attached = values.get("resource_group")
            if attached not in (None, resource_group) and not is_moved:
                raise DuplicateError(kind, name, f"is attached to {attached!r}; detach it first")
            if entry is None and kind == "namespace":
                notes.append(f"{name} has an entry of its own now: what defaults or a wider glob said does not hold it")
            return self._writing(kind, name, {**values, "resource_group": resource_group}, revision)

        made = self._commit(plan, author)
        return replace(made, notes=tuple(notes))

    def detach(self, kind: Kind, name: str, author: Author, *, expected: int | None = None) -> CommitResult:
        """Detach a tenant, a namespace or the defaults; an entry that said nothing else is removed.

        Raises
        ------
        NotFoundError
            If it is attached to none.
        """

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            _check_expected(kind, name, expected, entry.revision if entry else 0)
            values = {} if entry is None else _stored(entry).values
            if values.pop("resource_group", None) is None:
                raise _unattached(kind, name)
            if not values:
                return [Change(kind, name, None)]
            return self._writing(kind, name, values, revision)

        return self._commit(plan, author)

    def attached(self, kind: Kind, name: str) -> StoredEntry:
        """Return the entry of a tenant or namespace that is attached to a group by itself.

        Raises
        ------
        NotFoundError
            If there is no such entry, or it names no group.
        """
        entry = self.store.get(kind, name)
        if entry is None or resource_group_of(entry.body) is None:
            raise _unattached(kind, name)
        return _stored(entry)

    # ---------------------------------------------------------------------------------- whole documents

    def document(self, *, at: int | None = None) -> PolicyDocument:
        """Return all policies as one document."""
        return document_of(self.store.scan(at=at), what=self.store.location)

    def apply(self, document: PolicyDocument, author: Author, *, expected: int | None = None) -> CommitResult:
        """Make the store say what a document says, and nothing else, in one commit.

        Parameters
        ----------
        expected
            The revision of the whole store that the document was made from.
        """
        wanted = entries_of(document)

        def plan(revision: int) -> list[Change]:
            if expected is not None and expected != revision:
                raise ConflictError(f"the policy store {self.store.location}", expected, revision)
            return changes_between(_bodies(self.store, revision), wanted)

        made = self._commit(plan, author)
        return replace(made, notes=tuple(islice(idle_parts_of(document), _NOTES)))

    def planned(self, document: PolicyDocument) -> list[Difference]:
        """Return what `apply` would change."""
        revision = self.store.revision()
        before = _bodies(self.store, revision)
        return [
            _difference(change.kind, change.name, before.get((change.kind, change.name)), change.body)
            for change in changes_between(before, entries_of(document))
        ]

    # ----------------------------------------------------------------------------------------- revisions

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        return self.store.history(before=before, limit=limit)

    def diff(self, before: int, after: int) -> list[Difference]:
        """Return the entries that differ between two revisions, by kind and name.

        Raises
        ------
        NotFoundError
            If there is no such revision.
        """
        found = []
        for kind, name in self._touched(before, after):
            old, new = (self._body(kind, name, revision) for revision in (before, after))
            if old != new:
                found.append(_difference(kind, name, old, new))
        return found

    def rollback(self, to: int, author: Author) -> CommitResult:
        """Make the store say what it said at a revision, in one commit; what was said since stays in the history."""

        def plan(revision: int) -> list[Change]:
            changes = []
            for kind, name in self._touched(to, revision):
                old, new = (self._body(kind, name, at) for at in (to, revision))
                if old != new:
                    changes.append(Change(kind, name, old))
            return changes

        return self._commit(plan, author)

    # ------------------------------------------------------------------------------------------- inside

    @staticmethod
    def _noted(kind: Kind, name: str, values: Mapping[str, object], made: CommitResult) -> CommitResult:
        return replace(made, notes=tuple(idle_parts(kind, name, parse_policy(kind, name, values))))

    def _commit(self, plan: Callable[[int], list[Change]], author: Author) -> CommitResult:
        """Commit what `plan` makes of the newest revision, anew if another change comes first."""
        if not author.who:
            raise ConfigurationError("a change needs its author: say who makes it")
        attempt = 0
        while True:
            with self.store.turn():
                revision = self.store.revision()
                changes = plan(revision)
                if not self._is_change(changes, revision):
                    return CommitResult(revision, is_changed=False)
                at_ms = self._clock_ms()
                try:
                    made = self.store.commit(changes, expected_revision=revision, author=author, at_ms=at_ms)
                    return CommitResult(made, is_changed=True)
                except ConflictError:
                    attempt += 1
                    if attempt >= MOST_ATTEMPTS:
                        raise
            self._pause(self._random.random() * min(_LONGEST_PAUSE_SECONDS, 0.002 * 2 ** min(attempt, 8)))

    def _is_change(self, changes: list[Change], revision: int) -> bool:
        if len(changes) != 1:
            return bool(changes)
        return self._body(changes[0].kind, changes[0].name, revision) != changes[0].body

    def _body(self, kind: Kind, name: str, revision: int) -> str | None:
        entry = self.store.get(kind, name, at=revision)
        return None if entry is None else entry.body

    def _writing(self, kind: Kind, name: str, values: Mapping[str, object], revision: int) -> list[Change]:
        policy = parse_policy(kind, name, values)
        group = getattr(policy, "resource_group", None)
        if group is not None and self.store.get("resource_group", group, at=revision) is None:
            where = SECTIONS[kind] + (f".{name}" if name else "")
            hint = self._hint("resource_group", group, revision) or "; create it first"
            raise PolicyError(f"{where}.resource_group", f"{group!r} is not a resource group{hint}")
        body = body_of(policy)
        return [Change(kind, name, None if kind in SINGLE_KINDS and body == body_of(EMPTY[kind]) else body)]

    def _found(self, kind: Kind, name: str, revision: int, expected: int | None) -> Entry:
        entry = self.store.get(kind, name, at=revision)
        if entry is None:
            if kind in SINGLE_KINDS:
                _check_expected(kind, name, expected, 0)
                return Entry(kind, "", "{}", 0)
            raise NotFoundError(kind, name, self._hint(kind, name, revision))
        _check_expected(kind, name, expected, entry.revision)
        return entry

    def _users(self, group: str, revision: int) -> list[str]:
        """Return who is attached to a group; one more than a message names, if there are so many."""
        users: list[str] = []
        for kind in _MEMBER_KINDS:
            room = _USERS_NAMED + 1 - len(users)
            page = self.store.page(kind, limit=room, at=revision, resource_group=group)
            users += [f"{kind} {entry.name}".strip() for entry in page]
        return users

    def _hint(self, kind: Kind, name: str, at: int | None) -> str:
        """Return a hint that names the nearest name, of the first thousand."""
        return did_you_mean(name[:64], (entry.name for entry in self.store.page(kind, limit=1000, at=at)))

    def _touched(self, before: int, after: int) -> list[tuple[Kind, str]]:
        newest = self.store.revision()
        for revision in (before, after):
            if not 0 <= revision <= newest:
                raise NotFoundError("revision", str(revision), f"; the newest is {newest}")
        changed = self.store.changed(after=min(before, after), until=max(before, after))
        keys = {(entry.kind, entry.name) for entry in changed}
        return sorted(keys, key=lambda key: (KINDS.index(key[0]), key[1]))


def _unattached(kind: Kind, name: str) -> NotFoundError:
    return NotFoundError("resource_group", "", f" that {kind} {name} is attached to by itself".replace("  ", " "))


def _stored(entry: Entry) -> StoredEntry:
    return StoredEntry(entry.kind, entry.name, policy_of(entry), entry.revision)


def _bodies(store: PolicyStore, revision: int) -> dict[tuple[Kind, str], str]:
    return {(entry.kind, entry.name): entry.body or "{}" for entry in store.scan(at=revision)}


def _difference(kind: Kind, name: str, before: str | None, after: str | None) -> Difference:
    values = [None if body is None else _stored(Entry(kind, name, body, 0)).values for body in (before, after)]
    return Difference(kind, name, *values)


def _check_expected(kind: Kind, name: str, expected: int | None, found: int) -> None:
    if expected is not None and expected != found:
        raise ConflictError(f"{kind.replace('_', ' ')} {name}".strip(), expected, found)
