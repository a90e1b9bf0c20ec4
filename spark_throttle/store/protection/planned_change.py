"""A change of many entries that is shown before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from spark_throttle.store.entries import Difference
from spark_throttle.store.protection.loss import Loss


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What a change of many entries would do, if it were made now."""

    revision: int
    """The store's revision that it would change; `expected` makes sure of it."""

    changes: int
    """How many entries would change."""

    differences: tuple[Difference, ...]
    """The first of them, as many as were asked for."""

    losses: tuple[Loss, ...]
    """What it costs; if there is any, it must be confirmed."""
