"""Entries and planned changes, as both the API and the command line answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from spark_throttle.core.names.globs import holders, is_glob, specificity
from spark_throttle.store.checks.protection import PlannedChange
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entries import Difference, StoredEntry, entries_of_kind, exception_of, key_of
from spark_throttle.store.given_exceptions import ExceptionChange, State, exception_changes, state_of
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Kind, PolicyStore, Revision


@dataclass(frozen=True, slots=True)
class Policy:
    """One entry of the store."""

    kind: Kind
    name: str
    revision: int
    """Revision of the commit that wrote the entry; its ETag names it too."""

    etag: str
    """The entry's ETag, which a change of it may give as If-Match."""

    author: Literal["administrator", "tenant"]
    """Whether an administrator wrote the entry, or the tenant's own."""

    policy: dict[str, Any]
    """The policy without default values; rates are per second, durations in seconds, sizes in bytes."""

    exception: State | None
    """Whether the exception of the entry is in force, or has ended; null if it has none."""

    @classmethod
    def of(cls, stored: StoredEntry, now_ms: int) -> Policy:
        """Show an entry as it is at a moment."""
        author: Literal["administrator", "tenant"] = "administrator" if stored.given is None else "tenant"
        exception = exception_of(stored.body)
        state = None if exception is None else state_of(exception, now_ms)
        return cls(stored.kind, stored.name, stored.revision, stored.version.etag, author, stored.values, state)


@dataclass(frozen=True, slots=True)
class ShownRevision(Revision):
    """One commit, and the exceptions that it gave or took."""

    exceptions: tuple[ExceptionChange, ...] = ()


def shown_history(service: PolicyService, *, before: int | None, limit: int) -> list[ShownRevision]:
    """Return the newest commits, newest first."""
    revisions = service.history(before=before, limit=limit)
    changes = exception_changes(service.store, revisions)
    facts = [{each.name: getattr(revision, each.name) for each in fields(Revision)} for revision in revisions]
    return [ShownRevision(**each, exceptions=tuple(changes.get(each["revision"], ()))) for each in facts]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change of many entries would do, if it were made now."""

    revision: int
    """The store's revision that it would change; `expected` makes sure of it."""

    changes: int
    """How many entries would change."""

    differences: tuple[Difference, ...]
    """The first of them."""

    losses: tuple[str, ...]
    """The worst of what it would cost; if there is any, the change must be confirmed (`yes`)."""

    all_losses: int
    """How many losses there are."""

    heirs: dict[str, list[str]]
    """Which rules take over the names of each namespace and glob among `differences` whose entry would be removed: the
    most specific globs, or the defaults."""

    @classmethod
    def of(
        cls, planned: PlannedChange, names_after: Callable[[], Iterable[str]], *, most_losses: int | None = None
    ) -> Plan:
        """Show a planned change.

        Parameters
        ----------
        names_after
            Returns the names of the namespaces' entries after the change; it is asked only if an entry would be
            removed.
        """
        losses = tuple(str(loss) for loss in planned.losses[:most_losses])
        removed = [each.name for each in planned.differences if each.kind == "namespace" and each.after is None]
        globs = sorted(filter(is_glob, names_after()), key=specificity) if removed else []
        heirs = {
            name: ["defaults" if glob is None else f"namespaces.{glob}" for glob in holders(name, globs)]
            for name in removed
        }
        return cls(planned.revision, planned.changes, planned.differences, losses, len(planned.losses), heirs)


def namespace_names(store: PolicyStore, revision: int) -> Iterator[str]:
    """Yield the names of the namespaces' entries at a revision."""
    return (entry.name for entry in entries_of_kind(store, "namespace", at=revision))


def planned_of(made: CommitResult) -> PlannedChange:
    """Return what a change that was tried would do (`PolicyService.dry_run`)."""
    changed = (each for each in made.made if each.before != each.after)
    differences = tuple(Difference.of(*key_of(each.path), each.before, each.after) for each in changed)
    return PlannedChange(made.revision, len(made.made) + made.left_out, differences, made.losses)


def names_after(store: PolicyStore, made: CommitResult) -> Iterator[str]:
    """Yield the names of the namespaces' entries after a change that was tried."""
    changed = {key_of(each.path): each.after for each in made.made}
    yield from (name for name in namespace_names(store, made.revision) if ("namespace", name) not in changed)
    yield from (name for (kind, name), after in changed.items() if kind == "namespace" and after is not None)
