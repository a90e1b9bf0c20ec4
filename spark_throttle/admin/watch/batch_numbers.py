"""The numbers of one batch of one job: shared scopes by name, namespaces as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.ranking import Key, ratio_of_quota
from spark_throttle.status.usage_table import MEASURES, by_dimension, per_second, reported_names, usage_rows

JOB: Final = ("job", "job")
Quotas: TypeAlias = tuple[float | None, float | None]
_NO_NAMES: Final = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class BatchNumbers:
    """The numbers of a batch, as the decider reported them."""

    batch: int
    epoch: int
    now_ms: int
    elapsed_ms: int
    """Time since the previous batch; 0 for the first batch that was seen."""

    revision: str
    shared: dict[Key, Int64s]
    """The values that `usage_table.MEASURES` names, of the job and of each group and tenant that was active."""

    quotas: dict[Key, Quotas]
    """Quotas in messages and bytes per second, with the keys of `shared`; `None` where there is no limit."""

    rejected_by_reason: Int64s
    """The number of rejected messages by `Reason`."""

    oldest_waiting_ms: int | None
    """How long the oldest waiting row had waited; `None` if none waited."""

    names: pa.StringArray
    """Names of the namespaces; they may not be valid UTF-8."""

    counts: Int64s
    """The values that `usage_table.MEASURES` names, by namespace."""

    @property
    def waiting(self) -> Int64s:
        """Shape (n, 2), by namespace: waiting messages and bytes."""
        return self.counts[:, by_dimension("waiting")]

    def used_ratios(self, keys: Sequence[Key]) -> np.ndarray:
        """Return which part of its quota each of these scopes used; -1 for one without a quota, or that was idle."""
        idle, none = np.zeros(len(MEASURES), np.int64), (None, None)
        counts = np.array([self.shared.get(key, idle) for key in keys]).reshape(-1, len(MEASURES))
        rates = np.array([self.quotas.get(key, none) for key in keys], np.float64).reshape(-1, 2)
        return ratio_of_quota(counts[:, by_dimension("admitted")], rates, self.elapsed_ms).max(axis=1, initial=-1.0)

    def without_details(self) -> BatchNumbers:
        """Return the numbers of only the job and its groups."""
        kept = {key: counts.copy() for key, counts in self.shared.items() if key[0] != "tenant"}
        return replace(self, shared=kept, quotas={key: self.quotas[key] for key in kept}, names=_NO_NAMES,
                       counts=self.counts[:0])  # fmt: skip


def numbers_of(batch: int, report: UsageReport, policy: CompiledPolicy, elapsed_ms: int) -> BatchNumbers:
    """Return the numbers of a batch."""
    rows = usage_rows(report, policy, batch)
    is_namespace = pc.equal(rows["level"], "namespace")
    wide = rows.filter(pc.invert(is_namespace))  # the job, the tenants and the groups, as in the policy
    table, keys = _columns(wide), list(zip(wide["level"].to_pylist(), wide["scope"].to_pylist(), strict=True))
    active = np.union1d(0, np.flatnonzero(table.any(axis=1))).tolist()
    return BatchNumbers(
        batch=batch,
        epoch=report.epoch,
        now_ms=report.now_ms,
        elapsed_ms=elapsed_ms,
        revision=policy.revision,
        shared={keys[at]: table[at] for at in active},
        quotas={keys[at]: per_second(policy.shared.rate_micro_per_ms[at, : Dimension.TIME]) for at in active},
        rejected_by_reason=np.array(report.rejected_by_reason, np.int64),
        oldest_waiting_ms=report.oldest_waiting_ms,
        names=reported_names(report),
        counts=_columns(rows.filter(is_namespace)),
    )


def _columns(rows: pa.Table) -> Int64s:
    return np.column_stack([rows[measure.name].to_numpy() for measure in MEASURES]).astype(np.int64)
