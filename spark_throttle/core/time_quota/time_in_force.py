"""What quotas on processing time let through until the next epoch, as limits on messages that the epoch pins.

A row passes a shared scope if the scope's own limit on messages and its time both let it pass (`shared_buckets`). Where
the time lets less through, the scope is divided by the prices of the namespaces' messages (`message_prices`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits, enforced_time, is_stricter
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.limits.token_bucket import admissible_messages
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.core.time_quota.time_mix import TimeMix
from spark_throttle.core.usage import UsageReport

_MESSAGES = Dimension.MESSAGES


def limits_in_force(
    policy: CompiledPolicy,
    balance_micro: Int64s,
    ledger: TimeLedger,
    report: UsageReport | None,
    is_unleased: Bools | None = None,
) -> MessageLimits:
    """Return what is left of time quotas, in messages.

    Parameters
    ----------
    policy
        The policy, with the job's shares as its rates if it has any.
    balance_micro
        Shape (scopes, 2): the balances of the shared buckets.
    ledger
        What is left of the policy's time quotas, at the time of the balances.
    report
        The last report, which says whose messages the time of shared scopes is for; `None` before the first.
    is_unleased
        Shape (scopes,): where the job has no share of time or messages, though the quota is not 0. Such a scope has a
        rate of 1 in place of 0: its quota is not 0. By default, no scope.
    """
    shared = policy.shared
    own = MessageBuckets(
        balance_micro[:, _MESSAGES], shared.rate_micro_per_ms[:, _MESSAGES], shared.burst_micro[:, _MESSAGES]
    )
    mix = None if report is None else _mix(ledger, own, policy, report)
    accounts = ledger.shared if mix is None else mix.told()
    time = replace(ledger, shared=accounts).shared_as_messages(policy)
    time = time if mix is None else mix.with_waiting(time)
    is_by_time = is_stricter(time, own)
    is_short = np.zeros_like(is_by_time) if mix is None else mix.is_short
    prices = _prices(ledger, accounts, is_by_time, is_short, policy)
    if is_unleased is None:
        is_unleased = np.zeros_like(is_by_time)
    rate = np.where(is_unleased & (time.rate_micro_per_ms == 0), 1, time.rate_micro_per_ms)
    time = replace(time, rate_micro_per_ms=rate)
    return MessageLimits(time, is_unleased, ledger.names, ledger.own_as_messages(policy), prices)


def _prices(
    ledger: TimeLedger, accounts: TimeAccounts, is_by_time: Bools, is_short: Bools, policy: CompiledPolicy
) -> MessagePrices | None:
    """Return the prices that divide the shared scopes."""
    shared_ns = _shared_prices(accounts, is_by_time, policy)
    is_short = np.append(is_short & (shared_ns > 0), False)[match(ledger.names, policy).shared_scope]
    return MessagePrices.of(ledger.prices.dividing(is_short), shared_ns)


def _shared_prices(accounts: TimeAccounts, is_by_time: Bools, policy: CompiledPolicy) -> Int64s:
    """Return the prices of the shared scopes; 0 for those that limit bytes too, as they are not divided by time."""
    return np.where(is_by_time & ~policy.shared.is_limited[:, Dimension.BYTES], accounts.price_ns, 0)


def _mix(ledger: TimeLedger, own: MessageBuckets, policy: CompiledPolicy, report: UsageReport) -> TimeMix | None:
    """Return what is wanted of the shared scopes that are divided by time; `None` if none is, or nobody wants any."""
    shared_ns = _shared_prices(ledger.shared, enforced_time(policy.shared) != UNLIMITED, policy)
    if not (shared_ns.any() and ledger.prices.price_ns.any()):
        return None
    held = np.where(own.is_limited, admissible_messages(own.balance_micro), PLENTY)
    return TimeMix.of(ledger.shared, report, ledger.prices, shared_ns, ledger.names, held, policy)
