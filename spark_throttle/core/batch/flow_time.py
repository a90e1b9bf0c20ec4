"""The time quotas of a batch's flows: limits on messages that stand beside the namespaces' own.

An epoch says what the time of a namespace lets through, in messages (`message_limits`). While the batch decides, a flow
has the smaller of that and of what its own limit on messages lets through; both are debited. How long a flow waits, and
what it could send until the next batch, follows from each of the two at its own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from spark_throttle.core.batch.reasons import TIME
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits, enforced_time, is_stricter
from spark_throttle.core.limits.token_bucket import throttle_time_ms
from spark_throttle.core.names.matching import positions_in
from spark_throttle.core.quota import UNLIMITED, Dimension, Int64s, Limits
from spark_throttle.core.shared_buckets import under_share

if TYPE_CHECKING:
    from spark_throttle.core.batch.arrivals import BatchFlows
    from spark_throttle.core.batch.flow_plan import FlowPlan, Stops
    from spark_throttle.core.batch.micro_batch import MicroBatch

_MESSAGES = Dimension.MESSAGES


@dataclass(frozen=True, slots=True, eq=False)
class FlowTime:
    """What the time of every flow lets through when the batch begins, beside its own limit on messages."""

    at: Int64s
    """The position of every flow in `MessageLimits.names`, -1 where it has none."""

    time: MessageBuckets
    own: MessageBuckets
    limits: Limits
    """The flows' own limits, as the policy has them."""

    @classmethod
    def of(cls, entered: BatchFlows, limits: MessageLimits | None) -> FlowTime | None:
        """Return the time of a batch's flows at the time of the batch; `None` if it holds none of them back."""
        is_shut = enforced_time(entered.limits) == 0 if entered.limits.time is not None else None
        if limits is None and (is_shut is None or not is_shut.any()):
            return None
        flows = len(entered.flows)
        at, shut = np.full(flows, -1, dtype=np.int64), np.zeros(flows, dtype=np.bool_) if is_shut is None else is_shut
        time = MessageBuckets(np.where(shut, -1, 0), np.where(shut, 0, UNLIMITED), np.zeros(flows, dtype=np.int64))
        if limits is not None and len(limits.names):
            at = positions_in(limits.names, entered.flows.names)
            told = limits.own.take(at)
            has_limit = (at >= 0) & ~shut
            time = MessageBuckets(
                *(np.where(has_limit, getattr(told, name), getattr(time, name)) for name in MessageBuckets.__slots__)
            )
        if not time.is_limited.any():
            return None
        balance, own = entered.flows.balance_micro, entered.limits
        beside = MessageBuckets(
            balance[:, _MESSAGES], own.rate_micro_per_ms[:, _MESSAGES], own.burst_micro[:, _MESSAGES]
        )
        return cls(at, time, beside, own)

    def in_force(self, entered: BatchFlows) -> BatchFlows:
        """Return the batch's flows with the smaller balances, and with limits on messages where time limits them."""
        is_timed, is_both = self.time.is_limited, self.time.is_limited & self.own.is_limited
        balance, limits = entered.flows.balance_micro.copy(), entered.limits
        rate = limits.rate_micro_per_ms.copy()
        balance[:, _MESSAGES] = self._least_micro
        rate[is_timed, _MESSAGES] = self.time.rate_micro_per_ms[is_timed]
        least = np.minimum(self.time.rate_micro_per_ms, self.own.rate_micro_per_ms)
        rate[is_both, _MESSAGES] = least[is_both]
        return replace(
            entered,
            flows=replace(entered.flows, balance_micro=balance),
            limits=replace(limits, rate_micro_per_ms=rate),
        )

    def put_back(self, plan: FlowPlan) -> FlowPlan:
        """Return a plan whose balances are those of the flows' own limits, and whose time is less what was used."""
        balance = plan.balance_micro.copy()
        own_micro = balance[:, _MESSAGES] + self.own.balance_micro - self._least_micro
        balance[:, _MESSAGES] = np.where(self.own.is_limited, own_micro, 0)
        shared, limits = plan.shared, plan.shared.time
        if limits is not None:
            held = np.flatnonzero(self.at >= 0)
            messages = np.zeros(len(limits.names), dtype=np.int64)
            messages[self.at[held]] = plan.outcome.served[held, _MESSAGES]
            shared = replace(shared, time=replace(limits, own=limits.own.less(messages)))
        return replace(plan, balance_micro=balance, shared=shared)

    def after(self, plan: FlowPlan) -> MessageBuckets:
        """Return what the time of every flow lets through after the batch."""
        return self.time.less(plan.outcome.served[:, _MESSAGES])

    @property
    def _least_micro(self) -> Int64s:
        """The smaller balance of every flow."""
        time, own = self.time, self.own
        least = np.where(own.is_limited, np.minimum(time.balance_micro, own.balance_micro), time.balance_micro)
        return np.where(time.is_limited, least, own.balance_micro)


def own_throttle_ms(plan: FlowPlan, batch: MicroBatch) -> Int64s:
    """Return how long the limits of every flow itself owe anything after the batch, shape (flows, 2)."""
    if batch.time is None:
        return throttle_time_ms(plan.balance_micro, batch.entered.limits.rate_micro_per_ms)
    wait_ms = throttle_time_ms(plan.balance_micro, batch.time.limits.rate_micro_per_ms)
    wait_ms[:, _MESSAGES] = np.maximum(wait_ms[:, _MESSAGES], batch.time.after(plan).wait_ms)
    return wait_ms


def told_dimension(stops: Stops, batch: MicroBatch) -> Int64s:
    """Return the dimension that stopped each flow, `TIME` where its time lets less through than the limit itself."""
    limits = batch.shared.time
    if limits is None and batch.time is None:
        return stops.dimension
    is_by_time = np.zeros(len(stops.scope), dtype=np.bool_)
    if limits is not None:
        quotas = under_share(batch.quotas, batch.shared.share_micro_per_ms)
        is_by_time = (stops.scope >= 0) & limits.is_by_time(batch.shared.balance_micro, quotas)[stops.scope]
    if batch.time is not None:
        is_by_time |= (stops.scope < 0) & is_stricter(batch.time.time, batch.time.own)
    return np.where((stops.dimension == _MESSAGES) & is_by_time, TIME, stops.dimension)
