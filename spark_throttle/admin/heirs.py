"""Which rules take over the names of entries that a change removes: the most specific globs, or the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from spark_throttle.core.names.globs import holders, is_glob, specificity
from spark_throttle.store.entries import entries_of_kind

if TYPE_CHECKING:
    from spark_throttle.store.checks.protection import PlannedChange
    from spark_throttle.store.store import PolicyStore


def heirs_of(planned: PlannedChange, names_after: Callable[[], Iterable[str]]) -> dict[str, list[str]]:
    """Return the rules that take over the names of each namespace and glob whose entry a change would remove.

    Parameters
    ----------
    names_after
        Returns the names of the namespaces' entries after the change; it is asked only if an entry would be removed.
    """
    removed = [each.name for each in planned.differences if each.kind == "namespace" and each.after is None]
    if not removed:
        return {}
    globs = sorted(filter(is_glob, names_after()), key=specificity)
    return {
        name: ["defaults" if glob is None else f"namespaces.{glob}" for glob in holders(name, globs)]
        for name in removed
    }


def namespace_names(store: PolicyStore, revision: int) -> Iterator[str]:
    """Yield the names of the namespaces' entries at a revision."""
    return (entry.name for entry in entries_of_kind(store, "namespace", at=revision))
