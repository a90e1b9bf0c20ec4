"""A job's shares of quotas: its own buckets for the scopes that it shares with other jobs.

A share is a part of a scope's rate, and the same part of the scope's burst goes with it. So the buckets of all jobs
together hold and earn what the scope's one bucket would, as long as the shares sum to no more than the quota. A bucket
whose share grows fills up from its present balance; a bucket whose share shrinks is cut to its smaller burst. No bucket
gains tokens when shares change.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import quotient, times
from spark_throttle.core.lending.grants import Buckets
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.state import has_no_share, rates_of_shares

_SHARE_BITS = 30


def under_share(policy: CompiledPolicy, share_micro_per_ms: Int64s | None) -> CompiledPolicy:
    """Return a policy whose shared scopes have a job's shares as their rates, and their bursts in proportion.

    Parameters
    ----------
    share_micro_per_ms
        Shape (scopes, 2), `UNLIMITED` where the scope has no limit; `None` leaves the policy unchanged.
    """
    if share_micro_per_ms is None:
        return policy
    shared = policy.shared
    rate = rates_of_shares(share_micro_per_ms, policy)
    part = quotient(np.maximum(rate, 0), np.maximum(shared.rate_micro_per_ms, 0), _SHARE_BITS)
    burst = np.where(rate == shared.rate_micro_per_ms, shared.burst_micro, times(shared.burst_micro, part))
    return replace(policy, shared=replace(shared, rate_micro_per_ms=rate, burst_micro=burst))


def refill_share(
    buckets: Buckets, policy: CompiledPolicy, share_micro_per_ms: Int64s | None, *, now_ms: int
) -> Buckets:
    """Return the buckets at `now_ms`, refilled at the job's shares; a share of 0 admits nothing and keeps a debt."""
    filled = buckets.refill(under_share(policy, share_micro_per_ms), now_ms=now_ms)
    if share_micro_per_ms is None:
        return filled
    is_shut = has_no_share(share_micro_per_ms, policy)
    return Buckets(np.where(is_shut, np.minimum(buckets.balance_micro, -1), filled.balance_micro), now_ms)


def settle_share(
    buckets: Buckets, used: Int64s, policy: CompiledPolicy, share_micro_per_ms: Int64s | None, *, at_ms: int
) -> Buckets:
    """Return the buckets after `used` tokens, shape (scopes, 2), were taken at `at_ms`; see `Buckets.settle`."""
    if share_micro_per_ms is None:
        return buckets.settle(used, policy, at_ms=at_ms)
    return refill_share(buckets, policy, share_micro_per_ms, now_ms=max(at_ms, buckets.as_of_ms)).debit(used, policy)
