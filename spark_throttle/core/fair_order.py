"""The fair order of a batch's rows: domains, start tags, and the leads that the batch leaves (see `fair_queue`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from spark_throttle.core.fair_queue import DELTA, VT_MAX, base_clocks, least_service, virtual_time
from spark_throttle.core.layout import Layout
from spark_throttle.core.matching import Matches
from spark_throttle.core.quota import MAX_SIZE_BYTES, Bools, CompiledPolicy, Dimension, Int64s, Limits, OnExcess
from spark_throttle.core.segments import by_row

_DOMAIN_COLUMNS = (1, 0, 2)
"""Columns of `Matches.shared_scope` in the order in which a flow's domain is sought: group, tenant, job."""


MESSAGE_MILLI: Final = np.array([1, MAX_SIZE_BYTES], dtype=np.int64) * 1000
"""By `Dimension`, in thousandths of a token: the largest message, by which a flow is ahead at most."""


@dataclass(frozen=True, slots=True, eq=False)
class FairOrder:
    """What decides whose row goes next; arrays run over the flows."""

    enforcing: Int64s
    """Shape (flows, 3): the shared scopes that can stop the flow, -1 where there is none."""

    observing: Int64s
    """Shape (flows, 3): the shared scopes that only mark its rows, -1 where there is none."""

    domain: Int64s
    """The shared scope whose tokens the flow competes for, -1 for none."""

    is_limited: Bools
    """Shape (flows, 2): the dimensions that the domain limits."""

    rate_micro_per_ms: Int64s
    """Shape (flows, 2): of the domain."""

    weight: Int64s
    domain_weight: Int64s
    clock: Int64s
    """Shape (flows, 2): virtual time at which the flow enters the batch."""

    @classmethod
    def of(cls, lead: Int64s, limits: Limits, matches: Matches, policy: CompiledPolicy) -> FairOrder:
        """Find the domain of every flow, and where it stands in it with its `lead`."""
        shared = policy.shared
        has_limit = np.append(shared.is_limited.any(axis=1), False)[matches.shared_scope]
        is_observing = np.append(shared.on_excess == OnExcess.OBSERVE, False)[matches.shared_scope]
        enforcing = np.where(has_limit & ~is_observing, matches.shared_scope, -1)
        observing = np.where(has_limit & is_observing, matches.shared_scope, -1)
        domain = np.full(len(lead), -1, dtype=np.int64)
        for column in _DOMAIN_COLUMNS:
            domain = np.where(domain < 0, enforcing[:, column], domain)
        has_domain = domain >= 0
        is_limited = shared.is_limited.take(domain, axis=0) & has_domain[:, None]
        return cls(
            enforcing,
            observing,
            domain,
            is_limited,
            shared.rate_micro_per_ms.take(domain, axis=0),
            limits.weight,
            np.where(has_domain, shared.weight[domain], 1),
            base_clocks(lead, is_limited),
        )

    def take(self, at: Int64s) -> FairOrder:
        """Return this of the flows at `at`, in that order."""
        return FairOrder(*(getattr(self, field.name).take(at, axis=0) for field in fields(self)))

    def tags(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return the start tags of rows, relative to their domain's virtual time; 0 without a domain."""
        tag = np.full(len(flow), -DELTA, dtype=np.int64)
        for dimension, before in ((Dimension.MESSAGES, messages_before), (Dimension.BYTES, bytes_before)):
            is_limited = self.is_limited[flow, dimension]
            if is_limited.any():
                service = virtual_time(before, self.rate_micro_per_ms[flow, dimension], self.weight[flow])
                tag = np.where(is_limited, np.maximum(tag, self.clock[flow, dimension] + service), tag)
        return np.where(self.domain[flow] >= 0, tag, 0)

    def keys(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return what rows of different domains are ordered by: a domain of twice the weight goes twice as far."""
        return self.tags(flow, messages_before, bytes_before) // self.domain_weight[flow]

    def leads_after(
        self, lead: Int64s, layout: Layout, eligible: Int64s, served: Int64s, is_contended: Bools
    ) -> Int64s:
        """Return the leads after a batch in which `served` messages and bytes of every flow were admitted.

        The virtual time of a scope is the largest key that was served in it. A flow competes where that is least, among
        its contended scopes: there it was stopped first. So those whom one scope stops keep a common order, whatever
        their domains are, and however far others of their domains went.

        Parameters
        ----------
        is_contended
            Of every scope, and at last of none: whether it held a flow back, or is overdrawn. Others forget leads.
        """
        contended = np.where(is_contended[self.enforcing], self.enforcing, -1)
        competes = by_row(np.logical_or, contended >= 0)
        if not competes.any():
            return np.zeros_like(lead)
        moved = np.flatnonzero(competes & (served[:, Dimension.MESSAGES] > 0))
        last = served[moved, Dimension.MESSAGES] - 1
        last_key = self.keys(moved, last, layout.bytes_before(moved, last))
        virtual_now = np.zeros(len(is_contended), dtype=np.int64)
        for scope in contended[moved].T:
            np.maximum.at(virtual_now, scope, last_key)
        virtual_now[-1] = VT_MAX
        least_key = by_row(np.minimum, virtual_now[contended])
        service = virtual_time(served, self.rate_micro_per_ms, self.weight[:, None], round_up=True)
        clock = np.where((eligible > 0)[:, None], self.clock + service, lead)
        after = np.maximum(clock - np.where(competes, least_key, 0)[:, None] * self.domain_weight[:, None], -DELTA)
        return np.where(competes[:, None] & self.is_limited, after, 0)


def ahead_of_others(lead: Int64s, limits: Limits, matches: Matches, policy: CompiledPolicy) -> Int64s:
    """Return by how many thousandths of a token flows are ahead of those that they compete with, shape (flows, 2)."""
    if not (lead > 0).any():
        return np.zeros_like(lead)
    order = FairOrder.of(lead, limits, matches, policy)
    ahead = np.where(order.is_limited, np.maximum(lead, 0), 0)
    return np.minimum(least_service(ahead, order.rate_micro_per_ms, order.weight[:, None]), MESSAGE_MILLI)
