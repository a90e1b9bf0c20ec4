"""Every change of a store passes the same checks, on exactly the revision that it is committed on.

A change by the administrator of a tenant (`Author.tenant`) is judged by its effect on every name of the tenant
(`tenant_changes`). A change by an administrator undoes the entries of tenants that it makes too loose.

A change that costs protection (`protection`) is refused until its author has confirmed it (`Author.is_confirmed`): one
that leaves no limit at all, sets a quota to 0, lifts a limit of a scope in use, or takes names from a quota of 0; and
one that says the whole policy, and raises a quota of 0 or lifts a lock.

A change after which somebody is guaranteed what cannot be kept is refused (`kept_guarantees`).

An exception whose end is past is refused, unless the entry has it already: a document that still has it can be applied
again. A rollback restores entries as they were, whatever of them has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final

from spark_throttle.errors import PolicyError, UnconfirmedError
from spark_throttle.policy.values import time_text
from spark_throttle.store.checks.entry_index import EntryIndex
from spark_throttle.store.checks.kept_guarantees import check_guarantees
from spark_throttle.store.checks.limit_changes import Loss
from spark_throttle.store.checks.protection import losses_of
from spark_throttle.store.checks.tenant_changes import TenantChanges, touched_by
from spark_throttle.store.committer import CommitResult, Committer
from spark_throttle.store.entries import exception_of, path_of
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Author, Change, Entry, PolicyStore

MOST_LOOKED_UP: Final = 64
"""Number of changes up to which the entries that they are judged by are looked up; for more, all are read once."""

MOST_NOTES: Final = 20
"""How many notes of a kind the result of a change has."""


class CheckedChanges:
    """Checks changes and commits them; safe for use by several threads.

    Parameters
    ----------
    clock_ms
        The wall clock, by which exceptions end.
    is_dry_run
        Whether what changes cost is told and not refused, because they are not made.
    """

    def __init__(
        self,
        store: PolicyStore,
        committer: Committer,
        *,
        clock_ms: Callable[[], int],
        most_tenant_entries: int,
        is_dry_run: bool = False,
    ) -> None:
        self._clock_ms = clock_ms
        self._is_dry_run = is_dry_run
        self._store = store
        self.index = EntryIndex(store)
        self._committer = committer
        self._most_tenant_entries = most_tenant_entries

    def losses(self, changes: Sequence[Change], revision: int, *, is_whole: bool = False) -> list[Loss]:
        """Return what changes of a revision cost, the worst first; nothing is written."""
        store, index, at = self._read(changes, revision)
        return losses_of(store, index, changes, at, now_ms=self._clock_ms(), is_whole=is_whole)

    def commit(
        self,
        plan: Callable[[int], list[Change]],
        author: Author,
        *,
        is_whole: bool = False,
        is_document: bool = False,
    ) -> CommitResult:
        """Commit the changes that `plan` returns for a revision, if they pass.

        Parameters
        ----------
        is_whole
            Whether the plan says the whole policy: it is a document or a rollback.
        is_document
            Whether it is a document, so that tenants' entries which it overtakes become administrators'.

        Raises
        ------
        NotPermittedError
            If the author is the administrator of a tenant, and a change loosens something or is not the tenant's.
        UnconfirmedError
            If the changes cost protection, and the author has not confirmed them.
        """
        notes: list[str] = []
        losses: list[Loss] = []
        planned: list[Change] = []

        def checked(revision: int) -> list[Change]:
            now_ms = self._clock_ms()
            planned[:] = plan(revision)
            is_rollback = is_whole and not is_document
            notes[:] = self.of_exceptions(planned, revision, now_ms, is_rollback=is_rollback)
            # Read only if something is judged: a confirmed change of namespaces overtakes no entry of a tenant.
            read = cache(partial(self._read, planned, revision))
            changes = [*planned]
            if author.tenant is not None:
                changes = self._of_tenants(*read()[:2], now_ms).permitted(planned, author.tenant, read()[2])
            elif touched_by(planned) is not None:
                overtaken = self._of_tenants(*read()[:2], now_ms).overtaken(planned, read()[2])
                changes += _undoing(overtaken, notes, is_document=is_document)
            check_guarantees(self._store, self.index, changes, revision)
            is_judged = self._is_dry_run or not author.is_confirmed
            store, index, at = read() if is_judged else (self._store, self.index, 0)
            losses[:] = losses_of(store, index, changes, at, now_ms=now_ms, is_whole=is_whole)
            if losses and not self._is_dry_run:
                raise UnconfirmedError(str(loss) for loss in losses)
            return changes

        made = self._committer.commit(checked, author, planned)
        left = len(notes) - MOST_NOTES
        more = (f"and {left} more entries of tenants",) if left > 0 else ()
        return replace(made, notes=(*notes[:MOST_NOTES], *more), losses=tuple(losses))

    def of_exceptions(
        self, changes: Sequence[Change], revision: int, now_ms: int, *, is_rollback: bool = False
    ) -> list[str]:
        """Refuse new exceptions that have ended, and return what authors should know of those in force.

        A rollback restores whatever there was. It tells which exceptions it brings back into force; any other change
        tells which it leaves in force.
        """
        given = {
            change.key: exception for change in changes if (exception := exception_of(change.body)) is not None
        }  # fmt: skip
        there = self._store.find(given, at=revision) if given else {}
        notes = list[str]()
        for key, exception in given.items():
            where, until = path_of(*key), exception.until
            is_new = key not in there or exception_of(there[key].body) != exception
            if exception.until_ms > now_ms:
                is_told = is_new == is_rollback and len(notes) < MOST_NOTES
                what = "is in force again" if is_rollback else "stays until then"
                said = f"{where} has an exception until {until} ({exception.reason}): what it sets {what}"
                notes += [said] if is_told else []
            elif is_new and not is_rollback:
                problem = f"{until} is past: it is {time_text(now_ms)}"
                raise PolicyError(
                    f"{where}.exception.until", f"{problem}; give a later end, or leave the exception out"
                )
        return notes

    def _of_tenants(self, store: PolicyStore, index: EntryIndex, now_ms: int) -> TenantChanges:
        return TenantChanges(store, index, now_ms=now_ms, most_entries=self._most_tenant_entries)

    def _read(self, changes: Sequence[Change], revision: int) -> tuple[PolicyStore, EntryIndex, int]:
        """Return what changes of a revision are judged by: the store, or a copy in memory, and that revision there."""
        if len(changes) <= MOST_LOOKED_UP or not revision:
            return self._store, self.index, revision
        store = MemoryStore.copy_of(self._store, revision)
        return store, EntryIndex(store), store.revision()


def _undoing(overtaken: Iterable[Entry], notes: list[str], *, is_document: bool) -> Iterator[Change]:
    """Yield the changes of tenants' entries that are looser than administrators allow, and add a note on each."""
    for entry in overtaken:
        body = entry.body if is_document else entry.given or None
        outcome = "is undone" if body is not None else "was removed"
        if is_document:
            outcome = "is the administrators' from here on"
        notes.append(f"namespaces.{entry.name}, which the tenant wrote, is looser than this allows: it {outcome}")
        yield Change(entry.kind, entry.name, body)
