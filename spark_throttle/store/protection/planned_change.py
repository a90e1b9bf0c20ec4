"""A change of many entries that is shown before it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_throttle.store.entries import Difference
from spark_throttle.store.protection.loss import Loss
from spark_throttle.store.store import Change, Kind


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What a change of many entries would do, if it were made now."""

    revision: int
    """The store's revision that it would change; `expected` makes sure of it."""

    differences: tuple[Difference, ...]

    losses: tuple[Loss, ...]
    """What it costs; if there is any, it must be confirmed."""

    @classmethod
    def of(
        cls,
        changes: Iterable[Change],
        before: Mapping[tuple[Kind, str], str],
        revision: int,
        losses: Iterable[Loss],
    ) -> PlannedChange:
        """Return what changes would do, with the bodies of the entries before them."""
        differences = (
            Difference.of(change.kind, change.name, before.get(change.key), change.body) for change in changes
        )
        return cls(revision, tuple(differences), tuple(losses))
