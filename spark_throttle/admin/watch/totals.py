"""Totals by scope since the watch began: of the job, and of a bounded number of groups and tenants.

A scope keeps its name for as long as the watch runs. Were the names given to whichever are busiest, a scope would take
its past in and out of the sum of the others, and Prometheus would take the drop for a restart. So the first
`MOST_NAMED` scopes of a level that are seen have totals of their own, of one batch the busiest first; all later ones
are summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.admin.watch.batch_numbers import JOB, BatchNumbers
from spark_throttle.core.quota import Int64s
from spark_throttle.status.usage_table import AT

MOST_NAMED: Final = 200
"""The most groups, and the most tenants, of a job that have totals of their own."""

OTHER: Final = "_other"
"""The name of the sum of all others of a level."""

Totals: TypeAlias = Mapping[tuple[str, str], Int64s]
"""The values that `usage_table.MEASURES` names, by level and scope."""


def with_batch(totals: Totals, numbers: BatchNumbers) -> dict[tuple[str, str], Int64s]:
    """Return totals with those of one more batch."""
    groups = {scope: counts for (level, scope), counts in numbers.shared.items() if level == "resource_group"}
    found = dict(totals)
    _add(found, JOB, numbers.shared[JOB])
    if groups:
        _add_level(found, "resource_group", pa.array(list(groups)), np.stack(list(groups.values())))
    _add_level(found, "tenant", numbers.tenants, numbers.tenant_counts)
    return found


def _add_level(totals: dict[tuple[str, str], Int64s], level: str, scopes: pa.StringArray, counts: Int64s) -> None:
    known = [scope for of, scope in totals if of == level and scope != OTHER]
    at = pc.index_in(scopes, pa.array(known, pa.string())).fill_null(-1).to_numpy(zero_copy_only=False)
    new = np.flatnonzero(at < 0)
    busiest = new[np.argsort(-counts[new, AT["offered_messages"]], kind="stable")]
    named = np.concatenate([np.flatnonzero(at >= 0), busiest[: MOST_NAMED - len(known)]])
    for position, scope in zip(named.tolist(), scopes.take(pa.array(named, pa.int64())).to_pylist(), strict=True):
        _add(totals, (level, scope), counts[position])
    rest = busiest[MOST_NAMED - len(known) :]
    if len(rest):
        _add(totals, (level, OTHER), counts[rest].sum(axis=0))


def _add(totals: dict[tuple[str, str], Int64s], key: tuple[str, str], counts: Int64s) -> None:
    totals[key] = totals.get(key, np.zeros_like(counts)) + counts
