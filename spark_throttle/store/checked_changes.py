"""What every change of a store must pass, on exactly the revision that it is committed on.

A change by the administrator of a tenant (`Author.tenant`) is judged by its effect on every name of the tenant
(`delegation.tenant_changes`). A change by an administrator undoes the entries of tenants that it makes too loose.

A change that costs protection (`protection`) is refused until its author has confirmed it (`Author.is_confirmed`): one
that leaves no limit at all, sets a quota to 0, lifts a limit of a scope in use, or takes names from a quota of 0; and
one that says the whole policy, and raises a quota of 0 or lifts a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from spark_throttle.errors import UnconfirmedError
from spark_throttle.store.committer import CommitResult, Committer
from spark_throttle.store.delegation.namespace_index import NamespaceIndex
from spark_throttle.store.delegation.tenant_changes import TenantChanges
from spark_throttle.store.protection.loss import Loss
from spark_throttle.store.protection.lost_protection import ProtectionCheck
from spark_throttle.store.store import Author, Change, PolicyStore

MOST_NOTES: Final = 20
"""How many notes of a kind the result of a change has."""


class CheckedChanges:
    """Checks changes and commits them; safe for use by several threads."""

    def __init__(self, store: PolicyStore, committer: Committer, *, most_tenant_entries: int) -> None:
        index = NamespaceIndex(store)
        self._committer = committer
        self._tenant_changes = TenantChanges(store, index, most_entries=most_tenant_entries)
        self._protection = ProtectionCheck(store, index)

    def losses(self, changes: Sequence[Change], revision: int, *, is_whole: bool = False) -> list[Loss]:
        """Return what changes of a revision cost, the worst first; nothing is written."""
        return self._protection.losses(changes, revision, is_whole=is_whole)

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
        planned: list[Change] = []

        def checked(revision: int) -> list[Change]:
            notes.clear()
            planned[:] = plan(revision)
            if author.tenant is None:
                changes = [*planned, *self._undoing(planned, revision, notes, is_document=is_document)]
            else:
                changes = self._tenant_changes.permitted(planned, author.tenant, revision)
            losses = [] if author.is_confirmed else self.losses(changes, revision, is_whole=is_whole)
            if losses:
                raise UnconfirmedError(str(loss) for loss in losses)
            return changes

        made = self._committer.commit(checked, author, planned)
        left = len(notes) - MOST_NOTES
        more = (f"and {left} more entries of tenants",) if left > 0 else ()
        return replace(made, notes=(*notes[:MOST_NOTES], *more))

    def _undoing(
        self, changes: Sequence[Change], revision: int, notes: list[str], *, is_document: bool
    ) -> list[Change]:
        """Return the changes of tenants' entries that are looser than these allow, and add a note on each."""
        undoing = []
        for entry in self._tenant_changes.overtaken(changes, revision):
            body = entry.body if is_document else entry.given or None
            undoing.append(Change(entry.kind, entry.name, body))
            outcome = "is undone" if body is not None else "was removed"
            if is_document:
                outcome = "is the administrators' from here on"
            notes.append(f"namespaces.{entry.name}, which the tenant wrote, is looser than this allows: it {outcome}")
        return undoing
