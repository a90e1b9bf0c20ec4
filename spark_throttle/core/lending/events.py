"""When a batch is worth planning for waiting rows: the first moment at which one of them can leave or expire.

A shard knows when its namespaces' own limits and rules let their first waiting rows leave, but of the shared scopes it
knows only what it was lent. The control plane knows the buckets themselves. A row can leave once its own limits let it
and none of the scopes that hold it back is in debt:

    event of a flow = max(the time that its shard reported, the end of every scope's debt)

A row can expire whatever holds it back. A wait is rounded up to the millisecond in which the balance is no longer
negative, so that the row passes at the event (KIP-599's rule, `token_bucket`), and not a millisecond sooner. A scope
with a rate of 0, or a share of 0, never leaves its debt; a scope that only observes holds nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row, once
from spark_throttle.core.lending.grants import Buckets, Lending
from spark_throttle.core.limits.token_bucket import throttle_time_ms
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Int64s, OnExcess
from spark_throttle.core.usage import UsageReport


def next_event_ms(reports: Iterable[UsageReport], buckets: Buckets, policy: CompiledPolicy) -> int:
    """Return when the first waiting row can leave or expire; `NEVER_MS` if none ever will by itself.

    Parameters
    ----------
    reports
        The last report of every shard, of `policy`'s revision.
    buckets
        The buckets after everything that was used has been debited.
    policy
        The policy, with the job's shares as its rates if it has any.
    """
    open_ms = _open_ms(buckets.balance_micro, policy, buckets.as_of_ms)
    return min((min(report.expires_ms, _leaves_ms(report, open_ms, policy)) for report in reports), default=NEVER_MS)


def lent_turn(
    reports: Sequence[UsageReport],
    buckets: Buckets,
    policy: CompiledPolicy,
    lend_at: Callable[[int], Lending],
    turn: int,
) -> Lending:
    """Return the lending of `turn`, or of the next turn that lets a waiting row leave, if the buckets let one leave.

    The few tokens of a slow scope go to few shards, and a row needs all its scopes open in its own shard. A turn may
    open them in different shards, or in a shard where nothing waits; an epoch of such a turn would be in vain.
    """
    now_ms = buckets.as_of_ms
    lending = lend_at(turn)
    open_ms = _open_ms(buckets.balance_micro, policy, now_ms)
    if not any(_leaves_ms(report, open_ms, policy) <= now_ms for report in reports):
        return lending
    drawn = lending
    for later in range(turn + 1, turn + 1 + len(lending.balance_micro)):
        lent = drawn.balance_micro
        if any(_leaves_ms(each, _open_ms(lent[each.shard], policy, now_ms), policy) <= now_ms for each in reports):
            return drawn
        drawn = lend_at(later)
    return lending


def _leaves_ms(report: UsageReport, open_ms: Int64s, policy: CompiledPolicy) -> int:
    """Return when the first waiting row of a shard can leave, where the shared scopes open at `open_ms`."""
    if report.leaves_ms is None:
        return NEVER_MS
    first_group = 1 + len(policy.tenant_names)
    # A flow without a tenant or a group has -1, and finds the 0 at the end.
    of_tenants, of_groups = np.append(open_ms[1:first_group], 0), np.append(open_ms[first_group:], 0)
    tenant, group = once(report.tenant), once(report.group)
    if len(tenant) == len(group) == 1 and report.weight.min() > 0:  # all flows wait for the same scopes
        open_all_ms = max(int(open_ms[0]), int(of_tenants[tenant[0]]), int(of_groups[group[0]]))
        return min(max(int(report.leaves_ms.min()), open_all_ms), NEVER_MS)
    waits = report.leaves_ms < NEVER_MS
    of_tenant = of_tenants.take(report.tenant.compress(waits))
    of_group = of_groups.take(report.group.compress(waits))
    of_job = np.where(report.weight.compress(waits) > 0, open_ms[0], 0)  # an exempt namespace passes no scope
    leaves_ms = report.leaves_ms.compress(waits)
    for of_scope in (of_tenant, of_group, of_job):
        np.maximum(leaves_ms, of_scope, out=leaves_ms)
    return int(leaves_ms.min(initial=NEVER_MS))


def _open_ms(balance_micro: Int64s, policy: CompiledPolicy, as_of_ms: int) -> Int64s:
    """Return the time from which each shared scope holds nothing back."""
    shared = policy.shared
    wait_ms = by_row(np.maximum, throttle_time_ms(balance_micro, shared.rate_micro_per_ms))
    wait_ms = np.where(shared.on_excess == OnExcess.OBSERVE, 0, wait_ms)
    return as_of_ms + np.minimum(wait_ms, NEVER_MS - as_of_ms)
