"""KIP-599's proposal to repair the sampled rate: a burst is spread over the windows before it. Kafka never shipped it.

Each window may hold what the quota allows in it. An amount first fills the windows before the present one, the oldest
first; the present window takes the rest, however much that is. So a rate that is too high falls with every window that
passes, as a bucket's debt does, and not at once when the burst's own window is dropped.

Windows are counted from time 0, and the divisor is all of them: the KIP's own arithmetic, by which its example gives
whole numbers. Kafka's `Rate` divides by the time that its samples span (`sampled_rate`). Amounts are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from tests.conformance.sampled_rate import RateReading

_MS_PER_SECOND = 1_000


@dataclass(slots=True)
class SpreadRate:
    """A quota on a rate whose bursts are spread over the windows before them.

    Parameters
    ----------
    quota_per_second
        The quota.
    samples, sample_ms
        Number and length of the windows.

    Examples
    --------
    KIP-599: of 560 at once, 99 windows take 5 each, and the present one takes the other 65. The throttle time of 12 s
    is what it takes, and not 100 s.

    >>> rate = SpreadRate(5, samples=100, sample_ms=1_000)
    >>> rate.record(560, now_ms=500_000)
    RateReading(per_second=Fraction(28, 5), divisor_ms=100000, throttle_time_ms=12000)
    >>> held = rate.amounts(500_000)
    >>> set(held[:99]), held[99]
    ({Fraction(5, 1)}, Fraction(65, 1))
    >>> rate.read(511_999).throttle_time_ms, rate.read(512_000).throttle_time_ms
    (1000, 0)
    """

    quota_per_second: int | Fraction
    samples: int
    sample_ms: int
    _held: dict[int, Fraction] = field(default_factory=dict)
    """Amount by the number of its window."""

    def record(self, amount: int | Fraction, now_ms: int) -> RateReading:
        """Record an amount, and return the rate that includes it."""
        present = now_ms // self.sample_ms
        allowed = Fraction(self.quota_per_second) * self.sample_ms / _MS_PER_SECOND
        left = Fraction(amount)
        for window in range(present - self.samples + 1, present):
            held = self._held.get(window, Fraction(0))
            taken = min(max(allowed - held, Fraction(0)), left)
            self._held[window] = held + taken
            left -= taken
        self._held[present] = self._held.get(present, Fraction(0)) + left
        return self.read(now_ms)

    def read(self, now_ms: int) -> RateReading:
        """Return the rate now."""
        divisor_ms = self.samples * self.sample_ms
        rate = sum(self.amounts(now_ms), Fraction(0)) * _MS_PER_SECOND / divisor_ms
        over = max(rate - self.quota_per_second, Fraction(0)) / self.quota_per_second
        return RateReading(rate, divisor_ms, ceil(over * divisor_ms))

    def amounts(self, now_ms: int) -> list[Fraction]:
        """Return what each of the last windows holds, the present one last."""
        present = now_ms // self.sample_ms
        return [self._held.get(window, Fraction(0)) for window in range(present - self.samples + 1, present + 1)]
