"""Accounts of processing time, many at a time: what is left of each quota, and what a message cost.

A balance is a token bucket's (`token_bucket`), in nanoseconds of core time. It is debited after the work was done, so
it may end below zero, by at most what one batch used. A debt is repaid as a whole, however short the window is: KIP-124
cuts its throttle time to a window, and so forgives what is beyond it, all the more the shorter the window::

    throttle time = (used - quota) / quota * window = debt / rate

The price of a message is the time of the last batch over its messages, if that is higher than before: it rises at once.
It falls by at most half in a window, so that rows which are cheap for a while do not buy as many dear ones. A price
that stays the same is exact. It turns the balance into messages. Where no time was ever charged, there is no price, and
only a debt or a quota of 0 holds anything back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.limits.message_limits import MessageBuckets
from spark_throttle.core.limits.token_bucket import full, refill, throttle_time_ms
from spark_throttle.core.quota import MAX_BURST_TOKENS, MICRO, MIN_BALANCE_MICRO, UNLIMITED, Int64s, TimeQuotas
from spark_throttle.core.time_charges import MOST_NS

_MOST_MESSAGES = 1 << 40
_MOST_BALANCE_MICRO = MAX_BURST_TOKENS * MICRO
_BALANCE_BITS = 59
_TIME_BITS = 57
"""A batch counts for at most twice `MOST_NS`."""

_NO_WINDOW_MS = 1_000
"""The time in which the price of a scope without a quota falls by half: less than a window usually is, as such a price
is to hold up that of no wider scope."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeAccounts:
    """The accounts of many scopes, one position per scope."""

    balance_ns: Int64s
    """The time that is left; 0 where there is no quota."""

    time_ns: Int64s
    """What the messages of the last batch that had any count for: the time that they took, or more, while the price
    falls."""

    messages_micro: Int64s
    """The messages of that batch, in millionths."""

    @classmethod
    def opened(cls, quotas: TimeQuotas) -> TimeAccounts:
        """Return full accounts without a price."""
        nothing = np.zeros_like(quotas.rate_ns_per_ms)
        return cls(full(quotas.rate_ns_per_ms, quotas.burst_ns), nothing, nothing)

    def take(self, at: Int64s) -> TimeAccounts:
        """Return the accounts at `at`, in that order."""
        return TimeAccounts(
            self.balance_ns.take(at, axis=0), self.time_ns.take(at, axis=0), self.messages_micro.take(at, axis=0)
        )

    def followed_by(self, others: TimeAccounts) -> TimeAccounts:
        """Return these accounts, and then others."""
        return TimeAccounts(
            *(np.concatenate([getattr(each, name) for each in (self, others)]) for name in TimeAccounts.__slots__)
        )

    def refilled(self, quotas: TimeQuotas, elapsed_ms: int) -> TimeAccounts:
        """Return the accounts `elapsed_ms` later."""
        return replace(self, balance_ns=refill(self.balance_ns, quotas.rate_ns_per_ms, quotas.burst_ns, elapsed_ms))

    def charged(
        self,
        quotas: TimeQuotas,
        time_ns: Int64s,
        messages: Int64s,
        *,
        passed_ms: int = 0,
        least_window_ms: Int64s | int = 0,
    ) -> TimeAccounts:
        """Return the accounts after a batch that used `time_ns` for `messages`.

        Parameters
        ----------
        passed_ms
            The time since the batch before, in which the price may have fallen.
        least_window_ms
            The least time in which the price falls by half.

        Examples
        --------
        A window of 2 s of half a core, of which a batch of 10 messages takes 1.5 s:

        >>> quotas = TimeQuotas(np.array([500_000]), np.array([1_000_000_000]))
        >>> used = TimeAccounts.opened(quotas).charged(quotas, np.array([1_500_000_000]), np.array([10]))
        >>> used.balance_ns.tolist(), used.throttle_ms(quotas).tolist()
        ([-500000000], [1000])

        The next batch, a second later, has 100 messages that take a tenth of that each; they count for three quarters:

        >>> used.charged(quotas, np.array([1_500_000_000]), np.array([100]), passed_ms=1_000).time_ns.tolist()
        [11250000000]
        """
        time_ns = np.clip(time_ns, 0, MOST_NS)
        messages = np.clip(messages, 0, _MOST_MESSAGES)
        balance_ns = np.maximum(self.balance_ns - time_ns, MIN_BALANCE_MICRO)
        has_messages = messages > 0
        least_ns = np.where(has_messages, self._least_ns(quotas, messages, passed_ms, least_window_ms), self.time_ns)
        return TimeAccounts(
            np.where(quotas.is_limited, balance_ns, 0),
            np.maximum(time_ns, least_ns),
            np.where(has_messages, messages * MICRO, self.messages_micro),
        )

    def _least_ns(self, quotas: TimeQuotas, messages: Int64s, passed_ms: int, least_window_ms: Int64s | int) -> Int64s:
        """Return the least time that messages count for: by the price as it was, less what it may have fallen."""
        window_ms = np.maximum(quotas.window_ms, least_window_ms)
        window_ms = np.where(window_ms > 0, window_ms, _NO_WINDOW_MS)
        as_before_ns = proportional(messages * MICRO, self.time_ns, self.messages_micro, most_bits=_TIME_BITS)
        fallen_ns = proportional(as_before_ns, np.clip(passed_ms, 0, window_ms), 2 * window_ms, most_bits=_TIME_BITS)
        return as_before_ns - fallen_ns

    def throttle_ms(self, quotas: TimeQuotas) -> Int64s:
        """Return how long each scope is in debt, 0 where it is not, by KIP-124's formula."""
        return throttle_time_ms(self.balance_ns, quotas.rate_ns_per_ms)

    @property
    def price_ns(self) -> Int64s:
        """The price of a message, at least 1; 0 where it is not known."""
        price_ns = proportional(self.time_ns, np.full_like(self.time_ns, MICRO), self.messages_micro)
        return np.where(self.has_price, np.maximum(price_ns, 1), 0)

    @property
    def has_price(self) -> np.ndarray:
        """Whether the price of a message is known."""
        return (self.time_ns > 0) & (self.messages_micro > 0)

    def time_of(self, messages: Int64s, at: Int64s) -> Int64s:
        """Return the time that messages take at the prices of the scopes `at`; at least 1.

        Before the first message one counts as a millisecond of a core, so that who has no price yet wants something
        too. Messages that took no time want no more than lets any pass.

        Parameters
        ----------
        messages
            In micro-messages, or their rate in micro-messages per millisecond.

        Returns
        -------
        Int64s
            In nanoseconds, or nanoseconds per millisecond.

        Examples
        --------
        Five messages a second at 100 ms each are half a core; before the first, they are 5 ms a second; and those that
        took no time want the least there is:

        >>> time_ns, messages_micro = np.array([200_000_000, 0, 0]), np.array([2_000_000, 0, 2_000_000])
        >>> accounts = TimeAccounts(0 * time_ns, time_ns, messages_micro)
        >>> accounts.time_of(np.array([5_000, 5_000, 5_000]), np.array([0, 1, 2])).tolist()
        [500000, 5000, 1]
        """
        told = proportional(messages, self.time_ns[at], self.messages_micro[at])
        return np.maximum(np.where(self.messages_micro[at] > 0, told, messages), 1)

    def as_messages(self, quotas: TimeQuotas) -> MessageBuckets:
        """Return what the time lets through, in messages; `UNLIMITED` where it holds nothing back.

        A debt lasts as long in messages as in time, to the millisecond.

        Examples
        --------
        At 100 ms a message, a second of half a core that is full lets 5 messages through, and 5 in every second:

        >>> quotas = TimeQuotas(np.array([500_000]), np.array([500_000_000]))
        >>> accounts = TimeAccounts(np.array([500_000_000]), np.array([200_000_000]), np.array([2_000_000]))
        >>> told = accounts.as_messages(quotas)
        >>> told.balance_micro.tolist(), told.rate_micro_per_ms.tolist()
        ([5000000], [5000])
        """
        rate_ns, burst_ns = np.maximum(quotas.rate_ns_per_ms, 0), quotas.burst_ns
        debt_ms = -(-np.maximum(-self.balance_ns, 0) // np.maximum(rate_ns, 1))
        burst_ms = -(-burst_ns // np.maximum(rate_ns, 1))
        # Without a price, only the length of a debt matters: a message then counts as a millisecond of a core.
        rate = np.where(self.has_price, proportional(rate_ns, self.messages_micro, self.time_ns), rate_ns)
        rate = np.maximum(np.minimum(rate, _MOST_BALANCE_MICRO // np.maximum(np.maximum(debt_ms, burst_ms), 1)), 1)
        burst_micro = rate * burst_ms
        held = proportional(self.balance_ns, self.messages_micro, self.time_ns, most_bits=_BALANCE_BITS)
        balance_micro = np.where(self.balance_ns < 0, -debt_ms * rate, np.minimum(held, burst_micro))
        holds = quotas.is_limited & (self.has_price | (self.balance_ns < 0))
        is_shut = quotas.rate_ns_per_ms == 0
        nothing = np.zeros_like(rate)
        return MessageBuckets(
            np.where(is_shut, -1, np.where(holds, balance_micro, nothing)),
            np.where(is_shut, 0, np.where(holds, rate, UNLIMITED)),
            np.where(is_shut | ~holds, nothing, burst_micro),
        )
