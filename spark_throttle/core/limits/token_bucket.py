"""Token buckets: refill, what passes, throttle time; many at a time.

Balances are int64 micro-tokens and rates are micro-tokens a millisecond, the clock that pays ticking in
milliseconds, so a refill is exact however many steps it is taken in::

    refill(refill(b, t1), t2) == refill(b, t1 + t2)

A replayed micro-batch rests on that equality. The rule is KIP-599's: a message passes while the balance
is not negative, and then takes what it costs. So a balance may end below zero, by one message at most; a
message larger than the burst passes, late, instead of never. A rate of 0 admits nothing: its balance is
held below zero.

What passes of a row of messages that meet one balance `K` at one instant is a prefix, because nothing
refills in between: message `i` passes while what the messages before it took is at most `K`.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, NEVER_MS, UNLIMITED, Int64s

_MOST_DEBITED_TOKENS = 1 << 42
"""Beyond it every balance is at `MIN_BALANCE_MICRO` anyway; it keeps the product in int64."""

_MOST_EARNED_MICRO = 1 << 62
"""What may be added to any balance, which is at most 2**60, and stay in int64."""


def refill(balance_micro: Int64s, rate_micro_per_ms: Int64s, burst_micro: Int64s, elapsed_ms: int) -> Int64s:
    """Return the balances `elapsed_ms` later, at most `burst_micro`.

    A burst that shrank cuts the balance. A rate of 0 holds the balance below zero and keeps a debt; unlimited positions
    come back as 0.

    Examples
    --------
    A rate of 5 tokens a second, 60 tokens in debt, 12 s (KIP-599's worked number):

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
    """Return the balances of new buckets: their burst, or what stands for nothing where the rate is 0.

    Examples
    --------
    >>> full(np.array([5_000, 0, UNLIMITED]), np.array([10_000_000, 0, 0])).tolist()
    [10000000, -1, 0]
    """
    return np.where(rate_micro_per_ms > 0, burst_micro, np.where(rate_micro_per_ms == 0, -1, 0))


def admissible_messages(balance_micro: Int64s) -> Int64s:
    """Return how many messages pass a messages balance at one instant.

    Examples
    --------
    Half a token lets one message pass, into debt; a debt lets none pass:

    >>> admissible_messages(np.array([2_500_000, 500_000, 0, -1])).tolist()
    [3, 1, 1, 0]
    """
    return np.where(balance_micro >= 0, balance_micro // MICRO + 1, 0)


def byte_room(balance_micro: Int64s) -> Int64s:
    """Return the most bytes that may go before a message for it to pass a bytes balance; -1 for none.

    Examples
    --------
    >>> byte_room(np.array([1_500_000, 0, -1])).tolist()
    [1, 0, -1]
    """
    return np.where(balance_micro >= 0, balance_micro // MICRO, -1)


def debit(balance_micro: Int64s, tokens: Int64s, floor_micro: Int64s | int = MIN_BALANCE_MICRO) -> Int64s:
    """Return the balances less `tokens`; a debt stops at `floor_micro`.

    Examples
    --------
    >>> debit(np.array([500_000]), np.array([2])).tolist()
    [-1500000]
    """
    return np.maximum(balance_micro - np.minimum(tokens, _MOST_DEBITED_TOKENS) * MICRO, floor_micro)


def observed_floor(balance_micro: Int64s, unmarked: Int64s, burst_micro: Int64s) -> Int64s:
    """Return where the debt of scopes that only observe stops, after they let `unmarked` tokens pass without a mark.

    A row that is marked would not have passed: beyond a burst, it adds to no debt. Else the marks would go on for as
    long after an overload as it takes to repay all that passed in it, which no enforcing scope would let pass.

    Examples
    --------
    A burst of 2 tokens; one that held 1 let a message of 5 pass unmarked, and one was in debt:

    >>> observed_floor(np.array([1, -1]) * MICRO, np.array([5, 0]), np.array([2, 2]) * MICRO) // MICRO
    array([-4, -2])
    """
    # Below zero even without a burst: what is marked in one dimension is taken in the other too.
    return np.minimum(debit(balance_micro, unmarked), np.minimum(-burst_micro, -1))


def throttle_time_ms(balance_micro: Int64s, rate_micro_per_ms: Int64s) -> Int64s:
    """Return how long each balance stays below zero, rounded up; `NEVER_MS` where the rate is 0.

    Examples
    --------
    KIP-599: 560 mutations at 5 a second against a burst of 500 throttle for 12 s.

    >>> throttle_time_ms(np.array([-60_000_000, 1]), np.array([5_000, 5_000])).tolist()
    [12000, 0]
    """
    debt = np.maximum(-balance_micro, 0)
    wait_ms = -(-debt // np.maximum(rate_micro_per_ms, 1))
    return np.where((rate_micro_per_ms <= 0) & (debt > 0), NEVER_MS, wait_ms)
