"""A single token bucket in plain Python integers: obvious, exact and slow.

The rule is KIP-599's: a message passes while the balance is not negative, and is then debited in full, so a debt is at
most one message. Balances are micro-tokens, rates micro-tokens per millisecond. Python's integers do not overflow,
which makes these an oracle for int64 arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, NEVER_MS


@dataclass(slots=True)
class TokenBucket:
    """A bucket that starts full and is changed in place.

    Examples
    --------
    KIP-599's worked number: 5 per second, burst 500, 560 arrive at once.

    >>> bucket = TokenBucket.full(rate_micro_per_ms=5_000, burst_micro=500 * MICRO)
    >>> bucket.admits()
    True
    >>> bucket.debit(560)
    >>> bucket.balance_micro // MICRO, bucket.throttle_time_ms()
    (-60, 12000)
    >>> bucket.refill(12_000)
    >>> bucket.admits()
    True
    """

    rate_micro_per_ms: int
    burst_micro: int
    balance_micro: int

    @classmethod
    def full(cls, rate_micro_per_ms: int, burst_micro: int) -> TokenBucket:
        """Return a full bucket; at a rate of 0 it holds nothing and is just in debt."""
        bucket = cls(rate_micro_per_ms, burst_micro, 0)
        bucket.balance_micro = bucket.full_micro
        return bucket

    @property
    def full_micro(self) -> int:
        """The balance of a full bucket."""
        return -1 if self.rate_micro_per_ms == 0 else self.burst_micro

    @property
    def is_full(self) -> bool:
        """Whether time adds nothing."""
        return self.balance_micro == self.full_micro

    def refill(self, elapsed_ms: int) -> None:
        """Add the tokens of `elapsed_ms`, up to the burst; a clock that went backward adds nothing."""
        self.earn(elapsed_ms)
        self.balance_micro = min(self.balance_micro, self.full_micro)

    def earn(self, elapsed_ms: int) -> None:
        """Add the tokens of `elapsed_ms`, up to the burst."""
        gained = self.rate_micro_per_ms * max(0, elapsed_ms)
        self.balance_micro = min(self.balance_micro + gained, self.burst_micro)

    def admits(self) -> bool:
        """Return whether the next message passes, whatever its size."""
        return self.rate_micro_per_ms != 0 and self.balance_micro >= 0

    def debit(self, tokens: int, *, unit_micro: int = MICRO, floor_micro: int = MIN_BALANCE_MICRO) -> None:
        """Subtract `tokens`, into debt if the balance is less, but not below a floor."""
        self.balance_micro = max(self.balance_micro - tokens * unit_micro, floor_micro)

    def throttle_time_ms(self) -> int:
        """Return the milliseconds until the bucket admits again."""
        return throttle_time_ms(self.balance_micro, self.rate_micro_per_ms)


def throttle_time_ms(balance_micro: int, rate_micro_per_ms: int) -> int:
    """Return the first whole millisecond at which a balance is not negative.

    Examples
    --------
    >>> throttle_time_ms(-5_001, 5), throttle_time_ms(0, 5), throttle_time_ms(-1, 0) == NEVER_MS
    (1001, 0, True)
    """
    if rate_micro_per_ms == 0:
        return NEVER_MS
    return ceil_div(max(0, -balance_micro), rate_micro_per_ms)


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up."""
    return -(-numerator // denominator)


def name_hash(name: str, salt: int = 0) -> int:
    """Return the hash that orders flows which are otherwise equal.

    A polynomial over the UTF-8 bytes, with the salt, mixed as MurmurHash3's 64-bit finaliser does.

    Examples
    --------
    >>> name_hash("a"), name_hash("b")
    (2714811491967746737, 4609608581513853055)
    """
    base, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    value = sum(byte * pow(base, power, 2**64) for power, byte in enumerate(name.encode(), start=1))
    value = (value + salt * base) & mask
    value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD & mask
    value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53 & mask
    return (value ^ (value >> 33)) >> 1
