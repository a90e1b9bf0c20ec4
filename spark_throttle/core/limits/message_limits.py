"""Quotas on processing time, for one epoch, as limits on messages; and the stricter of two limits.

What a row costs in time is known only after it was processed. So the time that a scope has left is told in messages, at
the price that its last messages had (`time_quota.time_ledger`), and holds rows back as a limit on messages does. These
limits are pinned by an epoch. The policy's own limits and their buckets are kept beside them: of the two, the one that
lets less through is in force.

An observing scope has no such limit: its time is measured, and holds nothing back. A quota of 0 admits nothing,
whatever a message costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.limits.token_bucket import debit, refill, throttle_time_ms
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, Limits, OnExcess

_MESSAGES = Dimension.MESSAGES


@dataclass(frozen=True, slots=True, eq=False)
class MessageBuckets:
    """Token buckets of messages, one position per scope."""

    balance_micro: Int64s
    rate_micro_per_ms: Int64s
    """`UNLIMITED` where there is no limit."""

    burst_micro: Int64s

    @property
    def is_limited(self) -> Bools:
        """Whether each scope has a limit."""
        return self.rate_micro_per_ms != UNLIMITED

    @property
    def wait_ms(self) -> Int64s:
        """How long each balance stays below zero."""
        return throttle_time_ms(self.balance_micro, self.rate_micro_per_ms)

    def take(self, at: Int64s) -> MessageBuckets:
        """Return the buckets at `at`, in that order."""
        return MessageBuckets(self.balance_micro[at], self.rate_micro_per_ms[at], self.burst_micro[at])

    def grown(self, elapsed_ms: int) -> MessageBuckets:
        """Return the buckets `elapsed_ms` later."""
        return replace(
            self, balance_micro=refill(self.balance_micro, self.rate_micro_per_ms, self.burst_micro, elapsed_ms)
        )

    def less(self, messages: Int64s) -> MessageBuckets:
        """Return the buckets less messages that were taken."""
        return replace(self, balance_micro=np.where(self.is_limited, debit(self.balance_micro, messages), 0))


def is_stricter(time: MessageBuckets, own: MessageBuckets) -> Bools:
    """Return where `time` lets less through than `own`: it waits longer or, if neither waits, holds less.

    Examples
    --------
    >>> own, half = (MessageBuckets(np.array(held), np.array([1, 1]), np.array([9, 9])) for held in ([5, 5], [7, -5]))
    >>> is_stricter(half, own).tolist()
    [False, True]
    """
    time_ms, own_ms = time.wait_ms, own.wait_ms
    is_less = (time_ms > own_ms) | ((time_ms == own_ms) & (time.balance_micro < own.balance_micro))
    return time.is_limited & (~own.is_limited | is_less)


def stricter(time: MessageBuckets, own: MessageBuckets) -> MessageBuckets:
    """Return buckets that let through no more than either of two lets through, now and while they fill.

    The lower rate is in force, and the debt is as long as the longer of the two.

    Examples
    --------
    A debt of 5 ms at 2 micro-tokens per millisecond, where the other limit earns 1:

    >>> one, other = (MessageBuckets(np.array([b]), np.array([r]), np.array([9])) for b, r in ((-10, 2), (3, 1)))
    >>> both = stricter(one, other)
    >>> both.balance_micro.tolist(), both.rate_micro_per_ms.tolist()
    ([-5], [1])
    """
    is_both, is_times = time.is_limited & own.is_limited, is_stricter(time, own)
    held, chosen, other_burst = (
        np.where(is_times, getattr(time, name), getattr(own, name))
        for name in ("balance_micro", "rate_micro_per_ms", "burst_micro")
    )
    rate = np.where(is_both, np.minimum(time.rate_micro_per_ms, own.rate_micro_per_ms), chosen)
    burst = np.where(is_both, np.minimum(time.burst_micro, own.burst_micro), other_burst)
    # A debt at the higher rate, told at the lower one; that is no more than the debt, and a millisecond's tokens.
    is_told = is_both & (held < 0) & (rate > 0) & (rate != chosen)
    wait_ms = np.where(is_told, np.where(is_times, time.wait_ms, own.wait_ms), 0)
    balance = np.where(is_told, -wait_ms * rate, np.minimum(held, burst))
    return MessageBuckets(np.where(is_both & (rate == 0), np.minimum(held, -1), balance), rate, burst)


@dataclass(frozen=True, slots=True, eq=False)
class MessageLimits:
    """The quotas on processing time that an epoch pins, as limits on messages."""

    shared: MessageBuckets
    """What the time of every shared scope lets through; the scopes' own limits on messages are not in it."""

    is_unleased: Bools
    """Shape (scopes,): whether the job has no share of the scope's time or messages, though its quota is not 0."""

    names: pa.StringArray
    """The namespaces whose own time is limited, and whose price is known or that are in debt; and those whose price
    divides the time of a shared scope."""

    own: MessageBuckets
    """What their time lets through; their own limits on messages are not in it."""

    prices: MessagePrices | None = None
    """The prices by which shared scopes are divided, of the same namespaces; `None` if none is divided by time."""

    @property
    def limits_shared(self) -> bool:
        """Whether the time of any shared scope is limited."""
        return bool(self.shared.is_limited.any())

    def needed(self) -> MessageLimits:
        """Return these limits without the namespaces that they neither limit nor price."""
        is_needed = self.own.is_limited
        if self.prices is not None:
            is_needed = is_needed | (self.prices.own_ns > 0)
        if is_needed.all():
            return self
        at = np.flatnonzero(is_needed)
        prices = None if self.prices is None else MessagePrices.of(self.prices.own_ns[at], self.prices.shared_ns)
        return replace(self, names=self.names.take(pa.array(at)), own=self.own.take(at), prices=prices)

    def prices_of(self, names: pa.StringArray) -> MessagePrices | None:
        """Return the prices of namespaces, in that order; `None` if no shared scope is divided by time."""
        return None if self.prices is None else self.prices.of_names(names, self.names)

    def grown(self, elapsed_ms: int) -> MessageLimits:
        """Return these limits `elapsed_ms` later; the time of a scope of which the job has no share earns nothing."""
        shared = self.shared.grown(elapsed_ms)
        balance_micro = np.where(self.is_unleased, self.shared.balance_micro, shared.balance_micro)
        return replace(self, shared=replace(shared, balance_micro=balance_micro), own=self.own.grown(elapsed_ms))

    def less_shared(self, messages: Int64s) -> MessageLimits:
        """Return these limits less the messages that were taken of the shared scopes, shape (scopes,)."""
        return replace(self, shared=self.shared.less(messages))

    def is_by_time(self, balance_micro: Int64s, policy: CompiledPolicy) -> Bools:
        """Return at which shared scopes time lets less through than the balance of messages; shape (scopes,)."""
        shared = policy.shared
        own = MessageBuckets(
            balance_micro[:, _MESSAGES], shared.rate_micro_per_ms[:, _MESSAGES], shared.burst_micro[:, _MESSAGES]
        )
        return is_stricter(self.shared, own)


def under_time(policy: CompiledPolicy, limits: MessageLimits | None) -> CompiledPolicy:
    """Return a policy in which messages have the lower of their own rate and of what time lets through."""
    if limits is None or not limits.limits_shared:
        return policy
    shared, time = policy.shared, limits.shared
    rate, burst = shared.rate_micro_per_ms.copy(), shared.burst_micro.copy()
    for column, other in ((rate, time.rate_micro_per_ms), (burst, time.burst_micro)):
        both = np.minimum(column[:, _MESSAGES], other)
        is_limited = shared.is_limited[:, _MESSAGES]
        column[:, _MESSAGES] = np.where(time.is_limited, np.where(is_limited, both, other), column[:, _MESSAGES])
    return replace(policy, shared=replace(shared, rate_micro_per_ms=rate, burst_micro=burst))


def enforced_time(limits: Limits) -> Int64s:
    """Return the rates of the time quotas that hold rows back, in ns per ms, shape (n,); `UNLIMITED` for the others."""
    if limits.time is None:
        return np.full(len(limits), UNLIMITED, dtype=np.int64)
    return np.where(limits.on_excess == OnExcess.OBSERVE, UNLIMITED, limits.time.rate_ns_per_ms)
