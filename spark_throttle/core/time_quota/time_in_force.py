"""What an epoch lends where time is limited: each scope's tokens, and the messages that its time still lets through.

A shared scope is lent the messages that both its own limit and its time let through. So all that is done with limits on
messages is done with time: the division among shards and flows, the wait for the end of a debt, verdicts that wait.
Where the time lets less through, it is divided by the prices of the namespaces' messages (`message_prices`). The
scope's own buckets are not changed by that: they are settled under the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.lending.allocation import PLENTY
from spark_throttle.core.lending.grants import Buckets
from spark_throttle.core.limits.message_limits import (
    MessageBuckets,
    MessageLimits,
    enforced_time,
    is_stricter,
    stricter,
    under_time,
)
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.limits.token_bucket import admissible_messages
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.core.time_quota.time_mix import TimeMix
from spark_throttle.core.usage import UsageReport

_MESSAGES = Dimension.MESSAGES


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInForce:
    """A policy and its buckets, with time quotas in the form of limits on messages."""

    policy: CompiledPolicy
    buckets: Buckets
    limits: MessageLimits | None
    """The limits on messages that the shards need; `None` if the policy has no time quota."""

    @classmethod
    def of(
        cls,
        policy: CompiledPolicy,
        buckets: Buckets,
        ledger: TimeLedger | None,
        reports: Sequence[UsageReport] = (),
    ) -> PolicyInForce:
        """Return what is in force of a policy.

        Parameters
        ----------
        policy
            The policy, with the job's shares as its rates if it has any.
        ledger
            What is left of the policy's time quotas, at the time of `buckets`; `None` if it has none.
        reports
            The last report of every shard, which says whose messages the time of shared scopes is for.
        """
        if ledger is None:
            return cls(policy, buckets, None)
        shared, balance = policy.shared, buckets.balance_micro.copy()
        own = MessageBuckets(
            balance[:, _MESSAGES], shared.rate_micro_per_ms[:, _MESSAGES], shared.burst_micro[:, _MESSAGES]
        )
        mix = _mix(ledger, own, policy, reports)
        accounts = ledger.shared if mix is None else mix.told()
        time = replace(ledger, shared=accounts).shared_as_messages(policy)
        time = time if mix is None else mix.with_waiting(time)
        both, is_timed, is_by_time = stricter(time, own), time.is_limited, is_stricter(time, own)
        limits = MessageLimits(
            np.where(is_timed, both.rate_micro_per_ms, UNLIMITED), np.where(is_timed, both.burst_micro, 0),
            is_by_time, ledger.names, ledger.own_as_messages(policy),
            _prices(ledger, accounts, is_by_time, np.zeros_like(is_by_time) if mix is None else mix.is_short, policy),
        )  # fmt: skip
        balance[is_timed, _MESSAGES] = both.balance_micro[is_timed]
        return cls(under_time(policy, limits), Buckets(balance, buckets.as_of_ms), limits)


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


def _mix(
    ledger: TimeLedger, own: MessageBuckets, policy: CompiledPolicy, reports: Sequence[UsageReport]
) -> TimeMix | None:
    """Return what is wanted of the shared scopes that are divided by time; `None` if none is, or nobody wants any."""
    shared_ns = _shared_prices(ledger.shared, enforced_time(policy.shared) != UNLIMITED, policy)
    if not (shared_ns.any() and ledger.prices.price_ns.any()):
        return None
    held = np.where(own.is_limited, admissible_messages(own.balance_micro), PLENTY)
    return TimeMix.of(ledger.shared, reports, ledger.prices, shared_ns, ledger.names, held, policy)
