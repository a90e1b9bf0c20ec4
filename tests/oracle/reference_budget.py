"""A budget of one scope in plain Python: a tally that is wiped when another window begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_throttle.core.quota import NEVER_MS, Dimension

if TYPE_CHECKING:
    from spark_throttle.core.limits.budgets import CalendarWindows

KEYS: Final = (
    "messages_per_hour", "messages_per_day", "messages_per_month", "bytes_per_hour", "bytes_per_day", "bytes_per_month",
    "units_per_hour", "units_per_day", "units_per_month",
)  # fmt: skip
_PERIODS: Final = ("hour", "day", "month")
_DIMENSIONS: Final = {"messages": Dimension.MESSAGES, "bytes": Dimension.BYTES, "units": Dimension.UNITS}


@dataclass(frozen=True, slots=True)
class Tally:
    """What a scope has used of one of its budgets."""

    key: str
    used: int = 0
    over: int = 0
    """By how much the last row exceeded the budget."""


@dataclass(slots=True)
class Budget:
    """A budget with what is used of it, changed in place.

    Examples
    --------
    >>> budget = Budget(10, Tally("bytes_per_day"), is_enforced=True)
    >>> budget.take((1, 9, 0, 0))
    >>> budget.is_spent
    False
    >>> budget.take((1, 9, 0, 0))
    >>> budget.is_spent, budget.tally
    (True, Tally(key='bytes_per_day', used=18, over=8))
    """

    tokens: int
    tally: Tally
    is_enforced: bool

    @property
    def dimension(self) -> Dimension:
        """What is counted."""
        return _DIMENSIONS[self.tally.key.partition("_")[0]]

    @property
    def code(self) -> int:
        """The number by which a decision names the budget."""
        return len(Dimension) + KEYS.index(self.tally.key)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.tally.used >= self.tokens

    @property
    def before(self) -> int:
        """How much may go before a row; -1 if none may."""
        return max(self.tokens - self.tally.used, 0) - 1

    def take(self, tokens: tuple[int, int, int, int]) -> None:
        """Charge a row."""
        taken = tokens[self.dimension]
        if taken:
            used = self.tally.used + taken
            over = max(used - self.tokens, 0) if self.is_enforced else 0
            self.tally = Tally(self.tally.key, used, over)

    def begin(self, windows: int) -> None:
        """Begin so many windows anew, one after the other."""
        for _ in range(windows):
            if not self.tally.over and not self.tally.used:
                return
            used = self.tally.over
            self.tally = replace(self.tally, used=used, over=max(used - self.tokens, 0))

    def wait_ms(self, windows: CalendarWindows | None, now_ms: int) -> int:
        """Return how long nothing is left."""
        if not self.is_spent:
            return 0
        if windows is None or not self.tokens:
            return NEVER_MS
        return max(int(windows.until_ms[period_of(self.tally.key)]) - now_ms, 1)


def period_of(key: str) -> int:
    """Return the number of the time that a budget is for."""
    return _PERIODS.index(key.rpartition("_")[2])


def told(dimension: Dimension, balance_micro: int | None, unit_micro: int, budgets: list[Budget]) -> int:
    """Return what ends first in a dimension, given what its bucket holds and its budgets at the beginning."""
    ends = [] if balance_micro is None else [(max(balance_micro // unit_micro, -1), -1, int(dimension))]
    for at, budget in enumerate(budgets):
        if budget.dimension == dimension:
            ends.append((budget.before, at, budget.code))
    least = min((each[0] for each in ends), default=0)
    return max((each for each in ends if each[0] == least), default=(0, 0, int(dimension)))[2]
