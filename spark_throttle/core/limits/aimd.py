"""The rate of a destination that pushes back: down by a part when it refuses, up in growing steps while it does not.

AIMD, as Flink's async sink has it, with one difference. A constant step cannot both be refused rarely and find a rate
that was raised fourfold within ten seconds. So the steps have the size that CUBIC gives a TCP sender: they shrink until
the rate is near what was refused last, which is two seconds after the refusal, and grow from there on, as the third
power of the time. A rate that was raised fourfold is reached within eight seconds.

A refusal says that for some time more was sent than the destination takes: whatever it had saved up is used by then. So
the rate falls by an eighth of what it was a second before, where it was lower then. A refusal within a second of the
last takes a quarter.

Laws: everything is a whole number; the rate is a function of the last base and of the quiet time alone, so it makes no
difference in how many parts the time is told; it never leaves floor and ceiling, and never falls while nothing is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LEVEL_MS: Final = 2_000
"""By then the rate is what it was before the last refusal, and grows slowest."""

_LONGEST_QUIET_MS: Final = 3_600_000
"""By then a rate has grown 800 million times."""

_SOON_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Aimd:
    """A rate, by what was refused last."""

    base: int
    """The rate just after the last refusal."""

    quiet_ms: int = _LONGEST_QUIET_MS
    """The time since then in which something was sent and nothing refused."""

    def rate(self, *, floor: int, ceiling: int) -> int:
        """Return the rate now.

        Examples
        --------
        >>> [Aimd(7_000, quiet_ms).rate(floor=1, ceiling=60_000) for quiet_ms in (0, 1_000, 2_000, 4_000, 8_000, 10**6)]
        [7000, 7875, 8000, 9000, 35000, 60000]
        """
        grown = self.base * ((self.quiet_ms - _LEVEL_MS) ** 3 + _LEVEL_MS**3) // (7 * _LEVEL_MS**3)
        return max(floor, min(ceiling, self.base + grown))

    def after_quiet(self, elapsed_ms: int) -> Aimd:
        """Return it after a time in which something was sent and nothing refused."""
        return Aimd(self.base, min(self.quiet_ms + elapsed_ms, _LONGEST_QUIET_MS))

    def after_refusal(self, *, floor: int, ceiling: int) -> Aimd:
        """Return it after a refusal.

        Examples
        --------
        >>> Aimd(800).after_refusal(floor=1, ceiling=800), Aimd(800, 500).after_refusal(floor=1, ceiling=800)
        (Aimd(base=700, quiet_ms=0), Aimd(base=600, quiet_ms=0))
        """
        if self.quiet_ms < _SOON_MS:
            rate = self.rate(floor=floor, ceiling=ceiling)
            return Aimd(max(floor, rate - rate // 4), 0)
        before = Aimd(self.base, self.quiet_ms - _SOON_MS).rate(floor=floor, ceiling=ceiling)
        return Aimd(max(floor, before - before // 8), 0)
