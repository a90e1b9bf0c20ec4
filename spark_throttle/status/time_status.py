"""What the scopes of a job used of their quotas on processing time, by its newest epoch.

An epoch says what its job was charged between the epoch before it and itself (`core.time_quota.time_ledger`): the time
used by every scope, that of exempt namespaces, and that which belongs to no namespace. A scope in debt waits for its
throttle time, which is KIP-124's and no longer than the scope's window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.codec import Epoch
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import NEVER_MS, UNLIMITED, CompiledPolicy, Int64s, OnExcess, TimeQuotas
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import quotas_of


@dataclass(frozen=True, slots=True)
class ScopeTime:
    """The processing time of one scope."""

    level: str
    """``job``, ``tenant``, ``resource_group`` or ``namespace``."""

    scope: str
    request_percentage: float | None
    """Its quota, in percent of one core; `None` if it has none."""

    used_ns: int
    """The time that it was charged in the interval."""

    balance_ns: int | None
    """The time that is left of its quota, negative in debt; `None` without a quota."""

    throttle_ms: int | None
    """How long it is in debt, 0 if it is not; `None` without a quota that holds rows back, or if it is for ever."""

    ns_per_message: int | None
    """The price of a message, by which the next batch is bounded; `None` if it is not known."""


@dataclass(frozen=True, slots=True)
class TimeStatus:
    """The processing time of a job in the interval before its newest epoch."""

    as_of_ms: int
    interval_ms: int
    scopes: tuple[ScopeTime, ...]
    """The job, the tenants and the groups, then the namespaces that were charged and have a quota of their own."""

    exempt_ns: int
    unattributed_ns: int


def time_status_of(epoch: Epoch, policy: CompiledPolicy) -> TimeStatus | None:
    """Return the processing time of an epoch of `policy`; `None` if the policy has no quota on processing time."""
    if epoch.time is None:
        return None
    ledger, used = epoch.time.ledger, epoch.time.ledger.used
    rules = policy.namespace_limits.take(match(ledger.names, policy).rule)
    levels = ["job", *["tenant"] * len(policy.tenant_names), *["resource_group"] * len(policy.group_names)]
    names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    scopes = [
        *_scopes(levels, names, ledger.shared, quotas_of(policy.shared), used.shared_ns, policy.shared.on_excess),
        *_scopes(
            ["namespace"] * len(ledger.names), ledger.names.to_pylist(), ledger.own, quotas_of(rules), used.own_ns,
            rules.on_excess,
        ),
    ]  # fmt: skip
    return TimeStatus(ledger.as_of_ms, used.interval_ms, tuple(scopes), used.exempt_ns, used.unattributed_ns)


def _scopes(
    levels: list[str],
    names: list[str],
    accounts: TimeAccounts,
    quotas: TimeQuotas,
    used_ns: Int64s,
    on_excess: Int64s,
) -> Iterator[ScopeTime]:
    throttle_ms = accounts.throttle_ms(quotas)
    price_ns = accounts.time_ns * 1_000 // np.maximum(accounts.messages_micro // 1_000, 1)
    for at, (level, name) in enumerate(zip(levels, names, strict=True)):
        rate, wait_ms = int(quotas.rate_ns_per_ms[at]), int(throttle_ms[at])
        is_limited, observes = rate != UNLIMITED, on_excess[at] == OnExcess.OBSERVE
        yield ScopeTime(
            level,
            name,
            rate / NS_PER_MS_OF_A_PERCENT if is_limited else None,
            int(used_ns[at]),
            int(accounts.balance_ns[at]) if is_limited else None,
            wait_ms if is_limited and not observes and wait_ms < NEVER_MS else None,
            int(price_ns[at]) if accounts.has_price[at] else None,
        )
