"""The rate of a destination that pushes back: down by a part when it refuses, up in growing steps while it does not.

AIMD, as Flink's async sink has it, with one difference. A constant step cannot both be refused rarely and find a rate
that was raised fourfold within ten seconds. So the step doubles with every second without a refusal: it adds 1/128 of
the rate in the first second, half of it in the seventh. After a refusal the rate falls by an eighth; a refusal within a
second of the last halves it.

Laws: everything is a whole number; the rate is a function of the last base and of the quiet time alone, so it makes no
difference in how many parts the time is told; it never leaves floor and ceiling, and never falls while nothing is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MS: Final = 1_000
_STEP_PARTS: Final = 128
_LONGEST_QUIET_MS: Final = 60_000
"""By then every rate has reached every ceiling."""

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
        >>> [Aimd(1_000, quiet_ms).rate(floor=1, ceiling=10_000) for quiet_ms in (0, 1_000, 4_000, 8_000, 20_000)]
        [1000, 1007, 1117, 2992, 10000]
        """
        seconds, rest_ms = divmod(min(self.quiet_ms, _LONGEST_QUIET_MS), _MS)
        grown = (((1 << seconds) - 1) * _MS + (rest_ms << seconds)) * self.base // (_STEP_PARTS * _MS)
        return max(floor, min(ceiling, self.base + grown))

    def after_quiet(self, elapsed_ms: int) -> Aimd:
        """Return it after a time in which something was sent and nothing refused."""
        return Aimd(self.base, min(self.quiet_ms + elapsed_ms, _LONGEST_QUIET_MS))

    def after_refusal(self, *, floor: int, ceiling: int) -> Aimd:
        """Return it after a refusal.

        Examples
        --------
        >>> Aimd(800).after_refusal(floor=1, ceiling=800), Aimd(800, 500).after_refusal(floor=1, ceiling=800)
        (Aimd(base=700, quiet_ms=0), Aimd(base=400, quiet_ms=0))
        """
        rate = self.rate(floor=floor, ceiling=ceiling)
        return Aimd(max(floor, rate // 2 if self.quiet_ms < _SOON_MS else rate - rate // 8), 0)
