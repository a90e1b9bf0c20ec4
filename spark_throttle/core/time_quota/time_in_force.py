"""What an epoch lends where time is limited: each scope's tokens, and the messages that its time still lets through.

A shared scope is lent the messages that both its own limit and its time let through. So all that is done with limits on
messages is done with time: the division among shards and flows, the wait for the end of a debt, verdicts that wait. The
scope's own buckets are not changed by that: they are settled under the policy itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.lending.grants import Buckets
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits, is_stricter, stricter, under_time
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension
from spark_throttle.core.time_quota.time_ledger import TimeLedger

_MESSAGES = Dimension.MESSAGES


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInForce:
    """A policy and its buckets, with time quotas in the form of limits on messages."""

    policy: CompiledPolicy
    buckets: Buckets
    limits: MessageLimits | None
    """The limits on messages that the shards need; `None` if the policy has no time quota."""

    @classmethod
    def of(cls, policy: CompiledPolicy, buckets: Buckets, ledger: TimeLedger | None) -> PolicyInForce:
        """Return what is in force of a policy.

        Parameters
        ----------
        policy
            The policy, with the job's shares as its rates if it has any.
        ledger
            What is left of the policy's time quotas, at the time of `buckets`; `None` if it has none.
        """
        if ledger is None:
            return cls(policy, buckets, None)
        shared, balance = policy.shared, buckets.balance_micro.copy()
        time = ledger.shared_as_messages(policy)
        own = MessageBuckets(
            balance[:, _MESSAGES], shared.rate_micro_per_ms[:, _MESSAGES], shared.burst_micro[:, _MESSAGES]
        )
        both, is_timed = stricter(time, own), time.is_limited
        limits = MessageLimits(
            np.where(is_timed, both.rate_micro_per_ms, UNLIMITED), np.where(is_timed, both.burst_micro, 0),
            is_stricter(time, own), ledger.names, ledger.own_as_messages(policy),
        )  # fmt: skip
        balance[is_timed, _MESSAGES] = both.balance_micro[is_timed]
        return cls(under_time(policy, limits), Buckets(balance, buckets.as_of_ms), limits)
