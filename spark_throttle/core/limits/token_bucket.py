"""Token buckets, many at a time: refill, the messages that pass, debit, throttle time; and the time that pays them.

Balances are int64 micro-tokens, rates are micro-tokens per millisecond, and the paying clock ticks in
milliseconds. So a refill is exact, in however many steps it is taken::

    refill(refill(b, t1), t2) == refill(b, t1 + t2)

The replay of a micro-batch rests on that equality. The rule is KIP-599's: a message passes while the balance
is not negative, and then takes its whole cost. So a balance may end below zero, by at most one message, and a
message larger than the burst passes late instead of never. A rate of 0 admits nothing: it holds the balance
below zero.

Of a sequence of messages that meet a balance `K` at one instant, a prefix passes, because nothing is refilled
in between: message `i` passes if the messages before it took at most `K`.

Spark's batch time comes from a wall clock, which may be set forward or back. So tokens are earned by *paying time*: the
control plane keeps a clock of its own, which advances by the time that a steady clock has measured (`control.clock`),
and pins its reading in every epoch, next to the wall clock's. How long after that reading a batch runs is known only
from Spark's time::

    paying time = pinned reading + (batch time - the wall clock's reading then)

All of this is pinned, so a batch that runs again computes the same time. The result is exact while the wall clock is
steady, and when it was not, an epoch is made at once (`control.plane`). So a jump can only fall between the plan of a
batch and its timestamp. What such a jump may add to a batch that brings an epoch is bounded by `MOST_LAG_MS`, and is
not paid again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, MOST_NS, NEVER_MS, UNLIMITED, Dimension, Int64s

_MOST_DEBITED_TOKENS = 1 << 42
"""A larger debit leaves every balance at `MIN_BALANCE_MICRO` anyway; the bound keeps the product in int64."""

_MOST_EARNED_MICRO = 1 << 62
"""The largest amount that may be added to any balance, which is at most 2**60, without leaving int64."""


def refill(balance_micro: Int64s, rate_micro_per_ms: Int64s, burst_micro: Int64s, elapsed_ms: int) -> Int64s:
    """Return the balances `elapsed_ms` later, at most `burst_micro`.

    A smaller burst cuts the balance. A rate of 0 holds the balance below zero and keeps a debt; the balance of an
    unlimited position is 0.

    Examples
    --------
    At 5 tokens per second, a debt of 60 tokens is repaid in 12 s (KIP-599's worked example):

    >>> refill(np.array([-60_000_000]), np.array([5_000]), np.array([500_000_000]), 12_000).tolist()
    [0]
    """
    filled = np.maximum(rate_micro_per_ms, 0)
    if int(filled.max(initial=0)) * max(elapsed_ms, 0) <= _MOST_EARNED_MICRO:
        filled *= max(elapsed_ms, 0)
    else:
        # Time past full earns nothing; capping it keeps the product inside int64 after idle years.
        room = np.maximum(burst_micro - balance_micro, 0)
        filled *= np.minimum(max(elapsed_ms, 0), -(-room // np.maximum(filled, 1)))
    filled += balance_micro
    np.minimum(filled, burst_micro, out=filled)
    np.minimum(filled, -1, out=filled, where=rate_micro_per_ms == 0)
    np.copyto(filled, 0, where=rate_micro_per_ms == UNLIMITED)
    return filled


def full(rate_micro_per_ms: Int64s, burst_micro: Int64s) -> Int64s:
    """Return the balances of full buckets: the burst, just below zero where the rate is 0, and 0 where unlimited.

    Examples
    --------
    >>> full(np.array([5_000, 0, UNLIMITED]), np.array([10_000_000, 0, 0])).tolist()
    [10000000, -1, 0]
    """
    return np.where(rate_micro_per_ms > 0, burst_micro, np.where(rate_micro_per_ms == 0, -1, 0))


def refilled_cut(
    cut_micro: Int64s,
    balance_micro: Int64s,
    filled_micro: Int64s,
    rate_micro_per_ms: Int64s,
    full_micro: Int64s,
    elapsed_ms: int,
) -> Int64s:
    """Return what of `cut_micro` (`state.Flows`) the buckets have not earned `elapsed_ms` later.

    Only what overflows a full bucket counts. So what is cut and what the bucket lacks are together what a bucket with
    the former burst would lack.

    Parameters
    ----------
    balance_micro, filled_micro
        The balances before and after the refill.

    Examples
    --------
    A bucket of 2 tokens holds 1, and a former one of 10 lacked 9. Of 3 s at a token per second, 2 s overflow:

    >>> one, two = np.array([1]) * MICRO, np.array([2]) * MICRO
    >>> refilled_cut(8 * one, one, two, np.array([1_000]), two, 3_000)
    array([6000000])
    """
    if not cut_micro.any():
        return cut_micro
    lacked_micro = full_micro + cut_micro - balance_micro
    lacks_micro = -refill(-lacked_micro, rate_micro_per_ms, np.zeros_like(cut_micro), elapsed_ms)
    lacks_micro = np.where(rate_micro_per_ms > 0, lacks_micro, np.maximum(lacked_micro, 0))
    return np.where(cut_micro > 0, lacks_micro - (full_micro - filled_micro), 0)


def in_micro(tokens: Int64s) -> Int64s:
    """Return messages, bytes, units and nanoseconds, shape (…, 4), as balances count them.

    Examples
    --------
    >>> in_micro(np.array([3, 10, 2, 5_000])).tolist()
    [3000000, 10000000, 2000000, 5000]
    """
    micro = np.minimum(tokens, _MOST_DEBITED_TOKENS)
    micro *= MICRO
    micro[..., Dimension.TIME] = np.minimum(tokens[..., Dimension.TIME], MOST_NS)
    return micro


def room_before(balance_micro: Int64s, dimension: Dimension) -> Int64s:
    """Return how much may go before a message for a balance to let it pass; -1 if none may pass.

    Examples
    --------
    Half a token lets one message pass, which leaves a debt; a debt lets none pass:

    >>> room_before(np.array([2_500_000, 500_000, 0, -1]), Dimension.MESSAGES).tolist()
    [2, 0, 0, -1]
    """
    tokens = balance_micro if dimension == Dimension.TIME else balance_micro // MICRO
    return np.where(balance_micro >= 0, tokens, -1)


def debit(balance_micro: Int64s, spent_micro: Int64s, floor_micro: Int64s | int = MIN_BALANCE_MICRO) -> Int64s:
    """Return the balances less what was spent; a debt stops growing at `floor_micro`.

    Examples
    --------
    >>> debit(np.array([500_000]), np.array([2_000_000])).tolist()
    [-1500000]
    """
    return np.maximum(balance_micro - spent_micro, floor_micro)


def credit(balance_micro: Int64s, given_micro: Int64s, full_micro: Int64s) -> Int64s:
    """Return the balances with what was debited given back: none becomes fuller than full.

    Examples
    --------
    >>> credit(
    ...     np.array([-1_500_000, 500_000]), np.array([2_000_000, 2_000_000]), np.array([2_000_000, 2_000_000])
    ... ).tolist()
    [500000, 2000000]
    """
    return np.maximum(balance_micro, np.minimum(balance_micro + given_micro, full_micro))


def observed_floor(balance_micro: Int64s, unmarked_micro: Int64s, burst_micro: Int64s) -> Int64s:
    """Return the floor of the debt of observing scopes that let so much pass without a mark.

    A marked row would not have passed under enforcement, so it adds no debt beyond a burst. Otherwise the marks would
    continue after an overload for as long as it takes to repay everything that passed in it, although an enforcing
    scope would not have let it pass.

    Examples
    --------
    Two scopes with a burst of 2 tokens: one held 1 and let a message of 5 pass unmarked, the other was in debt:

    >>> observed_floor(np.array([1, -1]) * MICRO, np.array([5, 0]) * MICRO, np.array([2, 2]) * MICRO) // MICRO
    array([-4, -2])
    """
    # Below zero even without a burst: tokens marked in one dimension are taken in the other too.
    return np.minimum(debit(balance_micro, unmarked_micro), np.minimum(-burst_micro, -1))


def throttle_time_ms(balance_micro: Int64s, rate_micro_per_ms: Int64s) -> Int64s:
    """Return how long each balance stays below zero, rounded up; `NEVER_MS` where the rate is 0.

    Examples
    --------
    KIP-599's worked example: 560 mutations against a burst of 500, at 5 per second, are throttled for 12 s:

    >>> throttle_time_ms(np.array([-60_000_000, 1]), np.array([5_000, 5_000])).tolist()
    [12000, 0]
    """
    debt = np.maximum(-balance_micro, 0)
    wait_ms = -(-debt // np.maximum(rate_micro_per_ms, 1))
    return np.where((rate_micro_per_ms <= 0) & (debt > 0), NEVER_MS, wait_ms)


MOST_LAG_MS: Final = 10_000
"""The longest time that Spark may take between asking for an epoch and taking the timestamp of its batch."""


@dataclass(frozen=True, slots=True)
class PayingTime:
    """The clock reading that an epoch pins: the paying time, and the wall clock's time at that moment."""

    paid_ms: int
    wall_ms: int

    def of_batch(self, batch_ms: int, *, is_new: bool, advanced_to_ms: int) -> int:
        """Return the paying time of a batch.

        Parameters
        ----------
        batch_ms
            Spark's timestamp of the batch.
        is_new
            Whether the batch brings the epoch.
        advanced_to_ms
            The paying time to which the state was advanced: time that was paid once is not paid again.

        Examples
        --------
        A batch 20 ms after its epoch was made, one half a minute later, and one before which the clock jumped:

        >>> reading = PayingTime(5_000, 1_700_000_000_000)
        >>> reading.of_batch(1_700_000_000_020, is_new=True, advanced_to_ms=0)
        5020
        >>> reading.of_batch(1_700_000_030_000, is_new=False, advanced_to_ms=5_020)
        35000
        >>> reading.of_batch(1_800_000_000_000, is_new=True, advanced_to_ms=0)
        15000
        """
        since_ms = max(0, batch_ms - self.wall_ms)
        now_ms = self.paid_ms + (min(since_ms, MOST_LAG_MS) if is_new else since_ms)
        is_ahead = advanced_to_ms > now_ms + MOST_LAG_MS  # a jump was paid: to wait it out would stop the job
        return now_ms if is_ahead else max(now_ms, advanced_to_ms)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The readings of the control plane's other clocks when it made an epoch, in addition to the paying time."""

    wall_ms: int
    latest_wall_ms: int
    """The latest wall-clock time that any epoch so far has seen, advanced by the time paid since."""

    steady_ms: int
    boot: str
    """The name of the moment from which `steady_ms` counts; readings with different names cannot be compared."""
