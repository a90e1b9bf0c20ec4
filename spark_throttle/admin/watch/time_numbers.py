"""The processing time of a job between its two newest epochs, as a person may see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from spark_throttle.status.time_status import TimeStatus

MOST_SCOPES: Final = 200


@dataclass(frozen=True, slots=True)
class ScopeTimeNumbers:
    """What a scope used of processing time between the two newest epochs; percent are of one core."""

    level: str
    scope: str
    request_percentage: float | None
    """Its quota; null if it has none."""

    share_percentage: float | None
    """The job's part of the quota: all of it, if jobs do not share it."""

    used_percentage: float | None
    """Null after the first epoch: it is not known how long it took."""

    used_ns: int
    balance_ns: int | None
    """What is left of the quota; below 0 the scope is in debt."""

    throttle_ms: int | None
    """How long until it leaves debt, 0 out of debt; null without a quota that holds rows back, or if it never will."""

    ns_per_message: int | None


@dataclass(frozen=True, slots=True)
class TimeNumbers:
    """The processing time of a job between its two newest epochs."""

    interval_ms: int
    exempt_ns: int | None
    """That of exempt namespaces, which nothing limits; null for a tenant admin, as is the next number."""

    unattributed_ns: int | None
    """That which belongs to no namespace."""

    scopes: tuple[ScopeTimeNumbers, ...]
    """Scopes that have a quota or were charged: those in debt first, then those that used most."""


def time_numbers(time: TimeStatus, tenant: str | None) -> TimeNumbers:
    """Return the processing time of a job.

    Parameters
    ----------
    tenant
        Whoever asks, if it may see only its own scopes: the job's and the groups' time tells what others use.
    """
    rows = time.scopes
    rows = rows.filter(pc.or_(pc.is_valid(rows["request_percentage"]), pc.greater(rows["used_ns"], 0)))
    if tenant is not None:
        is_tenant = pc.and_(pc.equal(rows["level"], "tenant"), pc.equal(rows["scope"], tenant))
        is_inside = pc.and_(pc.equal(rows["level"], "namespace"), pc.starts_with(rows["scope"], f"{tenant}/"))
        rows = rows.filter(pc.or_(is_tenant, is_inside))
    rows = rows.append_column("debt_ms", pc.fill_null(rows["throttle_ms"], 0))
    order = pc.sort_indices(rows, [("debt_ms", "descending"), ("used_ns", "descending"), ("scope", "ascending")])
    found = rows.take(order[:MOST_SCOPES]).drop_columns(["debt_ms"]).to_pylist()
    return TimeNumbers(
        time.job.interval_ms,
        time.job.exempt_ns if tenant is None else None,
        time.job.unattributed_ns if tenant is None else None,
        tuple(ScopeTimeNumbers(**row) for row in found),
    )
