"""The fair order of a batch's rows: domains, start tags, and the leads that the batch leaves (`fair_queue`)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.fair.fair_queue import (
    MEMORY_SECONDS,
    VT_BITS,
    VT_MAX,
    base_clocks,
    service_units,
    virtual_time,
)
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.names.matching import Matches, domains_of, enforcing_scopes, scopes_where
from spark_throttle.core.quota import MAX_SIZE_BYTES, Bools, CompiledPolicy, Dimension, Int64s, Limits

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES
_WIDER_COLUMNS = (0, 2)
"""The columns of `Matches.shared_scope` whose scopes may be wider than a domain: the tenant, the job."""

_JOB_COLUMN = 2

_MESSAGES_RATE: Final = 1_000_000
_BYTES_RATE: Final = _MESSAGES_RATE << 10
_LEAST_BYTES_RATE: Final = _MESSAGES_RATE
"""Rates in the common time, in micro-tokens per millisecond (`_in_common_time`)."""


MESSAGE_MILLI: Final = np.array([1, MAX_SIZE_BYTES], dtype=np.int64) * 1000
"""The largest message, by `Dimension` and in thousandths of a token; a flow is ahead by at most that."""


@dataclass(frozen=True, slots=True, eq=False)
class FairOrder:
    """The data that decides whose row goes next; arrays run over the flows."""

    enforcing: Int64s
    """Shape (flows, 3): the shared scopes that can stop the flow, -1 where there is none."""

    domain: Int64s
    """The shared scope whose tokens the flow competes for, -1 for none."""

    has_clock: Bools
    """Shape (flows, 2): whether a scope that can stop the flow limits the dimension."""

    is_counted: Bools
    """Shape (flows, 2): whether the dimension counts in the order: whether the domain limits it, or, once it is known
    which scopes run short, whether any of those does."""

    lead_rate_micro_per_ms: Int64s
    """Shape (flows, 2): the rates in which leads are kept, in the common time: those of the domain, or of a wider scope
    where only that one limits the dimension. Prices do not count: a lead stays as many messages while they change."""

    rate_micro_per_ms: Int64s
    """Shape (flows, 2): the rates by which service counts in this batch: those of the widest scope in `enforcing`, or
    `lead_rate_micro_per_ms` where that scope does not limit the dimension; by the prices of messages, if they count."""

    memory_vt: Int64s
    """How far behind the virtual time the lesser of two clocks is remembered: `MEMORY_SECONDS` at the own rates of the
    widest scope in `enforcing`."""

    weight: Int64s
    domain_weight: Int64s
    """The weight of the domain in wider scopes; 1 where the domain is the job."""

    clock_vt: Int64s
    """Shape (flows, 2): the virtual time at which the flow enters the batch; 0 until `entered`, and where the dimension
    does not count."""

    token_service: Int64s
    """Shape (flows, 2): the service of a token (`service_units`); 0 until `entered`, and where the dimension does not
    count."""

    second_service: Int64s
    """Shape (flows, 2): the service of a second of virtual time; 1 until `entered`."""

    @classmethod
    def of(
        cls,
        limits: Limits,
        matches: Matches,
        policy: CompiledPolicy,
        prices: MessagePrices | None = None,
    ) -> FairOrder:
        """Find the domain of every flow, and the rates by which its service counts.

        Parameters
        ----------
        prices
            The prices of the flows' messages, where scopes are divided by time.
        """
        shared = policy.shared
        enforcing = enforcing_scopes(matches.shared_scope, policy)
        domain = domains_of(enforcing)
        is_limited = limited_by(domain[:, None], shared.is_limited)
        has_clock = limited_by(enforcing, shared.is_limited)
        common = _in_common_time(shared.rate_micro_per_ms)

        def priced(rates: Int64s, scope: Int64s) -> Int64s:
            return rates if prices is None else prices.rates(rates, scope)

        kept = common.take(domain, axis=0)
        counted = priced(kept, domain)
        for column in _WIDER_COLUMNS:
            wider = enforcing[:, column]
            adds = ~is_limited & limited_by(wider[:, None], shared.is_limited)
            if adds.any():
                of_wider = common.take(wider, axis=0)
                kept = np.where(adds, of_wider, kept)
                counted = kept if prices is None else np.where(adds, prices.rates(of_wider, wider), counted)
        short = _widest_of(enforcing)
        is_other = short != domain
        if is_other.any():
            of_short = is_other[:, None] & limited_by(short[:, None], shared.is_limited)
            counted = np.where(of_short, priced(common.take(short, axis=0), short), counted)
        return cls(
            enforcing,
            domain,
            has_clock,
            is_limited,
            kept,
            counted,
            _memory(shared.rate_micro_per_ms, common).take(short),
            limits.weight,
            np.where(domain > 0, shared.weight.take(domain), 1),
            np.zeros_like(counted),
            np.zeros_like(counted),
            np.ones_like(counted),
        )

    def entered(self, lead_vt: Int64s, short: Int64s, policy: CompiledPolicy) -> FairOrder:
        """Return the order of a batch that flows enter with their leads: service counts in the scarce dimensions.

        Parameters
        ----------
        lead_vt
            Shape (flows, 2): the leads of the flows.
        short
            Shape (flows, 3): the scopes of each flow that run short, -1 for its other scopes.
        """
        limited = limited_by(short, policy.shared.is_limited)
        is_counted = np.where(by_row(np.logical_or, limited)[:, None], limited, self.is_counted)
        told = _told_in(lead_vt, self.lead_rate_micro_per_ms, self.rate_micro_per_ms)
        clock_vt = base_clocks(told, is_counted, self.memory_vt)
        token, second = service_units(self.rate_micro_per_ms, self.weight[:, None])
        return replace(
            self, is_counted=is_counted, clock_vt=clock_vt, token_service=token * is_counted, second_service=second
        )

    def take(self, at: Int64s) -> FairOrder:
        """Return the order of the flows at `at`, in that sequence."""
        return FairOrder(*(getattr(self, field.name).take(at, axis=0) for field in fields(self)))

    def tags(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return the start tags of rows, relative to the virtual time of their domain; 0 without a domain.

        The clock of a dimension that does not count stands at 0, and the larger of the others is never behind that.
        """
        tag = np.zeros(len(flow), dtype=np.int64)
        for dimension, before in ((Dimension.MESSAGES, messages_before), (Dimension.BYTES, bytes_before)):
            clock_vt, token, second = self.clock_vt, self.token_service, self.second_service
            if self.is_counted[:, dimension].any():
                service = virtual_time(before, token[flow, dimension], second[flow, dimension])
                tag = np.maximum(tag, clock_vt[flow, dimension] + service)
        return tag

    def keys(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return the keys that order rows across domains: a domain of twice the weight goes twice as far."""
        return self.tags(flow, messages_before, bytes_before) // self.domain_weight[flow]

    def leads_after(
        self,
        lead_vt: Int64s,
        layout: Layout,
        eligible: Int64s,
        served: Int64s,
        is_contended: Bools,
        policy: CompiledPolicy,
    ) -> Int64s:
        """Return the leads after a batch in which `served` messages and bytes of every flow were admitted.

        The virtual time of a scope is the largest key that was served in it. Among its contended scopes, a flow
        competes in the one whose virtual time is least: that scope stopped it first. So the flows that one scope stops
        keep a common order, whatever their domains are, and however far other flows of those domains went. In a
        dimension that does not count, a flow stays as far ahead as it was while a scope that limits the
        dimension holds any flow back.

        Parameters
        ----------
        is_contended
            Whether each scope held a flow back or is overdrawn. Other scopes forget leads.
        """
        holding = scopes_where(is_contended, self.enforcing)
        competes = by_row(np.logical_or, holding >= 0)
        if not competes.any():
            return np.zeros_like(lead_vt)
        moved = np.flatnonzero(competes & (served[:, Dimension.MESSAGES] > 0))
        last = served[moved, Dimension.MESSAGES] - 1
        last_key = self.keys(moved, last, layout.bytes_before(moved, last))
        virtual_now = np.zeros(len(is_contended) + 1, dtype=np.int64)
        for scope in holding.take(moved, axis=0).T:
            np.maximum.at(virtual_now, scope, last_key)
        virtual_now[-1] = VT_MAX
        least_key = by_row(np.minimum, virtual_now[holding])
        service = virtual_time(served, self.token_service, self.second_service, round_up=True)
        told = _told_in(lead_vt, self.lead_rate_micro_per_ms, self.rate_micro_per_ms)
        clock_vt = np.where((eligible > 0)[:, None], self.clock_vt + service, told)
        after = np.maximum(
            clock_vt - np.where(competes, least_key, 0)[:, None] * self.domain_weight[:, None], -self.memory_vt[:, None]
        )
        after = np.where(after == told, lead_vt, self._kept(after, lead_vt, served))
        is_kept = limited_by(holding, policy.shared.is_limited)
        return np.where(is_kept, np.where(self.is_counted, after, lead_vt), 0)

    def _kept(self, after: Int64s, lead_vt: Int64s, served: Int64s) -> Int64s:
        """Return leads as they are kept, given the leads `after` a batch by which service counted.

        A lead grows by no more than the service. Where the two rates differ by much, a unit of the one time is many
        tokens in the other, and the service was rounded up to a unit.
        """
        if self.rate_micro_per_ms is self.lead_rate_micro_per_ms:
            return after
        told = _told_in(after, self.rate_micro_per_ms, self.lead_rate_micro_per_ms)
        service = virtual_time(served, *service_units(self.lead_rate_micro_per_ms, self.weight[:, None]), round_up=True)
        return np.minimum(told, np.maximum(lead_vt, 0) + service)


def limited_by(scopes: Int64s, is_limited: Bools) -> Bools:
    """Return whether any of the scopes of each flow limits the dimension, shape (flows, 2).

    Parameters
    ----------
    scopes
        Shape (flows, k): the scopes of each flow; -1 stands for none.
    is_limited
        Shape (scopes, 2): whether each scope limits the dimension.
    """
    table = np.concatenate([is_limited, np.zeros((1, 2), dtype=np.bool_)])
    out = table.take(scopes[:, 0], axis=0)
    for column in scopes.T[1:]:
        out |= table.take(column, axis=0)
    return out


def _widest_of(scopes: Int64s) -> Int64s:
    """Return the widest scope of every flow, -1 where it has none."""
    group, tenant, job = scopes[:, 1], scopes[:, 0], scopes[:, _JOB_COLUMN]
    return np.where(job >= 0, job, np.where(tenant >= 0, tenant, group))


def _told_in(lead_vt: Int64s, of: Int64s, rate: Int64s) -> Int64s:
    """Return leads at the rates `of`, converted to leads at `rate`; all have the shape (flows, 2)."""
    at = np.flatnonzero((of != rate) & (lead_vt != 0)) if rate is not of else ()
    if not len(at):
        return lead_vt
    told, other = lead_vt.copy(), lead_vt.take(at)
    size = proportional(np.abs(other), of.take(at), rate.take(at), most_bits=VT_MAX.bit_length() - 1)
    np.put(told, at, np.sign(other) * size)
    return told


def _in_common_time(rate: Int64s) -> Int64s:
    """Return the rates of scopes, shape (n, 2), in the common time in which all scopes count.

    In that time, a message takes a thousandth of a second in every scope that limits messages, as 1,024 bytes do in
    every scope that limits bytes alone. The bytes of a scope that limits both keep their proportion to its messages,
    except that a byte takes at most as long as a message does elsewhere, so that no clock saturates where messages have
    no real limit.

    Examples
    --------
    Scopes of 10 messages and 20,480 bytes per second, of bytes alone, and of messages alone; the result is shown in
    messages and KiB per second:

    >>> rates = np.array([[10_000, 20_480_000], [-1, 77], [5, -1]])
    >>> (_in_common_time(rates) / [1_000, 1_024_000]).tolist()
    [[1000.0, 2000.0], [-0.001, 1000.0], [1000.0, -9.765625e-07]]
    """
    messages, size_bytes = rate.T
    at_messages, least = np.full_like(messages, _MESSAGES_RATE), np.full_like(messages, _LEAST_BYTES_RATE)
    by_messages = proportional(size_bytes, at_messages, messages)
    is_slow = (messages > 0) & (size_bytes > 0) & (by_messages < least)
    of_messages = at_messages
    if is_slow.any():
        of_messages = np.where(is_slow, proportional(messages, least, size_bytes), at_messages)
    of_bytes = np.where(messages > 0, np.maximum(by_messages, least), _BYTES_RATE)
    told = np.stack([np.where(messages > 0, of_messages, -1), np.where(size_bytes > 0, of_bytes, -1)], axis=1)
    return np.where(by_row(np.logical_or, rate == 0)[:, None], rate, told)


def _memory(rate: Int64s, common: Int64s) -> Int64s:
    """Return how long `MEMORY_SECONDS` at its own rates take in the common time, for every scope, then for no scope."""
    seconds = np.full(rate.shape, MEMORY_SECONDS << VT_BITS)
    told = proportional(seconds, rate, np.maximum(common, 1), most_bits=VT_MAX.bit_length() - 1)
    return np.append(by_row(np.maximum, told), 0)
