"""Small worlds for tests: policies, arrivals and balances, written as plain Python values.

Examples
--------
Two namespaces of one group that may together use 100 messages per second:

>>> policy = make_policy(
...     groups={"gold": limit(messages_per_second=100)},
...     namespaces={"a/x": Namespace(group="gold"), "b/y": Namespace(limit(weight=3), group="gold")},
... )
>>> policy.shared.rate_micro_per_ms.tolist()
[[-1, -1, -1, -1], [100000, -1, -1, -1]]
>>> state = with_tokens(DeciderState.initial(policy), policy, {"gold": (50, 0)})
>>> state.shared.balance_micro.tolist()
[[-1, -1, -1, -1], [50000000, 0, 0, 0]]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.quota import (
    MICRO,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Limits,
    OnExcess,
    Overflow,
    QueueBounds,
    WindowRules,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.policy.compile import setting_of
from spark_throttle.policy.model import SETTINGS

ArrivingRow: TypeAlias = tuple[str | None, int | None] | tuple[str | None, int | None, int | None]
"""Namespace, size in bytes and, perhaps, units."""

UNBOUNDED_QUEUE = QueueBounds(messages=2**50, bytes=2**50, age_ms=None, on_overflow=Overflow.REJECT)


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one scope, by `Dimension`."""

    rate_micro_per_ms: tuple[int, ...] = (UNLIMITED,) * len(Dimension)
    burst_micro: tuple[int, ...] = (0,) * len(Dimension)
    on_excess: OnExcess = OnExcess.DELAY
    weight: int = 1
    settings: Mapping[str, int] = field(default_factory=dict)
    """`Limits.settings` by key."""


def limit(
    *,
    messages_per_second: float | None = None,
    bytes_per_second: float | None = None,
    units_per_second: float | None = None,
    burst_seconds: float = 1,
    on_excess: OnExcess = OnExcess.DELAY,
    weight: int = 1,
    request_percentage: float | None = None,
    **settings: int,
) -> Limit:
    """Return the limits of one scope from the values of a policy document; `None` is unlimited.

    Examples
    --------
    >>> limit(messages_per_second=0.2, burst_seconds=10)
    Limit(rate_micro_per_ms=(200, -1, -1, -1), burst_micro=(2000000, 0, 0, 0), on_excess=<OnExcess.DELAY: 0>, \
weight=1, settings={})
    """
    assert settings.keys() <= SETTINGS.keys(), settings
    per_second = [(quota, 1_000) for quota in (messages_per_second, bytes_per_second, units_per_second)]
    quotas = (*per_second, (request_percentage, 10_000))
    rates = tuple(UNLIMITED if quota is None else round(quota * unit) for quota, unit in quotas)
    bursts = tuple(0 if rate == UNLIMITED else round(rate * 1000 * burst_seconds) for rate in rates)
    return Limit(rates, bursts, on_excess, weight, settings)


@dataclass(frozen=True, slots=True)
class Window:
    """Pegasus' rule in one dimension; a rule with 0 units is off."""

    delay_units: int = 0
    delay_ms: int = 0
    reject_units: int = 0
    reject_ms: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """The entry of one tenant in a policy."""

    limit: Limit = Limit()
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """The entry of one namespace in a policy, or the entry for all that it does not name."""

    limit: Limit = Limit()
    group: str | None = None
    by_count: Window = Window()
    by_size: Window = Window()


def make_policy(
    *,
    job: Limit = Limit(),
    tenants: Mapping[str, Tenant] | None = None,
    groups: Mapping[str, Limit] | None = None,
    namespaces: Mapping[str, Namespace] | None = None,
    exempt: Sequence[str] = (),
    between_namespaces: Collection[str] = (),
    default: Namespace = Namespace(),
    queue: QueueBounds = UNBOUNDED_QUEUE,
    revision: str = "r1",
) -> CompiledPolicy:
    """Return a policy with every name resolved to an index; globs are tried in the order of `namespaces`.

    Parameters
    ----------
    between_namespaces
        The groups whose tokens namespaces divide, and not tenants.
    """
    tenants, groups, namespaces = tenants or {}, groups or {}, namespaces or {}
    group_position = {name: i for i, name in enumerate(groups)} | {None: -1}
    named = [name for name in namespaces if "*" not in name]
    globs = [name for name in namespaces if "*" in name]
    between = {"fair_between": setting_of("fair_between", "namespaces")}
    groups = {
        name: replace(group, settings={**group.settings, **between}) if name in between_namespaces else group
        for name, group in groups.items()
    }
    members = [*(namespaces[name] for name in (*named, *globs)), *([Namespace()] if exempt else []), default]
    return CompiledPolicy(
        revision=revision,
        shared=make_limits([job, *(tenant.limit for tenant in tenants.values()), *groups.values()]),
        tenant_names=pa.array(list(tenants), pa.string()),
        group_names=pa.array(list(groups), pa.string()),
        tenant_group=np.array([group_position[tenant.group] for tenant in tenants.values()], dtype=np.int64),
        namespace_names=pa.array(named, pa.string()),
        glob_patterns=pa.array(globs, pa.string()),
        exempt_names=pa.array([name for name in exempt if "*" not in name], pa.string()),
        exempt_globs=pa.array([name for name in exempt if "*" in name], pa.string()),
        namespace_limits=make_limits([member.limit for member in members]),
        namespace_windows=make_windows([(member.by_count, member.by_size) for member in members]),
        namespace_group=np.array([group_position[member.group] for member in members], dtype=np.int64),
        queue=queue,
    )


def make_limits(limits: list[Limit]) -> Limits:
    """Return `limits` as columns."""
    keys = sorted({key for entry in limits for key in entry.settings})
    unset = {key: setting_of(key, SETTINGS[key].default) for key in keys}
    return Limits(
        np.array([entry.rate_micro_per_ms for entry in limits], dtype=np.int64),
        np.array([entry.burst_micro for entry in limits], dtype=np.int64),
        np.array([entry.on_excess for entry in limits], dtype=np.int64),
        np.array([entry.weight for entry in limits], dtype=np.int64),
        {key: np.array([entry.settings.get(key, unset[key]) for entry in limits], dtype=np.int64) for key in keys},
    )


def make_windows(windows: list[tuple[Window, Window]]) -> WindowRules:
    """Return rules by count and by size as columns."""
    return WindowRules(
        np.array([[rule.delay_units for rule in rules] for rules in windows], dtype=np.int64),
        np.array([[rule.delay_ms for rule in rules] for rules in windows], dtype=np.int64),
        np.array([[rule.reject_units for rule in rules] for rules in windows], dtype=np.int64),
        np.array([[rule.reject_ms for rule in rules] for rules in windows], dtype=np.int64),
    )


def make_arrivals(
    rows: Iterable[tuple[str | None, int | None] | tuple[str | None, int | None, int | None]],
) -> Arrivals:
    """Return arrivals of (namespace, size in bytes) or (namespace, size in bytes, units), in that order."""
    rows = list(rows)
    units = [row[2] for row in rows if len(row) > 2]
    return Arrivals(
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.int64()),
        units=pa.array(units, pa.int64()) if units else None,
    )


def with_tokens(state: DeciderState, policy: CompiledPolicy, tokens: Mapping[str, tuple[float, ...]]) -> DeciderState:
    """Return `state` with other balances of the shared buckets: tokens by scope name, by `Dimension`.

    The job's name is the empty string. A scope that is not named admits nothing, not even into debt.
    """
    names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    balance_micro = np.full((len(names), len(Dimension)), -1)
    for name, held in tokens.items():
        balance_micro[names.index(name)] = [round(each * MICRO) for each in (*held, 0, 0)[: len(Dimension)]]
    return replace(state, shared=replace(state.shared, balance_micro=balance_micro))
