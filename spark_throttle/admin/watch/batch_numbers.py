"""The numbers of one batch of one job: shared scopes by name, namespaces as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport, rejected_by_reason
from spark_throttle.status.ranking import ratio_of_quota
from spark_throttle.status.usage_table import MEASURES, by_dimension, reported_names, usage_rows

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
    shared: dict[tuple[str, str], Int64s]
    """The values that `usage_table.MEASURES` names, by level and scope, for the job and each group that was active."""

    quotas: dict[tuple[str, str], Quotas]
    """Quotas in messages and bytes per second, with the keys of `shared`; `None` where there is no limit."""

    tenants: pa.StringArray
    """Names of the tenants that the policy names and that were active."""

    tenant_counts: Int64s
    """The values that `usage_table.MEASURES` names, by tenant."""

    tenant_quotas: Int64s
    """Shape (n, 2), by tenant: messages and bytes in micro-tokens per ms, or `UNLIMITED`."""

    rejected_by_reason: Int64s
    """The number of rejected messages by `Reason`; empty if an older release reported the batch."""

    oldest_waiting_ms: int | None
    """How long the oldest waiting row had waited; `None` if none waited, or if an older release reported the batch."""

    names: pa.StringArray
    """Names of the namespaces; they may not be valid UTF-8."""

    counts: Int64s
    """The values that `usage_table.MEASURES` names, by namespace."""

    @property
    def waiting(self) -> Int64s:
        """Shape (n, 2), by namespace: waiting messages and bytes."""
        return self.counts[:, by_dimension("waiting")]

    def levels(self) -> Iterator[tuple[str, list[str], Int64s, np.ndarray]]:
        """Yield for groups, then tenants: the active scopes, their measures and the part of their quota they used."""
        columns = by_dimension("admitted")
        groups = [scope for level, scope in self.shared if level == "resource_group"]
        rows = np.array([self.shared["resource_group", scope] for scope in groups], np.int64).reshape(-1, len(MEASURES))
        pairs = [self.quotas["resource_group", scope] for scope in groups]
        rates = [[UNLIMITED if each is None else round(each * 1000) for each in pair] for pair in pairs]
        quotas = np.array(rates, np.int64).reshape(-1, 2)
        for level, scopes, counts, limits in (
            ("resource_group", groups, rows, quotas),
            ("tenant", self.tenants.to_pylist(), self.tenant_counts, self.tenant_quotas),
        ):
            used = ratio_of_quota(counts[:, columns], limits, self.elapsed_ms)
            yield level, scopes, counts, used.max(axis=1, initial=-1.0)

    def without_namespaces(self) -> BatchNumbers:
        """Return the numbers of only the job and its groups."""
        return replace(
            self, tenants=_NO_NAMES, tenant_counts=self.tenant_counts[:0], tenant_quotas=self.tenant_quotas[:0],
            names=_NO_NAMES, counts=self.counts[:0],
        )  # fmt: skip


def numbers_of(batch: int, reports: Sequence[UsageReport], policy: CompiledPolicy, elapsed_ms: int) -> BatchNumbers:
    """Return the numbers of a batch."""
    rows = usage_rows(reports, policy, batch)
    is_namespace, is_tenant = pc.equal(rows["level"], "namespace"), pc.equal(rows["level"], "tenant")
    wide, own = rows.filter(pc.invert(pc.or_(is_namespace, is_tenant))), rows.filter(is_namespace)
    of_tenants = rows.filter(is_tenant)
    tenant_counts = _columns(of_tenants)
    active = np.flatnonzero(tenant_counts.any(axis=1))
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
        tenants=of_tenants["scope"].combine_chunks().take(pa.array(active)),
        tenant_counts=tenant_counts[active],
        tenant_quotas=policy.shared.rate_micro_per_ms[1 + active],
        rejected_by_reason=rejected_by_reason(reports),
        oldest_waiting_ms=max(
            (each.oldest_waiting_ms for each in reports if each.oldest_waiting_ms is not None), default=None
        ),
        names=reported_names(reports),
        counts=_columns(own),
    )


def wide_quotas(policy: CompiledPolicy) -> dict[tuple[str, str], Quotas]:
    """Return the messages and bytes per second of the job and every resource group, `None` where there is no limit."""
    groups = len(policy.group_names)
    rates = policy.shared.rate_micro_per_ms
    keys = [JOB, *(("resource_group", name) for name in policy.group_names.to_pylist())]
    pairs = [rates[0].tolist(), *rates[len(rates) - groups :].tolist()]
    return {key: per_second(pair) for key, pair in zip(keys, pairs, strict=True)}


def per_second(rates_micro_per_ms: Iterable[int]) -> Quotas:
    """Return a quota of messages and bytes per second; `None` where there is no limit."""
    messages, in_bytes = (None if rate == UNLIMITED else float(rate) / 1000 for rate in rates_micro_per_ms)
    return messages, in_bytes


def _columns(rows: pa.Table) -> Int64s:
    return np.column_stack([rows[measure.name].to_numpy() for measure in MEASURES]).astype(np.int64)
