"""What guarantees promise, in Python's integers: slow, obvious, and without a tree.

A scope's guarantee is a bucket that earns by the millisecond. Rows of it go first while no dimension is overdrawn, and
what it has left when none of its rows is left is gone. Whoever shares what remains does so by weight, which the
`Fluid` of the fair tree says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_throttle.core.quota import MICRO


@dataclass(slots=True)
class PromisedBucket:
    """The guarantee of one scope that others leave room for, in messages.

    Examples
    --------
    Five a second, and half a second in which nothing was asked for; then five a second, and one on credit:

    >>> bucket = PromisedBucket(5_000)
    >>> bucket.first(500, waiting=0), bucket.first(500, waiting=9), bucket.first(500, waiting=9)
    (0, 3, 3)
    """

    rate_micro_per_ms: int
    balance_micro: int = 0

    def first(self, elapsed_ms: int, waiting: int) -> int:
        """Return how many of the rows that wait go first, so much later."""
        self.balance_micro += self.rate_micro_per_ms * elapsed_ms
        count = 0
        while count < waiting and self.rate_micro_per_ms and self.balance_micro >= 0:
            self.balance_micro -= MICRO
            count += 1
        if count == waiting:
            self.balance_micro = min(self.balance_micro, 0)
        return count


@dataclass(slots=True)
class Promise:
    """What a scope must have had in every window in which rows of it were left behind, in all dimensions it names."""

    rates_micro_per_ms: Sequence[int | None]
    """By `Dimension`; `None` where nothing is promised."""

    times_ms: list[int] = field(default_factory=list)
    served: list[Sequence[int]] = field(default_factory=list)
    """What was served in each batch, by dimension."""

    is_behind: list[bool] = field(default_factory=list)
    """Whether rows were left behind that might have gone."""

    def note(self, now_ms: int, served: Sequence[int], *, is_behind: bool) -> None:
        """Note a batch."""
        self.times_ms.append(now_ms)
        self.served.append(served)
        self.is_behind.append(is_behind)

    def most_behind(self, unit_micro: Sequence[int], largest: Sequence[int]) -> float:
        """Return by how many of the largest messages it was behind, in the dimension in which it was least."""
        worst = 0.0
        for first in range(len(self.times_ms)):
            had = [0] * len(largest)
            for last in range(first + 1, len(self.times_ms)):
                if not self.is_behind[last]:
                    break
                had = [each + more for each, more in zip(had, self.served[last], strict=True)]
                passed_ms = self.times_ms[last] - self.times_ms[first]
                lacks = [
                    (rate * passed_ms - each * unit) / (most * unit)
                    for rate, each, unit, most in zip(self.rates_micro_per_ms, had, unit_micro, largest, strict=True)
                    if rate is not None
                ]
                worst = max(worst, min(lacks))
        return worst
