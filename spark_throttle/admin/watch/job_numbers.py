"""The numbers of a job for people: who is throttled, by what, how fairly; balances; processing time.

The quota that holds a namespace back is the decider's own word: it stopped the first row that did not go.

Fairness is measured as in the kernel: the service of a namespace is the part of the group's quota that it was admitted,
in messages or bytes, whichever is larger, divided by its weight. No two namespaces that stay backlogged should differ
much in service.

Balances are those after the job's newest batch; processing time is that between its two newest epochs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.admin.watch.job_watch import JobView, Window
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.batch.decisions import DIMENSIONS, counted_as
from spark_throttle.core.limits.budgets import FIRST_BUDGET
from spark_throttle.core.names.matching import Matches, match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import KNOWN, MICRO, UNLIMITED, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.status.explanation import Numbers
from spark_throttle.status.ranking import rates_per_second, ratio_of_quota, worst_first
from spark_throttle.status.time_status import ScopeTime, TimeStatus
from spark_throttle.status.usage_table import AT, by_dimension

_ADMITTED: Final = by_dimension("admitted")
_LEVELS: Final = (Level.NAMESPACE, Level.TENANT, Level.RESOURCE_GROUP, Level.JOB)


@dataclass(frozen=True, slots=True)
class HoldingQuota:
    """The quota that holds a namespace back."""

    level: str
    scope: str
    dimension: str
    used_ratio: float | None
    """Part of the quota that was used in the newest batch, or of the budget in its window; `None` for a quota of 0, and
    where the tenant that asks may not see it."""


@dataclass(frozen=True, slots=True)
class NamespaceNumbers:
    """One namespace over the newest batches."""

    namespace: str
    resource_group: str | None
    weight: int
    offered_per_second: float | None
    """This and the other rates are `None` after the first batch that was seen: it is not known how long that took."""

    admitted_per_second: float | None
    rejected_per_second: float | None
    offered_bytes_per_second: float | None
    admitted_bytes_per_second: float | None
    rejected_bytes_per_second: float | None
    offered_units_per_second: float | None
    admitted_units_per_second: float | None
    rejected_units_per_second: float | None
    waiting_messages: int
    waiting_bytes: int
    waiting_units: int
    delayed_ms: float | None
    """Average time that an admitted message waited; `None` if no message was admitted."""

    service: float | None
    """Part of its group's quota that it was admitted, divided by its weight; `None` without such a quota."""

    oldest_waiting_ms: int | None
    """How long the oldest waiting message had waited when the newest batch began; `None` if none waits."""

    held_by: HoldingQuota | None
    """The quota that stopped its first message that did not go; `None` if no quota did."""


@dataclass(frozen=True, slots=True)
class NamespacePage:
    """The first of some namespaces, the worst first."""

    namespaces: tuple[NamespaceNumbers, ...]
    active: int
    """Number of namespaces that were active in all."""

    backlogged: int
    """Number of active namespaces with a backlog."""

    fairness_ratio: float | None
    """Largest service of a backlogged namespace divided by the smallest; `None` without a group, or below two."""


def namespaces_of(
    window: Window,
    *,
    resource_group: str | None,
    tenant: str | None,
    is_throttled: bool,
    limit: int,
    is_shown_all: bool = True,
    time: TimeStatus | None = None,
) -> NamespacePage:
    """Return the namespaces of a group and a tenant, or of all; the worst come first (`status.ranking`).

    Parameters
    ----------
    is_throttled
        Whether to leave out namespaces without waiting or rejected messages.
    is_shown_all
        Whether the reader may see how full the group and the job are.
    time
        The processing time of the newest epoch, if it has any.
    """
    policy, found, labels = window.policy, match(window.names, window.policy), shown(window.names)
    is_here = np.ones(len(window.names), dtype=bool)
    if resource_group is not None:
        position = policy.group_names.index(resource_group).as_py()
        is_here &= (found.group == position) & (position >= 0)
    if tenant is not None:
        is_here &= np.array([name.partition("/")[0] == tenant for name in labels.to_pylist()], dtype=bool)
    # By the newest batch, as the row of its group: two that count different batches contradict each other.
    is_held = (window.waiting[:, 0] > 0) | (window.newest_counts[:, AT["rejected_messages"]] > 0)
    listed = np.flatnonzero(is_here & is_held if is_throttled else is_here)
    seconds = max(window.elapsed_ms, 1) / 1000
    group_rate = _group_rates(policy, found.group)
    weight = policy.namespace_limits.weight[found.rule]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(group_rate > 0, window.counts[:, _ADMITTED] / seconds / group_rate, -1.0)
    service = part.max(axis=1, initial=-1.0) / weight
    used = used_ratios(window.newest, found, time=time)
    ratios = np.concatenate([used.own[:, None, :], used.shared[found.shared_scope]], axis=1)
    order = worst_first(
        oldest_ms=window.oldest_ms[listed],
        rejected=window.counts[listed, AT["rejected_messages"]],
        used_ratio=ratios[listed].max(axis=(1, 2), initial=-1.0),
        waiting=window.waiting[listed, 0],
        offered=window.counts[listed, AT["offered_messages"]],
    )
    listed = listed[order[:limit]]
    groups = policy.group_names.to_pylist()
    rows = []
    for at in listed.tolist():
        counts = dict(zip(AT, window.counts[at].tolist(), strict=True))
        admitted = counts["admitted_messages"]
        group = int(found.group[at])
        rows.append(
            NamespaceNumbers(
                namespace=labels[at].as_py(),
                resource_group=groups[group] if group >= 0 else None,
                weight=int(weight[at]),
                offered_per_second=_rate(counts["offered_messages"], window),
                admitted_per_second=_rate(admitted, window),
                rejected_per_second=_rate(counts["rejected_messages"], window),
                offered_bytes_per_second=_rate(counts["offered_bytes"], window),
                admitted_bytes_per_second=_rate(counts["admitted_bytes"], window),
                rejected_bytes_per_second=_rate(counts["rejected_bytes"], window),
                offered_units_per_second=_rate(counts["offered_units"], window),
                admitted_units_per_second=_rate(counts["admitted_units"], window),
                rejected_units_per_second=_rate(counts["rejected_units"], window),
                waiting_messages=int(window.waiting[at, Dimension.MESSAGES]),
                waiting_bytes=int(window.waiting[at, Dimension.BYTES]),
                waiting_units=int(window.waiting[at, Dimension.UNITS]),
                delayed_ms=counts["delayed_ms"] / admitted if admitted else None,
                service=float(service[at]) if service[at] >= 0 else None,
                oldest_waiting_ms=int(window.oldest_ms[at]) if window.oldest_ms[at] >= 0 else None,
                held_by=_held_by(
                    window.held_by[at],
                    ratios[at],
                    found.shared_scope[at],
                    window,
                    labels[at].as_py(),
                    is_shown_all=is_shown_all,
                )
                if is_held[at]
                else None,
            )
        )
    is_waiting = is_here & (window.waiting[:, 0] > 0)
    fairness = _fairness(service[is_waiting & (service > 0)]) if resource_group is not None else None
    return NamespacePage(tuple(rows), int(is_here.sum()), int(is_waiting.sum()), fairness)


def _rate(number: int, window: Window) -> float | None:
    return number * 1000 / window.elapsed_ms if window.elapsed_ms else None


def _fairness(services: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(services.max() / services.min()) if len(services) > 1 else None


def _group_rates(policy: CompiledPolicy, group: Int64s) -> Int64s:
    """Return the rates of each namespace's group in tokens per second, 0 where there is no limit; shape (n, 3)."""
    rates = policy.shared.rate_micro_per_ms[len(policy.shared) - len(policy.group_names) :, : Dimension.TIME]
    padded = np.concatenate([rates, np.full((1, len(KNOWN)), UNLIMITED)])
    return np.maximum(padded[group], 0) / 1000


@dataclass(frozen=True, slots=True, eq=False)
class UsedRatios:
    """The part of its quota that each scope used over the newest batches, -1 without a quota; by `Dimension`.

    A quota of 0 counts as used infinitely. Of processing time, it is the part that the newest epoch settled; a scope in
    debt has used all.
    """

    own: np.ndarray
    """The part of each active namespace, shape (n, 4)."""

    shared: np.ndarray
    """The part of each shared scope of the policy, shape (scopes + 1, 4); the last row stands for no scope."""


def used_ratios(
    window: Window, found: Matches | None = None, *, rates: Int64s | None = None, time: TimeStatus | None = None
) -> UsedRatios:
    """Return what each scope used of its quota.

    Parameters
    ----------
    found
        The matches of the window's namespaces, if they are known.
    rates
        The rates of the shared scopes in micro-tokens per ms, shape (scopes, 4); by default the policy's.
    time
        The processing time of the newest epoch; it is left out if that epoch has another policy.
    """
    policy = window.policy
    found = match(window.names, policy) if found is None else found
    admitted = window.counts[:, _ADMITTED]
    used = np.zeros((len(policy.shared) + 1, len(KNOWN)), np.int64)
    for column in found.shared_scope.T:
        used[:-1] += sums(column[column >= 0], admitted[column >= 0], len(policy.shared))
    rates = policy.shared.rate_micro_per_ms if rates is None else rates
    shared_rates = np.concatenate([rates[:, : Dimension.TIME], np.full((1, len(KNOWN)), UNLIMITED)])
    own_rates = rates_per_second(policy.namespace_limits.rate_micro_per_ms[found.rule, : Dimension.TIME])
    own = ratio_of_quota(admitted, own_rates, window.elapsed_ms)
    shared = ratio_of_quota(used, rates_per_second(shared_rates), window.elapsed_ms)
    own_time, shared_time = _time_ratios(window, time)
    return UsedRatios(np.column_stack([own, own_time]), np.column_stack([shared, shared_time]))


def _time_ratios(window: Window, time: TimeStatus | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the used part of the quotas on processing time, of the active namespaces and of the shared scopes."""
    n = len(window.policy.shared)
    if time is None or time.revision != window.policy.revision:
        return np.full(len(window.names), -1.0), np.full(n + 1, -1.0)
    names = shown(window.names)
    levels = pa.array(["namespace"]).take(pa.array(np.zeros(len(names), np.int64)))
    own = time.of(pa.chunked_array([levels]), pa.chunked_array([names]))
    return _time_ratio(own), np.append(_time_ratio(time.scopes.slice(0, n)), -1.0)


def _time_ratio(rows: pa.Table) -> np.ndarray:
    quota, used = (pc.fill_null(rows[name], -1.0).to_numpy() for name in ("share_percentage", "used_percentage"))
    is_in_debt = pc.fill_null(rows["balance_ns"], 0).to_numpy() < 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(quota == 0, np.inf, np.maximum(used / quota, np.where(is_in_debt, 1.0, 0.0)))
    return np.where(quota >= 0, ratio, -1.0)


def _held_by(
    held_by: Int64s, ratios: np.ndarray, scopes: Int64s, window: Window, namespace: str, *, is_shown_all: bool
) -> HoldingQuota | None:
    at, dimension = held_by.tolist()
    if at < 0:
        return None
    level = Level(at)
    scope, counted = _scope_name(level, scopes, window.policy, namespace), DIMENSIONS[dimension]
    if dimension >= FIRST_BUDGET:
        of_scope = window.budgets.get((level.name.lower(), scope), ())
        ratio = next((each.used / each.tokens for each in of_scope if each.budget == counted and each.tokens), np.inf)
    else:
        ratio = float(ratios[_LEVELS.index(level), dimension])
    # How full the job and a group are tells a tenant what others use.
    is_shown = is_shown_all or level in (Level.NAMESPACE, Level.TENANT)
    used_ratio = ratio if is_shown and np.isfinite(ratio) and ratio >= 0 else None
    return HoldingQuota(level.name.lower(), scope, _counted(dimension, window.policy.unit), used_ratio)


def _counted(dimension: int, unit: str) -> str:
    return "processing time" if dimension == Dimension.TIME else counted_as(dimension, unit)


def _scope_name(level: Level, scopes: Int64s, policy: CompiledPolicy, namespace: str) -> str:
    if level is Level.JOB:
        return "job"
    if level is Level.NAMESPACE:
        return namespace
    if level is Level.TENANT:
        return str(policy.tenant_names[int(scopes[0]) - 1].as_py())
    return str(policy.group_names[int(scopes[1]) - 1 - len(policy.tenant_names)].as_py())


def shared_positions(policy: CompiledPolicy, tenants: Collection[str]) -> dict[tuple[str, str], int]:
    """Return the positions of the job, these tenants and all groups among the shared scopes, by level and name."""
    first_group = len(policy.shared) - len(policy.group_names)
    wanted = frozenset(tenants)
    found = {("job", "job"): 0}
    if wanted:
        named = enumerate(policy.tenant_names.to_pylist())
        found |= {("tenant", name): 1 + at for at, name in named if name in wanted}
    names = enumerate(policy.group_names.to_pylist())
    return found | {("resource_group", name): first_group + at for at, name in names}


def balances_of(view: JobView, tenants: Collection[str] = ()) -> dict[tuple[str, str], tuple[Numbers, Numbers]]:
    """Return the balances and the rates per second of the buckets of the job, these tenants and the groups."""
    balance_micro, policy, rates = view.balance_micro, view.epoch_policy, rates_of(view)
    if balance_micro is None or policy is None or rates is None:
        return {}
    positions = shared_positions(policy, tenants)
    at = list(positions.values())
    limited = policy.shared.is_limited[at, : Dimension.TIME].tolist()
    held = (balance_micro[at, : Dimension.TIME] / MICRO).tolist()
    per_second = (rates[at, : Dimension.TIME] / 1000).tolist()
    return {
        key: (_numbers(tokens, is_limited), _numbers(rate, is_limited))
        for key, is_limited, tokens, rate in zip(positions, limited, held, per_second, strict=True)
    }


def rates_of(view: JobView) -> Int64s | None:
    """Return the job's rate in each shared scope, in micro-tokens per ms: its share, or what a destination takes."""
    epoch, policy = view.epoch, view.epoch_policy
    if epoch is None or policy is None:
        return None
    return under_share(policy, epoch.share_in_force(len(policy.shared))).shared.rate_micro_per_ms


def _numbers(values: list[float], is_limited: list[bool]) -> Numbers:
    messages, in_bytes, units = (value if limits else None for value, limits in zip(values, is_limited, strict=True))
    return messages, in_bytes, units


MOST_SCOPES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeTimeNumbers(ScopeTime):
    """What a scope used of processing time between the two newest epochs; percent are of one core."""

    level: str
    scope: str


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
