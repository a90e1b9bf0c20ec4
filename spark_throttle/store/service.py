"""Policies are read and changed by one service, for every caller: the command line, the admin API, a notebook.

Every change is checked against the content of the store (`checked_changes`), then committed on exactly that revision;
if another change came in between, it is checked and tried again, so no change is lost and no check is stale. A change
that would say what the store already says commits nothing.

`expected` makes a change conditional (If-Match of an ETag): it is the version of the entry that the caller has read
(`EntryVersion`) or only its revision, or 0 for an entry that must not exist. Changes of other entries do not matter
to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from spark_throttle.errors import DuplicateError, NotFoundError
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.remedies import Remedy
from spark_throttle.store.checks.checked_changes import MOST_NOTES, CheckedChanges
from spark_throttle.store.checks.protection import PlannedChange
from spark_throttle.store.checks.tenant_changes import MOST_TENANT_ENTRIES
from spark_throttle.store.committer import ChangeRecorder, CommitResult, Committer
from spark_throttle.store.effects import notes_on, notes_on_document
from spark_throttle.store.entries import (
    EMPTY,
    Difference,
    StoredEntry,
    bodies_of,
    changes_between,
    document_of,
    entries_of,
    entries_of_kind,
    parse_policy,
    resource_group_of,
)
from spark_throttle.store.entry_conditions import (
    Expected,
    change_of,
    check_expected,
    check_unused,
    expected_values,
    found_entry,
    hint_of,
)
from spark_throttle.store.given_exceptions import GivenException, given_exceptions
from spark_throttle.store.store import (
    SINGLE_KINDS,
    Author,
    Change,
    Key,
    Kind,
    PolicyStore,
    Revision,
    check_newest,
    differing,
)


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
    is_dry_run
        As `dry_run` returns it.

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
        is_dry_run: bool = False,
    ) -> None:
        self.store = store
        self.clock_ms = clock_ms
        self._most_tenant_entries = most_tenant_entries
        committer = Committer(store, clock_ms, pause or threading.Event().wait, recorder, is_dry_run=is_dry_run)
        self._changes = CheckedChanges(
            store, committer, clock_ms=clock_ms, most_tenant_entries=most_tenant_entries, is_dry_run=is_dry_run
        )  # fmt: skip
        self.index = self._changes.index

    def dry_run(self) -> PolicyService:
        """Return a service that judges changes as this one does, and makes none; nothing is recorded.

        What a change costs is told in its result, and needs no word of its author.
        """
        service = PolicyService(
            self.store, clock_ms=self.clock_ms, most_tenant_entries=self._most_tenant_entries, is_dry_run=True
        )  # fmt: skip
        service.index = service._changes.index = self.index  # else each dry run would read all entries
        return service

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
        raise NotFoundError(kind, name, hint_of(self.store, kind, name, at, reader_tenant))

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[StoredEntry]:
        """Return at most `limit` entries after the name `after`, by name; if given, only those of `resource_group`."""
        page = self.store.page(kind, after=after, limit=limit, at=at, resource_group=resource_group)
        return [StoredEntry.of(entry) for entry in page]

    def exceptions(self, *, tenant: str | None = None) -> list[GivenException]:
        """Return the exceptions: those in force, the first to end in front; then those that have ended.

        Parameters
        ----------
        tenant
            The only tenant whose exceptions the caller may read; `None` for all.
        """
        mine = (each for each in self.index.excepted() if tenant is None or _is_of(tenant, each.key))
        return given_exceptions(mine, self.clock_ms())

    def excepted(self, kind: Kind, *, at: int | None = None, resource_group: str | None = None) -> list[StoredEntry]:
        """Return the entries of a kind whose exceptions are in force, the first to end in front."""
        revision = self.store.revision() if at is None else at
        entries = {each.key: each for each in entries_of_kind(self.store, kind, at=revision)}
        found = given_exceptions(entries.values(), self.clock_ms())
        in_force = [StoredEntry.of(entries[each.kind, each.name]) for each in found if each.state == "in_force"]
        return [each for each in in_force if resource_group in (None, each.resource_group)]

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
            return change_of(self.store, kind, name, values, revision, author)

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
            found_entry(self.store, kind, name, revision, expected, author)
            return change_of(self.store, kind, name, values, revision, author)

        return self._noted(kind, name, values, self._changes.commit(plan, author))

    def put(
        self, kind: Kind, name: str, values: Mapping[str, object], author: Author, *, expected: Expected = None
    ) -> CommitResult:
        """Write an entry, whether it exists or not; `expected=0` requires that it does not."""

        def plan(revision: int) -> list[Change]:
            entry = self.store.get(kind, name, at=revision)
            check_expected(kind, name, expected, entry)
            return change_of(self.store, kind, name, values, revision, author)

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
            values = edited(expected_values(self.store, kind, name, revision, expected) or {})
            return change_of(self.store, kind, name, values, revision, author)

        made = self._changes.commit(plan, author)  # which sets the values
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
            found_entry(self.store, kind, name, revision, expected, author)
            if kind == "resource_group":
                check_unused(self.store, name, revision)
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
                found_entry(self.store, "resource_group", resource_group, revision, None, author)
            found = expected_values(self.store, kind, name, revision, expected)
            values = found or {}
            attached = values.get("resource_group")
            if attached not in (None, resource_group) and not is_moved:
                remedy = Remedy.MOVE_NAMESPACE if kind == "namespace" else Remedy.MOVE_OTHER
                raise DuplicateError(kind, name, f"is attached to {attached!r}", remedy)
            if found is None and kind == "namespace":
                notes.append(f"{name} has an entry of its own now: the defaults and wider globs no longer apply to it")
            return change_of(self.store, kind, name, {**values, "resource_group": resource_group}, revision, author)

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
            values = expected_values(self.store, kind, name, revision, expected) or {}
            attached = values.pop("resource_group", None)
            if attached is None:
                raise _unattached(kind, name)
            if resource_group not in (None, attached):
                raise NotFoundError("resource_group", resource_group, f" that {kind} {name} is attached to")
            if not values:
                return [Change(kind, name, None)]
            return change_of(self.store, kind, name, values, revision, author)

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
            check_newest(self.store, expected, revision)
            return changes_between(bodies_of(self.store.scan(at=revision)), wanted)

        # What the document says is the administrators' word, even if a tenant's administrator wrote it first.
        made = self._changes.commit(plan, author, is_whole=True, is_document=True)
        return replace(made, notes=(*made.notes, *islice(notes_on_document(document), MOST_NOTES)))

    def planned(self, document: PolicyDocument) -> PlannedChange:
        """Return what `apply` would change, and what that costs.

        Raises
        ------
        PolicyError
            If it has an exception whose end is past, which `apply` refuses too.
        """
        revision = self.store.revision()
        before = bodies_of(self.store.scan(at=revision))
        changes = changes_between(before, entries_of(document))
        self._changes.of_exceptions(changes, revision, self.clock_ms())
        return self._planned([(Change(*each.key, before.get(each.key)), each) for each in changes], revision)

    # ----------------------------------------------------------------------------------------- revisions

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        return self.store.history(before=before, limit=limit)

    def diff(self, before: int, after: int, *, offset: int = 0, limit: int | None = None) -> list[Difference]:
        """Return the entries that differ between two revisions, by kind and name.

        Parameters
        ----------
        offset, limit
            How many of them are left out, and how many are returned at most.

        Raises
        ------
        NotFoundError
            If a revision does not exist.
        """
        pairs = (pair for pair in differing(self.store, before, after) if pair[0].body != pair[1].body)
        return _differences(islice(pairs, offset, None if limit is None else offset + limit))

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
            check_newest(self.store, expected, revision)
            return [after for _, after in differing(self.store, revision, to)]

        return self._changes.commit(plan, author, is_whole=True)

    def planned_rollback(self, to: int, *, limit: int | None = None) -> PlannedChange:
        """Return what `rollback` would change, at most `limit` differences of it, and what it costs."""
        revision = self.store.revision()
        return self._planned(differing(self.store, revision, to), revision, limit)

    # ------------------------------------------------------------------------------------------- inside

    def _planned(
        self, pairs: Sequence[tuple[Change, Change]], revision: int, limit: int | None = None
    ) -> PlannedChange:
        self.store.check_whole()  # what would be refused is not planned
        losses = self._changes.losses([after for _, after in pairs], revision, is_whole=True)
        return PlannedChange(revision, len(pairs), tuple(_differences(pairs[:limit])), tuple(losses))

    @staticmethod
    def _noted(kind: Kind, name: str, values: Mapping[str, object], made: CommitResult) -> CommitResult:
        return replace(made, notes=(*made.notes, *notes_on(kind, name, parse_policy(kind, name, values))))


def _is_of(tenant: str, key: Key) -> bool:
    kind, name = key
    return kind in ("tenant", "namespace") and name.partition("/")[0] == tenant


def _differences(pairs: Iterable[tuple[Change, Change]]) -> list[Difference]:
    return [Difference.of(*before.key, before.body, after.body) for before, after in pairs]


def _unattached(kind: Kind, name: str) -> NotFoundError:
    return NotFoundError("resource_group", "", f" that {kind} {name} is attached to by itself".replace("  ", " "))
