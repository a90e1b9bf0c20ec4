"""The fair order of a batch's rows: domains, start tags, and the leads that the batch leaves (see `fair_queue`)."""

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
    least_service,
    virtual_time,
)
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.names.matching import Matches, domains_of, enforcing_scopes
from spark_throttle.core.quota import MAX_SIZE_BYTES, Bools, CompiledPolicy, Dimension, Int64s, Limits, OnExcess

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES
_WIDER_COLUMNS = (0, 2)
"""Columns of `Matches.shared_scope` of scopes that may be wider than a domain: the tenant, the job."""

_JOB_COLUMN = 2

_MESSAGES_RATE: Final = 1_000_000
_BYTES_RATE: Final = _MESSAGES_RATE << 10
_LEAST_BYTES_RATE: Final = _MESSAGES_RATE
"""In the common time, in micro-tokens a millisecond."""


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

    has_clock: Bools
    """Shape (flows, 2): the dimensions that a scope limits which can stop the flow."""

    is_counted: Bools
    """Shape (flows, 2): those of them that its domain limits, or, where some scopes are short, that these do."""

    binding: Int64s
    """Shape (flows, 3): those of `enforcing` that competition is for; all, where it is for none of them."""

    lead_rate_micro_per_ms: Int64s
    """Shape (flows, 2): of the domain, or of a wider scope where only that limits the dimension, in the common time.
    Leads are kept in it."""

    rate_micro_per_ms: Int64s
    """Shape (flows, 2): what service counts in, in this batch: of the widest scope that competition is for."""

    memory_vt: Int64s
    """How far behind the virtual time the lesser of two clocks is remembered: `MEMORY_SECONDS` of that scope."""

    weight: Int64s
    domain_weight: Int64s
    """Claim of the domain in wider scopes; 1 where it is the job."""

    clock_vt: Int64s
    """Shape (flows, 2): virtual time at which the flow enters the batch; 0 before it is known who is ahead."""

    @classmethod
    def of(cls, limits: Limits, matches: Matches, policy: CompiledPolicy, is_loose: Bools | None = None) -> FairOrder:
        """Find the domain of every flow, and the time that it counts in.

        Parameters
        ----------
        is_loose
            Of every scope: whether others stop its flows before it does (`state.NO_CONTEST`). By default, none is.
        """
        shared = policy.shared
        enforcing = enforcing_scopes(matches.shared_scope, policy)
        observes = np.append(by_row(np.logical_or, shared.is_limited) & (shared.on_excess == OnExcess.OBSERVE), False)
        observing = np.where(observes[matches.shared_scope], matches.shared_scope, -1)
        domain = domains_of(enforcing)
        is_limited = limited_by(domain[:, None], shared.is_limited)
        has_clock = limited_by(enforcing, shared.is_limited)
        common = _in_common_time(shared.rate_micro_per_ms)
        kept = common.take(domain, axis=0)
        for column in _WIDER_COLUMNS:
            wider = enforcing[:, column]
            adds = ~is_limited & limited_by(wider[:, None], shared.is_limited)
            kept = np.where(adds, common.take(wider, axis=0), kept)
        binding = enforcing if is_loose is None else _without(enforcing, is_loose)
        short = _widest_of(binding)
        counted, is_other = kept, short != domain
        if is_other.any():
            of_short = is_other[:, None] & limited_by(short[:, None], shared.is_limited)
            counted = np.where(of_short, common.take(short, axis=0), kept)
        return cls(
            enforcing,
            observing,
            domain,
            has_clock,
            is_limited,
            binding,
            kept,
            counted,
            _memory(shared.rate_micro_per_ms, common).take(short),
            limits.weight,
            np.where(domain > 0, shared.weight[domain], 1),
            np.zeros(is_limited.shape, dtype=np.int64),
        )

    def entered(self, lead_vt: Int64s, short: Int64s, policy: CompiledPolicy) -> FairOrder:
        """Return the order of a batch, which flows enter with their leads: service counts in what is scarce.

        Parameters
        ----------
        lead
            Shape (flows, 2).
        short
            Shape (flows, 3): the scopes that run short, -1 where none does.
        """
        short = _first_of(np.where(short == self.binding, short, -1), short)
        limited = limited_by(short, policy.shared.is_limited)
        is_counted = np.where(by_row(np.logical_or, limited)[:, None], limited, self.is_counted)
        told = _told_in(lead_vt, self.lead_rate_micro_per_ms, self.rate_micro_per_ms)
        return replace(self, is_counted=is_counted, clock_vt=base_clocks(told, is_counted, self.memory_vt))

    def take(self, at: Int64s) -> FairOrder:
        """Return this of the flows at `at`, in that order."""
        return FairOrder(*(getattr(self, field.name).take(at, axis=0) for field in fields(self)))

    def tags(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return the start tags of rows, relative to their domain's virtual time; 0 without a domain."""
        tag = np.full(len(flow), -VT_MAX, dtype=np.int64)
        for dimension, before in ((Dimension.MESSAGES, messages_before), (Dimension.BYTES, bytes_before)):
            is_counted = self.is_counted[flow, dimension]
            if is_counted.any():
                service = virtual_time(before, self.rate_micro_per_ms[flow, dimension], self.weight[flow])
                tag = np.where(is_counted, np.maximum(tag, self.clock_vt[flow, dimension] + service), tag)
        return np.where(self.domain[flow] >= 0, tag, 0)

    def keys(self, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        """Return what rows of different domains are ordered by: a domain of twice the weight goes twice as far."""
        return self.tags(flow, messages_before, bytes_before) // self.domain_weight[flow]

    def ahead_milli(self, lead_vt: Int64s) -> Int64s:
        """Return by how many thousandths of a token flows are ahead of their competitors, shape (flows, 2)."""
        ahead = np.where(self.has_clock, np.maximum(lead_vt, 0), 0)
        return np.minimum(least_service(ahead, self.lead_rate_micro_per_ms, self.weight[:, None]), MESSAGE_MILLI)

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

        The virtual time of a scope is the largest key that was served in it. A flow competes where that is least, among
        its contended scopes that are not loose: there it was stopped first. So those whom one scope stops keep a common
        order, whatever their domains are, and however far others of their domains went. In a dimension that is not
        counted, a flow stays as far ahead as it was, while a scope that limits it holds anybody back.

        Parameters
        ----------
        is_contended
            Of every scope, and at last of none: whether it held a flow back, or is overdrawn. Others forget leads.
        """
        holding = np.where(is_contended[self.enforcing], self.enforcing, -1)
        contended = _first_of(np.where(holding == self.binding, holding, -1), holding)
        competes = by_row(np.logical_or, contended >= 0)
        if not competes.any():
            return np.zeros_like(lead_vt)
        moved = np.flatnonzero(competes & (served[:, Dimension.MESSAGES] > 0))
        last = served[moved, Dimension.MESSAGES] - 1
        last_key = self.keys(moved, last, layout.bytes_before(moved, last))
        virtual_now = np.zeros(len(is_contended), dtype=np.int64)
        for scope in contended[moved].T:
            np.maximum.at(virtual_now, scope, last_key)
        virtual_now[-1] = VT_MAX
        least_key = by_row(np.minimum, virtual_now[contended])
        service = virtual_time(served, self.rate_micro_per_ms, self.weight[:, None], round_up=True)
        told = _told_in(lead_vt, self.lead_rate_micro_per_ms, self.rate_micro_per_ms)
        clock_vt = np.where((eligible > 0)[:, None], self.clock_vt + service, told)
        after = np.maximum(
            clock_vt - np.where(competes, least_key, 0)[:, None] * self.domain_weight[:, None], -self.memory_vt[:, None]
        )
        after = np.where(after == told, lead_vt, _told_in(after, self.rate_micro_per_ms, self.lead_rate_micro_per_ms))
        is_kept = limited_by(holding, policy.shared.is_limited)
        return np.where(is_kept, np.where(self.is_counted, after, lead_vt), 0)


def limited_by(scopes: Int64s, is_limited: Bools) -> Bools:
    """Return which dimensions some of the scopes of every flow limit, shape (flows, 2).

    Parameters
    ----------
    scopes
        Shape (flows, k); -1 stands for none.
    is_limited
        Shape (scopes, 2).
    """
    table = np.concatenate([is_limited, np.zeros((1, 2), dtype=np.bool_)])
    out = table[scopes[:, 0]]
    for column in scopes.T[1:]:
        out = out | table[column]
    return out


def _without(scopes: Int64s, is_left_out: Bools) -> Int64s:
    """Return the scopes of every flow, shape (flows, 3), without some; all of them where none is left."""
    return _first_of(np.where(np.append(is_left_out, False)[scopes], -1, scopes), scopes)


def _widest_of(scopes: Int64s) -> Int64s:
    """Return the widest scope of every flow, -1 where it has none."""
    group, tenant, job = scopes[:, 1], scopes[:, 0], scopes[:, _JOB_COLUMN]
    return np.where(job >= 0, job, np.where(tenant >= 0, tenant, group))


def _first_of(scopes: Int64s, otherwise: Int64s) -> Int64s:
    """Return the scopes of every flow, or the others where it has none of them."""
    return np.where(by_row(np.logical_or, scopes >= 0)[:, None], scopes, otherwise)


def _told_in(lead_vt: Int64s, of: Int64s, rate: Int64s) -> Int64s:
    """Return leads that were told at the rates `of` as leads at `rate`; all of shape (flows, 2)."""
    flow, dimension = np.nonzero((of != rate) & (lead_vt != 0)) if rate is not of else ((), ())
    if not len(flow):
        return lead_vt
    told, other = lead_vt.copy(), lead_vt[flow, dimension]
    size = proportional(np.abs(other), of[flow, dimension], rate[flow, dimension], most_bits=VT_MAX.bit_length() - 1)
    told[flow, dimension] = np.sign(other) * size
    return told


def _in_common_time(rate: Int64s) -> Int64s:
    """Return the rates of scopes, shape (n, 2), in the time that all of them count in.

    In that time a message takes a thousandth of a second in every scope that limits messages, and 1,024 bytes do in
    every scope that limits bytes alone. The bytes of a scope that limits both keep their proportion to its messages.
    But a byte takes no longer than a message does elsewhere, so that no clock saturates where messages have no real
    limit.

    Examples
    --------
    Of 10 messages and 20,480 bytes a second, of bytes alone, and of messages alone; told as messages and KiB a second:

    >>> rates = np.array([[10_000, 20_480_000], [-1, 77], [5, -1]])
    >>> (_in_common_time(rates) / [1_000, 1_024_000]).tolist()
    [[1000.0, 2000.0], [-0.001, 1000.0], [1000.0, -9.765625e-07]]
    """
    messages, size_bytes = rate.T
    at_messages, least = np.full_like(messages, _MESSAGES_RATE), np.full_like(messages, _LEAST_BYTES_RATE)
    by_messages = proportional(size_bytes, at_messages, messages)
    is_slow = (messages > 0) & (size_bytes > 0) & (by_messages < least)
    of_messages = np.where(is_slow, proportional(messages, least, size_bytes), at_messages)
    of_bytes = np.where(messages > 0, np.maximum(by_messages, least), _BYTES_RATE)
    told = np.stack([np.where(messages > 0, of_messages, -1), np.where(size_bytes > 0, of_bytes, -1)], axis=1)
    return np.where(by_row(np.logical_or, rate == 0)[:, None], rate, told)


def _memory(rate: Int64s, common: Int64s) -> Int64s:
    """Return, of every scope and at last of none, what `MEMORY_SECONDS` at its own rates take in the common time."""
    seconds = np.full(rate.shape, MEMORY_SECONDS << VT_BITS)
    told = proportional(seconds, rate, np.maximum(common, 1), most_bits=VT_MAX.bit_length() - 1)
    return np.append(by_row(np.maximum, told), 0)
