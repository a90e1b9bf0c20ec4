"""A job's shares of quotas: its own buckets for the scopes that it shares with other jobs.

A share is a part of a scope's rate, and the same part of the scope's burst goes with it. So the buckets of all jobs
together hold and earn what the scope's one bucket would, as long as the shares sum to no more than the quota. A bucket
whose share grows fills up from its present balance; a bucket whose share shrinks is cut to its smaller burst. No bucket
gains tokens when shares change.

Processing time is shared alike: the ledger refills at the share, and a balance is at most the share's part of the
window. A debt stays as it is when a share shrinks, and is then repaid at the smaller share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import quotient, times
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.lending.grants import Buckets
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, TimeQuotas
from spark_throttle.core.state import has_no_share, rates_of_shares

_SHARE_BITS = 30


def under_share(
    policy: CompiledPolicy, share_micro_per_ms: Int64s | None, share_ns_per_ms: Int64s | None = None
) -> CompiledPolicy:
    """Return a policy whose shared scopes have a job's shares as their rates, and their bursts in proportion.

    Parameters
    ----------
    share_micro_per_ms
        Shape (scopes, 2), `UNLIMITED` where the scope has no limit; `None` leaves the policy unchanged.
    share_ns_per_ms
        Shape (scopes,): the shares of processing time; `None` leaves the time quotas unchanged.
    """
    if share_micro_per_ms is None:
        return policy
    shared, time = policy.shared, policy.shared.time
    rate = rates_of_shares(share_micro_per_ms, policy)
    burst = _in_proportion(shared.burst_micro, rate, shared.rate_micro_per_ms)
    if time is not None and share_ns_per_ms is not None:
        rate_ns = np.where(time.is_limited, np.clip(share_ns_per_ms, 0, time.rate_ns_per_ms), UNLIMITED)
        time = TimeQuotas(rate_ns, _in_proportion(time.burst_ns, rate_ns, time.rate_ns_per_ms))
    return replace(policy, shared=replace(shared, rate_micro_per_ms=rate, burst_micro=burst, time=time))


def _in_proportion(burst: Int64s, share: Int64s, rate: Int64s) -> Int64s:
    """Return the part of each burst that `share` is of `rate`."""
    part = quotient(np.maximum(share, 0), np.maximum(rate, 0), _SHARE_BITS)
    return np.where(share == rate, burst, times(burst, part))


def is_unleased(share_micro_per_ms: Int64s, share_ns_per_ms: Int64s | None, policy: CompiledPolicy) -> Bools:
    """Return which shared scopes a job may use nothing of though no quota of theirs is 0, shape (scopes,)."""
    found = by_row(np.logical_or, has_no_share(share_micro_per_ms, policy))
    return found if share_ns_per_ms is None else found | _has_no_time(share_ns_per_ms, policy)


def lacks_messages(share_micro_per_ms: Int64s, share_ns_per_ms: Int64s, policy: CompiledPolicy) -> Bools:
    """Return which shared scopes let no message through for want of a share of messages or of time, shape (scopes,)."""
    has_none = has_no_share(share_micro_per_ms, policy)[:, Dimension.MESSAGES]
    return has_none | _has_no_time(share_ns_per_ms, policy)


def _has_no_time(share_ns_per_ms: Int64s, policy: CompiledPolicy) -> Bools:
    time = policy.shared.time
    if time is None:
        return np.zeros(len(policy.shared), dtype=np.bool_)
    return (share_ns_per_ms == 0) & (time.rate_ns_per_ms > 0)


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
