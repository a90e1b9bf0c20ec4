"""The worst scopes come first where not all can be shown.

A scope is worse the longer its oldest message has waited; then, the more it rejected in the newest batch; then, the
nearer it is to its quota. Each of the three counts by class (a power of two of seconds or of messages, a tenth of a
quota), so that two scopes in much the same state do not take turns in the last place. Within a class, a scope that has
a place keeps it; then who holds more back by its own quota comes first, then more waiting, then more offered, then the
order in which they were given.

Metrics, the API, the page and the command line all rank by this.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from spark_throttle.core.quota import UNLIMITED, Bools, Int64s

Key: TypeAlias = tuple[str, str]
"""A level and the name of a scope."""

_MOST_CLASSES: Final = 64


def worst_first(
    *,
    oldest_ms: Int64s,
    rejected: Int64s,
    used_ratio: np.ndarray,
    waiting: Int64s,
    offered: Int64s,
    has_place: Bools | None = None,
    held: Int64s | None = None,
) -> Int64s:
    """Return the order of some scopes, the worst first; arrays run over the scopes.

    Parameters
    ----------
    oldest_ms
        How long the oldest waiting message of each has waited, -1 where none waits.
    used_ratio
        The part of its quota that each used (`ratio_of_quota`).
    has_place
        Which of them are shown already.
    held
        How many messages wait for the quota of each; by default, for none.

    Examples
    --------
    >>> zero = np.zeros(3, np.int64)
    >>> worst_first(
    ...     oldest_ms=np.array([-1, 90_000, -1]),
    ...     rejected=np.array([0, 0, 7]),
    ...     used_ratio=np.array([0.95, 1.0, 0.1]),
    ...     waiting=zero,
    ...     offered=zero,
    ... ).tolist()
    [1, 2, 0]
    """
    near = np.clip(np.floor(np.nan_to_num(used_ratio, posinf=_MOST_CLASSES) * 10), 0, _MOST_CLASSES - 1)
    waits = _class(np.where(oldest_ms >= 0, oldest_ms + 1000, 0), 1000)
    severity = (waits * _MOST_CLASSES + _class(rejected)) * _MOST_CLASSES
    kept = np.zeros(len(severity), np.bool_) if has_place is None else has_place
    by_own = np.zeros(len(severity), np.int64) if held is None else held
    return np.lexsort((-offered, -waiting, -by_own, ~kept, -(severity + near.astype(np.int64))))


def _class(numbers: Int64s, unit: int = 1) -> Int64s:
    """Return 0 for less than a unit, 1 for one, 2 from 2 units on, 3 from 4 units on, and so forth."""
    return np.frexp((numbers // unit).astype(np.float64))[1].astype(np.int64)


def ratio_of_quota(used: Int64s, per_second: np.ndarray, elapsed_ms: int) -> np.ndarray:
    """Return which part of its quota was used in a time: infinity of one of 0; -1 without one (NaN), or for no time."""
    if not elapsed_ms:
        return np.full(used.shape, -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(per_second == 0, np.inf, used / (per_second * (elapsed_ms / 1000)))
    return np.where(np.isnan(per_second), -1.0, ratio)


def rates_per_second(rate_micro_per_ms: Int64s) -> np.ndarray:
    """Return quotas as rates per second, NaN where there is no limit."""
    return np.where(rate_micro_per_ms == UNLIMITED, np.nan, rate_micro_per_ms / 1000)
