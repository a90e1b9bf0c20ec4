"""One batch of one job in numbers: of its shared scopes by name, of its namespaces as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.usage_table import MEASURES, by_dimension, reported_names, usage_rows

JOB: Final = ("job", "job")
Quotas: TypeAlias = tuple[float | None, float | None]
_NO_NAMES: Final = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class BatchNumbers:
    """A batch, as its shards reported it."""

    batch: int
    epoch: int
    now_ms: int
    elapsed_ms: int
    """Since the batch before; 0 of the first that was seen."""

    revision: str
    shared: dict[tuple[str, str], Int64s]
    """By level and scope of the job and of the groups that were active: what `usage_table.MEASURES` names."""

    quotas: dict[tuple[str, str], Quotas]
    """As `shared`: messages and bytes a second, `None` where there is no limit."""

    names: pa.StringArray
    """Of the namespaces; they may be no UTF-8."""

    counts: Int64s
    """As `shared`, by namespace."""

    @property
    def waiting(self) -> Int64s:
        """Shape (n, 2): what waits of every namespace."""
        return self.counts[:, by_dimension("waiting")]

    def without_namespaces(self) -> BatchNumbers:
        """Return the numbers of the shared scopes alone."""
        return replace(self, names=_NO_NAMES, counts=self.counts[:0])


def numbers_of(batch: int, reports: Sequence[UsageReport], policy: CompiledPolicy, elapsed_ms: int) -> BatchNumbers:
    """Return the numbers of a batch."""
    rows = usage_rows(reports, policy, batch)
    is_namespace, is_tenant = pc.equal(rows["level"], "namespace"), pc.equal(rows["level"], "tenant")
    wide, own = rows.filter(pc.invert(pc.or_(is_namespace, is_tenant))), rows.filter(is_namespace)
    table = _columns(wide)
    keys = zip(wide["level"].to_pylist(), wide["scope"].to_pylist(), strict=True)
    shared = {key: row for key, row in zip(keys, table, strict=True) if row.any() or key == JOB}
    quotas = wide_quotas(policy)
    return BatchNumbers(
        batch=batch,
        epoch=reports[0].epoch,
        now_ms=reports[0].now_ms,
        elapsed_ms=elapsed_ms,
        revision=policy.revision,
        shared=shared,
        quotas={key: quotas[key] for key in shared},
        names=reported_names(reports),
        counts=_columns(own),
    )


def wide_quotas(policy: CompiledPolicy) -> dict[tuple[str, str], Quotas]:
    """Return messages and bytes a second of the job and of every resource group, `None` where there is no limit."""
    groups = len(policy.group_names)
    rates = policy.shared.rate_micro_per_ms
    keys = [JOB, *(("resource_group", name) for name in policy.group_names.to_pylist())]
    pairs = [rates[0].tolist(), *rates[len(rates) - groups :].tolist()]
    return {key: (_per_second(pair[0]), _per_second(pair[1])) for key, pair in zip(keys, pairs, strict=True)}


def _per_second(rate_micro_per_ms: int) -> float | None:
    return None if rate_micro_per_ms == UNLIMITED else rate_micro_per_ms / 1000


def _columns(rows: pa.Table) -> Int64s:
    return np.column_stack([rows[measure.name].to_numpy() for measure in MEASURES]).astype(np.int64)
