"""Which rules take over the names of entries that a change removes: the most specific globs, or the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from spark_throttle.core.names.globs import covers, is_glob, overlaps, specificity
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
    return {name: list(_takers(name, globs)) for name in removed}


def namespace_names(store: PolicyStore, revision: int) -> Iterator[str]:
    """Yield the names of the namespaces' entries at a revision."""
    return (entry.name for entry in entries_of_kind(store, "namespace", at=revision))


def _takers(name: str, globs: list[str]) -> Iterator[str]:
    """Yield the rules that take over a name, or the names of a glob.

    Examples
    --------
    >>> globs = ["acme/*-eu", "acme/*"]
    >>> [list(_takers(name, globs)) for name in ("acme/x", "acme/y-eu", "other/x", "acme/*-us", "*")]
    [['namespaces.acme/*'], ['namespaces.acme/*-eu'], ['defaults'], ['namespaces.acme/*'], ['defaults']]
    """
    for glob in globs:
        # A glob that is more specific than a removed one had the names that both match before.
        if overlaps(glob, name) and not (is_glob(name) and specificity(glob) < specificity(name)):
            yield f"namespaces.{glob}"
            if covers(glob, name):
                return
    yield "defaults"
