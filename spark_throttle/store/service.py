"""Everything that can be done with policies, for every caller: the command line, the admin API, a notebook.

Every change is checked against the content of the store, then committed on exactly that revision; if another change
came in between, it is checked and tried again, so no change is lost and no check is stale. A change that would say what
the store already says commits nothing.

Whichever use case makes a change, it passes the checks of `checked_changes`.

`expected` makes a change conditional (If-Match of an ETag): it is the version of the entry that the caller has read
(`entry_version`) or only its revision, or 0 for an entry that must not exist. Changes of other entries do not matter to
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from spark_throttle.errors import (
    ConflictError,
    DuplicateError,
    InUseError,
    NotFoundError,
    PolicyError,
    did_you_mean,
)
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.remedies import Remedy
from spark_throttle.store.checked_changes import MOST_NOTES, CheckedChanges
from spark_throttle.store.committer import ChangeRecorder, CommitResult, Committer, change_to
from spark_throttle.store.delegation.tenant_changes import MOST_TENANT_ENTRIES
from spark_throttle.store.effects import notes_on, notes_on_document
from spark_throttle.store.entries import (
    EMPTY,
    Difference,
    StoredEntry,
    body_of,
    changes_between,
    document_of,
    entries_of,
    parse_policy,
    path_of,
    resource_group_of,
)
from spark_throttle.store.entry_version import Expected, check_expected
from spark_throttle.store.protection.planned_change import PlannedChange
from spark_throttle.store.store import (
    KINDS,
    MEMBER_KINDS,
    SINGLE_KINDS,
    Author,
    Change,
    Entry,
    Kind,
    PolicyStore,
    Revision,
)

_USERS_NAMED: Final = 10


class PolicyService:
    """The use cases over one store; safe for use by several threads.

    Parameters
    ----------
    store
        Where policies live.
    clock_ms
        The wall clock, for the time of a commit.
    pause
        Waits for a number of seconds between two attempts.
    recorder
        Is told of every change and every refused one.
    most_tenant_entries
        For how many single namespaces the administrator of one tenant may make an entry.

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
        recorder: ChangeRecorder | None = None,
        most_tenant_entries: int = MOST_TENANT_ENTRIES,
    ) -> None:
        self.store = store
        committer = Committer(store, clock_ms, pause or threading.Event().wait, recorder)
        self._changes = CheckedChanges(store, committer, most_tenant_entries=most_tenant_entries)

    # ------------------------------------------------------------------------------------------ entries

    def get(
        self, kind: Kind, name: str = "", *, at: int | None = None, reader_tenant: str | None = None
    ) -> StoredEntry:
        """Return an entry; `defaults`, `job` and `queue` always have one.

        Parameters
        ----------
        reader_tenant
            The only tenant whose entries the caller may read, and a hint may name; `None` for all.

        Raises
        ------
        NotFoundError
            If there is no entry of that name.
        """
        entry = self.store.get(kind, name, at=at)
        if entry is not None:
            return StoredEntry.of(entry)
        if kind in SINGLE_KINDS:
            return StoredEntry(kind, "", EMPTY[kind], 0)
        raise NotFoundError(kind, name, self._hint(kind, name, at, reader_tenant))

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[StoredEntry]:
        """Return at most `limit` entries after the name `after`, by name; if given, only those of `resource_group`."""
        page = self.store.page(kind, after=after, limit=limit, at=at, resource_group=resource_group)
        return [StoredEntry.of(entry) for entry in page]

    def create(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: Expected = None
    ) -> CommitResult:
        """Write an entry that does not exist yet.

        Raises
        ------
        ConflictError
            If it is at another revision than `expected`; this is judged first.
        DuplicateError
            If it exists.
        PolicyError
            If it cannot be applied.
        """

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            if entry is not None:
                raise DuplicateError(kind, name, "is there already; update it instead")
            return self._writing(kind, name, values, revision, author)

        return self._noted(kind, name, values, self._changes.commit(plan, author))

    def update(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: Expected = None
    ) -> CommitResult:
        """Replace an entry that exists.

        Raises
        ------
        NotFoundError
            If it does not exist.
        ConflictError
            If it is at another revision than `expected`.
        """

        def plan(revision: int) -> list[Change]:
            self._found(kind, name, revision, expected, author)
            return self._writing(kind, name, values, revision, author)

        return self._noted(kind, name, values, self._changes.commit(plan, author))

    def put(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: Expected = None
    ) -> CommitResult:
        """Write an entry, whether it exists or not; `expected=0` requires that it does not."""

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            return self._writing(kind, name, values, revision, author)

        return self._noted(kind, name, values, self._changes.commit(plan, author))

    def edit(
        self,
        kind: Kind,
        name: str,
        edited: Callable[[Mapping[str, Any]], Mapping[str, object]],
        author: Author,
        *,
        expected: Expected = None,
    ) -> CommitResult:
        """Write an entry as `edited` returns it for what it says; for one that does not exist, it is given nothing.

        Parameters
        ----------
        edited
            Called for each attempt, with the values that the change is committed on.
        """
        values: Mapping[str, object] = {}

        def plan(revision: int) -> list[Change]:
            nonlocal values
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            values = edited({} if entry is None else StoredEntry.of(entry).values)
            return self._writing(kind, name, values, revision, author)

        made = self._changes.commit(plan, author)
        return self._noted(kind, name, values, made)

    def delete(self, kind: Kind, name: str, author: Author, *, expected: Expected = None) -> CommitResult:
        """Remove an entry; `defaults`, `job` and `queue` then have their default values.

        Raises
        ------
        NotFoundError
            If it does not exist.
        InUseError
            If it is a resource group with a tenant, a namespace or the defaults attached to it.
        """

        def plan(revision: int) -> list[Change]:
            self._found(kind, name, revision, expected, author)
            if kind == "resource_group":
                users = self._users(name, revision)
                if users:
                    raise InUseError(name, users[:_USERS_NAMED], has_more=len(users) > _USERS_NAMED)
            return [Change(kind, name, None)]

        return self._changes.commit(plan, author)

    # -------------------------------------------------------------------------------------- attachments

    def attach(
        self,
        kind: Kind,
        name: str,
        resource_group: str,
        author: Author,
        *,
        expected: Expected = None,
        is_moved: bool = False,
    ) -> CommitResult:
        """Attach a tenant, a namespace or the defaults to a resource group.

        A namespace without an entry gets one, so the defaults no longer apply to it; a note says so.

        Parameters
        ----------
        is_moved
            Whether it may be taken from another group.

        Raises
        ------
        NotFoundError
            If the group does not exist.
        DuplicateError
            If it is attached to another group.
        """
        notes: list[str] = []

        def plan(revision: int) -> list[Change]:
            notes.clear()
            if author.tenant is None:
                self._found("resource_group", resource_group, revision, None, author)
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            values = {} if entry is None else StoredEntry.of(entry).values
            attached = values.get("resource_group")
            if attached not in (None, resource_group) and not is_moved:
                remedy = Remedy.MOVE_NAMESPACE if kind == "namespace" else Remedy.MOVE_OTHER
                raise DuplicateError(kind, name, f"is attached to {attached!r}", remedy)
            if entry is None and kind == "namespace":
                notes.append(f"{name} has an entry of its own now: the defaults and wider globs no longer apply to it")
            return self._writing(kind, name, {**values, "resource_group": resource_group}, revision, author)

        made = self._changes.commit(plan, author)
        return replace(made, notes=(*made.notes, *notes))

    def detach(
        self, kind: Kind, name: str, author: Author, *, resource_group: str | None = None, expected: Expected = None
    ) -> CommitResult:
        """Detach a tenant, a namespace or the defaults; an entry without other settings is removed.

        Parameters
        ----------
        resource_group
            The only group that it is detached from; `None` for whichever it is.

        Raises
        ------
        NotFoundError
            If it is attached to no group, or to another.
        """

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            values = {} if entry is None else StoredEntry.of(entry).values
            attached = values.pop("resource_group", None)
            if attached is None:
                raise _unattached(kind, name)
            if resource_group not in (None, attached):
                raise NotFoundError("resource_group", resource_group, f" that {kind} {name} is attached to")
            if not values:
                return [Change(kind, name, None)]
            return self._writing(kind, name, values, revision, author)

        return self._changes.commit(plan, author)

    def attached(self, kind: Kind, name: str) -> StoredEntry:
        """Return the entry of a tenant or namespace that is itself attached to a group.

        Raises
        ------
        NotFoundError
            If the entry does not exist, or names no group.
        """
        entry = self.store.get(kind, name)
        if entry is None or resource_group_of(entry.body) is None:
            raise _unattached(kind, name)
        return StoredEntry.of(entry)

    # ---------------------------------------------------------------------------------- whole documents

    def document(self, *, at: int | None = None) -> PolicyDocument:
        """Return all policies as one document."""
        return document_of(self.store.scan(at=at), what=self.store.location)

    def apply(self, document: PolicyDocument, author: Author, *, expected: int | None = None) -> CommitResult:
        """Replace all policies by a document, in one commit.

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

        # What the document says is the administrators' word, even if a tenant's administrator wrote it first.
        made = self._changes.commit(plan, author, is_whole=True, is_document=True)
        return replace(made, notes=(*made.notes, *islice(notes_on_document(document), MOST_NOTES)))

    def planned(self, document: PolicyDocument) -> PlannedChange:
        """Return what `apply` would change, and what that costs."""
        revision = self.store.revision()
        before = _bodies(self.store, revision)
        return self._planned(changes_between(before, entries_of(document)), before, revision)

    # ----------------------------------------------------------------------------------------- revisions

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        return self.store.history(before=before, limit=limit)

    def diff(self, before: int, after: int) -> list[Difference]:
        """Return the entries that differ between two revisions, by kind and name.

        Raises
        ------
        NotFoundError
            If a revision does not exist.
        """
        found = []
        for kind, name in self._touched(before, after):
            old, new = (change_to(self.store, kind, name, revision).body for revision in (before, after))
            if old != new:
                found.append(Difference.of(kind, name, old, new))
        return found

    def rollback(self, to: int, author: Author, *, expected: int | None = None) -> CommitResult:
        """Restore the policies of a revision, in one commit; the changes since then stay in the history.

        Parameters
        ----------
        expected
            The revision of the whole store that the author has looked at.

        Raises
        ------
        ConflictError
            If the store is at another revision than `expected`.
        """

        def plan(revision: int) -> list[Change]:
            if expected is not None and expected != revision:
                raise ConflictError(f"the policy store {self.store.location}", expected, revision)
            return self._restoring(to, revision)

        return self._changes.commit(plan, author, is_whole=True)

    def planned_rollback(self, to: int) -> PlannedChange:
        """Return what `rollback` would change, and what that costs."""
        revision = self.store.revision()
        changes = self._restoring(to, revision)
        before = {
            (each.kind, each.name): body
            for each in changes
            if (body := change_to(self.store, each.kind, each.name, revision).body) is not None
        }
        return self._planned(changes, before, revision)

    def _restoring(self, to: int, revision: int) -> list[Change]:
        changes = []
        for kind, name in self._touched(to, revision):
            old, new = (change_to(self.store, kind, name, at) for at in (to, revision))
            if old != new:
                changes.append(old)
        return changes

    # ------------------------------------------------------------------------------------------- inside

    def _planned(self, changes: list[Change], before: Mapping[tuple[Kind, str], str], revision: int) -> PlannedChange:
        self.store.check_whole()  # what would be refused is not planned
        return PlannedChange.of(changes, before, revision, self._changes.losses(changes, revision, is_whole=True))

    @staticmethod
    def _noted(kind: Kind, name: str, values: Mapping[str, object], made: CommitResult) -> CommitResult:
        return replace(made, notes=(*made.notes, *notes_on(kind, name, parse_policy(kind, name, values))))

    def _writing(
        self, kind: Kind, name: str, values: Mapping[str, object], revision: int, author: Author
    ) -> list[Change]:
        policy = parse_policy(kind, name, values)
        group = getattr(policy, "resource_group", None)
        # A tenant's administrator may name only the group that is there already, and learns nothing of others.
        if author.tenant is None and group is not None and self.store.get("resource_group", group, at=revision) is None:
            where = path_of(kind, name)
            hint = self._hint("resource_group", group, revision, author.tenant) or "; create it first"
            raise PolicyError(f"{where}.resource_group", f"{group!r} is not a resource group{hint}")
        body = body_of(policy)
        return [Change(kind, name, None if kind in SINGLE_KINDS and body == body_of(EMPTY[kind]) else body)]

    def _found(self, kind: Kind, name: str, revision: int, expected: Expected, author: Author) -> Entry:
        entry = self.store.get(kind, name, at=revision)
        if entry is None:
            if kind in SINGLE_KINDS:
                check_expected(kind, name, expected, None)
                return Entry(kind, "", "{}", 0)
            raise NotFoundError(kind, name, self._hint(kind, name, revision, author.tenant))
        check_expected(kind, name, expected, entry)
        return entry

    def _users(self, group: str, revision: int) -> list[str]:
        """Return the users of a group; at most one more than a message names."""
        users: list[str] = []
        for kind in MEMBER_KINDS:
            room = _USERS_NAMED + 1 - len(users)
            page = self.store.page(kind, limit=room, at=revision, resource_group=group)
            users += [f"{kind} {entry.name}".strip() for entry in page]
        return users

    def _hint(self, kind: Kind, name: str, at: int | None, tenant: str | None) -> str:
        """Return a hint with the nearest of the first thousand names that are a tenant's, or of all if it is `None`."""
        if tenant is not None and kind not in ("tenant", "namespace"):
            return ""
        after = "" if tenant is None or kind == "tenant" else f"{tenant}/"
        names = (entry.name for entry in self.store.page(kind, after=after, limit=1000, at=at))
        return did_you_mean(name[:64], (name for name in names if tenant in (None, name.partition("/")[0])))

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


def _bodies(store: PolicyStore, revision: int) -> dict[tuple[Kind, str], str]:
    return {(entry.kind, entry.name): entry.body or "{}" for entry in store.scan(at=revision)}
