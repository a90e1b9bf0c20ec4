"""The balances of a job's shared scopes after its newest batch, and their rates."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from spark_throttle.admin.watch.job_watch import JobView
from spark_throttle.core.quota import MICRO, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.shared_buckets import under_share

Pair: TypeAlias = tuple[float | None, float | None]
"""Messages, then bytes; `None` where there is no limit."""


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


def balances_of(view: JobView, tenants: Collection[str] = ()) -> dict[tuple[str, str], tuple[Pair, Pair]]:
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
        key: (_pair(tokens, is_limited), _pair(rate, is_limited))
        for key, is_limited, tokens, rate in zip(positions, limited, held, per_second, strict=True)
    }


def rates_of(view: JobView) -> Int64s | None:
    """Return the job's rate in each shared scope, in micro-tokens per ms: its share, or what a destination takes."""
    epoch, policy = view.epoch, view.epoch_policy
    if epoch is None or policy is None:
        return None
    return under_share(policy, epoch.share_in_force(len(policy.shared))).shared.rate_micro_per_ms


def _pair(values: list[float], is_limited: list[bool]) -> Pair:
    messages, in_bytes = (value if limits else None for value, limits in zip(values, is_limited, strict=True))
    return messages, in_bytes
