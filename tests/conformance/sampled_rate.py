"""Kafka's sampled rate, by which its quotas on bytes and on request time decide (KIP-13, KIP-124): a plain model.

A rate is what the samples hold, divided by the time that they stand for. A sample takes what is recorded for one
window, from its first record on; the next record begins another. KIP-599 says why this judges bursts badly: a burst is
one sample, so the rate stays above the quota until that sample is dropped, whatever the throttle time said. The
throttle does not decide by it. The model shows what KIP-599's bucket replaces.

Laws, as in Kafka:

- A sample is dropped when `samples` windows have passed since its *last* record, not since it began. One more than
  `samples` is kept, because the oldest may overlap the edge.
- The divisor is the age of the oldest sample, raised to at least ``samples - 1`` full windows and the part of a window
  that has passed. So 11 samples of 1 s divide by 10 s at first.
- A rate above the quota violates it; an equal one does not. The throttle time is ``(rate - quota) / quota * divisor``,
  rounded half up.

Times are whole milliseconds, as in Kafka. Amounts are doubles there. If `number` is `float`, the model does the same
operations in the same order, and answers to the bit. With `Fraction`, the default, it answers exactly. The two differ
by a few parts in 1e16 of the rate. That decides where a throttle time ends in half a millisecond, and where a rate
equals its quota.

Source: Kafka 4.4.0, `SampledStat`, `WindowedSum`, `Rate`, `QuotaUtils.throttleTime`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import TypeAlias

Number: TypeAlias = Fraction | float

_MS_PER_SECOND = 1_000


@dataclass(frozen=True, slots=True)
class RateReading:
    """A rate at one moment, and what its quota makes of it."""

    per_second: Number
    divisor_ms: int
    """The time that the rate was divided by."""

    throttle_time_ms: int
    """How long the quota says to wait; 0 if it is not exceeded."""


@dataclass(slots=True)
class Sample:
    """What was recorded in one window."""

    amount: Number
    began_ms: int
    last_ms: int
    """Time of the last record."""


@dataclass(slots=True)
class SampledRate:
    """A quota on a sampled rate.

    Parameters
    ----------
    quota_per_second
        The quota.
    samples, sample_ms
        Number and length of the windows: Kafka's `quota.window.num` and `quota.window.size.seconds`.
    number
        `Fraction` to compute exactly, `float` to compute as Kafka does.

    Examples
    --------
    Kafka's own test: 400 bytes per second for 10 s keep to a quota of 500. Another 2,300 half a second later make
    6,300 in 10.5 s:

    >>> rate = SampledRate(500, samples=11, sample_ms=1_000)
    >>> {rate.record(400, second * 1_000).throttle_time_ms for second in range(10)}
    {0}
    >>> rate.record(2_300, 10_500)
    RateReading(per_second=Fraction(600, 1), divisor_ms=10500, throttle_time_ms=2100)
    """

    quota_per_second: Number
    samples: int
    sample_ms: int
    number: type[Fraction | float] = Fraction
    _kept: list[Sample] = field(default_factory=list)
    """Kafka's ring of samples; one that was dropped stays in its place, empty and beginning now."""

    _current: int = 0
    """Position of the sample that takes records."""

    def record(self, amount: Number, now_ms: int) -> RateReading:
        """Record an amount, and return the rate that includes it; time does not go back."""
        self._begin(now_ms)
        if now_ms - self._kept[self._current].began_ms >= self.sample_ms:
            self._current = (self._current + 1) % (self.samples + 1)
            self._kept[self._current : self._current + 1] = [self._empty(now_ms)]
        sample = self._kept[self._current]
        sample.amount += self.number(amount)
        sample.last_ms = now_ms
        return self.read(now_ms)

    def read(self, now_ms: int) -> RateReading:
        """Return the rate now, without the samples that are too old."""
        self._begin(now_ms)
        self._drop_old(now_ms)
        divisor_ms = self._divisor_ms(now_ms)
        total = sum((sample.amount for sample in self._kept), self.number(0))
        rate = total / (self.number(divisor_ms) / _MS_PER_SECOND)
        quota = self.number(self.quota_per_second)
        throttle_ms = (rate - quota) / quota * divisor_ms if rate > quota else 0
        return RateReading(rate, divisor_ms, floor(Fraction(throttle_ms) + Fraction(1, 2)))

    def _empty(self, now_ms: int) -> Sample:
        return Sample(self.number(0), now_ms, now_ms)

    def _begin(self, now_ms: int) -> None:
        if not self._kept:
            self._kept.append(self._empty(now_ms))

    def _drop_old(self, now_ms: int) -> None:
        for at, sample in enumerate(self._kept):
            if now_ms - sample.last_ms >= self.samples * self.sample_ms:
                self._kept[at] = self._empty(now_ms)

    def _divisor_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - min(sample.began_ms for sample in self._kept)
        missing = max(self.samples - 1 - elapsed_ms // self.sample_ms, 0)
        return max(elapsed_ms + missing * self.sample_ms, 1)
