"""Budgets: what a scope may use in an hour, a day or a month of the calendar, beside its rates.

A row passes while something of each budget is left, and is then charged in full. So a budget of 1,000 messages a day
lets exactly 1,000 pass, and one of bytes or units is exceeded by less than one message. What is exceeded is taken off
the next window; what an observing scope lets pass beyond a budget is not.

When windows begin is a matter of the calendar (`policy.calendar_windows`), and the control plane decides it. An epoch
pins which windows are in force, and the paying time at which each ends. So a batch that runs again counts in the window
that it counted in before, and what is used is forgotten when an epoch says that another window has begun, and at no
other time.

A budget that changes counts what was used in its window. A scope that gets its first budget begins with nothing used.

Of a budget that several jobs share, an epoch pins what this job may use up to (`BudgetClaims`). To this job that is
the budget, until the next epoch; rows that it holds wait for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.quota import (
    BUDGETS,
    MAX_SIZE_BYTES,
    NEVER_MS,
    UNBOUNDED,
    UNLIMITED,
    Bools,
    Dimension,
    Int64s,
    Limits,
    OnExcess,
    Period,
)

FIRST_BUDGET: Final = len(Dimension)
"""The number of the first budget among what can hold a row: `Dimension`, and behind it `BUDGETS`."""

_MEAN_SECONDS: Final = {Period.HOUR: 3_600, Period.DAY: 86_400, Period.MONTH: 2_629_746}
_MOST_USED: Final = 1 << 61
_MOST_WINDOWS: Final = 1 << 20
_MOST_MEANT: Final = 1 << 52


@dataclass(frozen=True, slots=True, eq=False)
class CalendarWindows:
    """The windows in force, one position for each `Period`; an epoch pins them."""

    number: Int64s
    """How many windows have begun before this one, since the first."""

    since_ms: Int64s
    """The paying time at which it began."""

    until_ms: Int64s
    """The paying time at which it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class BudgetClaims:
    """What a job may use of the budgets that it shares with other jobs; shapes are (scopes, k), as in `Budgets`."""

    may_use: Int64s
    """What it may use in the window in all; `UNBOUNDED` where it shares no budget."""

    is_spent: Bools
    """Whether all jobs together have used the budget, so that nothing is to be waited for before it begins anew."""

    by_others: Int64s
    """What other jobs have used, or may have, as far as this one knows; it decides nothing."""

    member: str = ""
    """The job among those that share (`sharing.member`): what a copy of its checkpoint has used, this one used."""


@dataclass(frozen=True, slots=True, eq=False)
class UsedBudgets:
    """What a batch left used of budgets, for those who watch; columns are those of the policy's budgets."""

    windows: CalendarWindows
    own_used: Int64s | None = None
    """Shape (namespaces of the batch, k); `None` if no namespace has a budget."""

    shared_used: Int64s | None = None
    """Shape (scopes, k); `None` if no shared scope has any."""

    by_others: Int64s | None = None
    """What other jobs used of these, as in `BudgetClaims`; `None` where this job shares none."""


@dataclass(frozen=True, slots=True, eq=False)
class Budgets:
    """The budgets of many scopes, for the keys that any of them has."""

    columns: tuple[int, ...]
    """Which of `BUDGETS` they are, ascending."""

    tokens: Int64s
    """Shape (n, k): `UNBOUNDED` where a scope has none."""

    is_enforcing: Bools
    """Shape (n, 1): whether the scope can hold rows back."""

    @classmethod
    def of(cls, limits: Limits, claims: BudgetClaims | None = None) -> Budgets | None:
        """Return the budgets of some scopes, each at most what is claimed; `None` if no scope of the policy has any."""
        columns = limits.budgets
        if not columns:
            return None
        tokens = np.stack([limits.settings[BUDGETS[at][0]] for at in columns], axis=1)
        if claims is not None:
            tokens = np.minimum(tokens, claims.may_use)
        return cls(columns, tokens, (limits.on_excess != OnExcess.OBSERVE)[:, None])

    def take(self, at: Int64s) -> Budgets:
        """Return the budgets of the scopes at `at`, in that order."""
        return Budgets(self.columns, self.tokens.take(at, axis=0), self.is_enforcing.take(at, axis=0))

    @property
    def dimension(self) -> Int64s:
        """Shape (k,): the `Dimension` that each column counts."""
        return np.array([BUDGETS[at][1] for at in self.columns], dtype=np.int64)

    @property
    def period(self) -> Int64s:
        """Shape (k,): the `Period` of each column."""
        return np.array([BUDGETS[at][2] for at in self.columns], dtype=np.int64)


def paces(limits: Limits) -> Int64s:
    """Return the least mean rates that rates and budgets allow, shape (n, 4); `UNLIMITED` where nothing is limited.

    They say how scarce messages are beside bytes where turns are counted, and hold nothing back.

    Examples
    --------
    A thousand messages a second, and 86,400 a day; and 8,640 bytes a day alone:

    >>> settings = {"messages_per_day": np.array([86_400, UNBOUNDED]), "bytes_per_day": np.array([UNBOUNDED, 8_640])}
    >>> rates = np.array([[1_000_000, -1, -1, -1], [-1, -1, -1, -1]])
    >>> paces(Limits(rates, 0 * rates, np.array([0, 0]), np.array([1, 1]), settings)).tolist()
    [[1000, -1, -1, -1], [-1, 100, -1, -1]]
    """
    budgets = Budgets.of(limits)
    if budgets is None:
        return limits.rate_micro_per_ms
    found = limits.rate_micro_per_ms.copy()
    for at, dimension, period in zip(budgets.columns, budgets.dimension, budgets.period, strict=True):
        tokens, rate = limits.settings[BUDGETS[at][0]], found[:, dimension]
        mean = np.maximum(
            np.minimum(tokens, _MOST_MEANT) * 1000 // _MEAN_SECONDS[Period(period)], np.minimum(tokens, 1)
        )
        least = np.where(rate == UNLIMITED, mean, np.minimum(rate, mean))
        found[:, dimension] = np.where(tokens < UNBOUNDED, least, rate)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """What many scopes have used of their budgets; both arrays have the shape (n, k), by the columns of `Budgets`."""

    used: Int64s
    """What was used in the window, with what was taken off it when it began; 0 where a scope has no budget."""

    over: Int64s
    """By how much the last row that passed exceeded the budget: it is taken off the next window."""

    @classmethod
    def nothing(cls, scopes: int, budgets: int) -> Spent:
        """Return that so many scopes have used nothing of so many budgets."""
        none = np.zeros((scopes, budgets), dtype=np.int64)
        return cls(none, none)

    def __len__(self) -> int:
        return len(self.used)

    @property
    def is_any(self) -> Bools:
        """Whether a scope has used anything, shape (n,)."""
        return np.logical_or.reduce(self.used > 0, axis=1)

    def take(self, at: Int64s) -> Spent:
        """Return those of the scopes at `at`, in that order; nothing is used at -1, the place of a new scope."""
        return Spent(*(np.append(each, np.zeros((1, each.shape[1]), np.int64), axis=0)[at] for each in self._columns))

    def with_new(self, count: int) -> Spent:
        """Return them with as many new scopes behind them, which have used nothing."""
        return self.take(np.append(np.arange(len(self)), np.full(count, -1)))

    def with_those(self, at: Int64s, others: Spent) -> Spent:
        """Return them with those of other scopes in the places `at`."""
        used, over = (each.copy() for each in self._columns)
        used[at], over[at] = others.used, others.over
        return Spent(used, over)

    @property
    def _columns(self) -> tuple[Int64s, Int64s]:
        return self.used, self.over

    def rooms(self, budgets: Budgets) -> Int64s:
        """Return how much may go before a row for each budget to let it pass, shape (n, k); -1 if none may.

        Examples
        --------
        Ten messages an hour let ten pass, and eleven used let none:

        >>> ten = Budgets((0,), np.array([[10], [10]]), np.array([[True], [True]]))
        >>> Spent(np.array([[0], [11]]), np.array([[0], [1]])).rooms(ten).tolist()
        [[9], [-1]]
        """
        return np.where(budgets.tokens < UNBOUNDED, np.maximum(budgets.tokens - self.used - 1, -1), UNBOUNDED)

    def charged(self, taken: Int64s, budgets: Budgets) -> Spent:
        """Return them after rows that took so many tokens, shape (n, 4)."""
        of_column, is_counted = taken.take(budgets.dimension, axis=1), budgets.tokens < UNBOUNDED
        used = np.where(is_counted, np.minimum(self.used + of_column, _MOST_USED), 0)
        over = np.where(is_counted & budgets.is_enforcing, np.maximum(used - budgets.tokens, 0), 0)
        return Spent(used, np.where(of_column > 0, over, self.over))

    def given_back(self, tokens: Int64s, budgets: Budgets) -> Spent:
        """Return them without tokens that were charged and are given back, shape (n, 4)."""
        of_column = tokens.take(budgets.dimension, axis=1)
        return Spent(*(np.maximum(each - of_column, 0) for each in self._columns))

    def corrected(self, owed: Int64s, budgets: Budgets) -> Spent:
        """Return them after it was told what rows used beyond the estimate, shape (n, k), negative where less.

        Examples
        --------
        Of 10 bytes an hour, 8 were used by the estimate. They were 12, or 5:

        >>> ten, spent = Budgets((3,), np.array([[10]]), np.array([[True]])), Spent(np.array([[8]]), np.array([[0]]))
        >>> for told in (spent.corrected(np.array([[each]]), ten) for each in (4, -3)):
        ...     told.used.tolist(), told.over.tolist()
        ([[12]], [[2]])
        ([[5]], [[0]])
        """
        is_counted = budgets.tokens < UNBOUNDED
        used = np.where(is_counted, np.clip(self.used + owed, 0, _MOST_USED), 0)
        beyond = np.maximum(used - budgets.tokens, 0)
        more = np.where(is_counted & budgets.is_enforcing, beyond, 0)
        return Spent(used, np.where(owed > 0, more, np.minimum(self.over, beyond)))

    def in_windows(
        self, windows: CalendarWindows, before: CalendarWindows, budgets: Budgets, claims: BudgetClaims | None = None
    ) -> Spent:
        """Return them in later windows: what was over is taken off, by a whole budget in each that passed.

        What a row took beyond the claims of this job alone was not over.

        Examples
        --------
        Of 10 bytes an hour, 25 were used by one message. An hour later, and after one more:

        >>> ten, spent = Budgets((3,), np.array([[10]]), np.array([[True]])), Spent(np.array([[25]]), np.array([[15]]))
        >>> first, second, third = (CalendarWindows(*np.full((3, 3), at)) for at in range(3))
        >>> [spent.in_windows(each, first, ten).used.tolist() for each in (second, third)]
        [[[15]], [[5]]]
        """
        begun = (windows.number - before.number)[budgets.period]
        if not begun.any():
            return self
        repaid = np.minimum(budgets.tokens, MAX_SIZE_BYTES) * np.clip(begun - 1, 0, _MOST_WINDOWS)
        by_others = 0 if claims is None else claims.by_others
        over = np.minimum(self.over, np.maximum(self.used + by_others - budgets.tokens, 0))
        left = np.maximum(over - repaid, 0)
        used = np.where(begun > 0, left, self.used)
        return Spent(used, np.where(begun > 0, np.maximum(left - budgets.tokens, 0), self.over))

    def under(self, before: Budgets, after: Budgets) -> Spent:
        """Return them under other budgets of the same scopes: what was used of those that stay counts."""
        used, over = np.zeros_like(after.tokens), np.zeros_like(after.tokens)
        for at, column in enumerate(after.columns):
            if column in before.columns:
                was = before.columns.index(column)
                stays = (before.tokens[:, was] < UNBOUNDED) & (after.tokens[:, at] < UNBOUNDED)
                used[:, at] = np.where(stays, self.used[:, was], 0)
                over[:, at] = np.minimum(self.over[:, was], np.maximum(used[:, at] - after.tokens[:, at], 0))
        return Spent(used, over)

    def wait_ms(
        self, budgets: Budgets, windows: CalendarWindows | None, now_ms: int, claims: BudgetClaims | None = None
    ) -> Int64s:
        """Return how long until something is left of each budget, by the dimension, shape (n, 4); 0 if there is.

        A budget of 0, and one that nobody says the end of, never has. What others claim may return before.
        """
        is_used = self.used >= budgets.tokens
        if claims is not None:
            is_used |= claims.is_spent & (self.used >= claims.may_use)
        wait_ms = np.zeros((len(self), len(Dimension)), dtype=np.int64)
        for at, (dimension, period) in enumerate(zip(budgets.dimension, budgets.period, strict=True)):
            tokens = budgets.tokens[:, at]
            edge_ms = NEVER_MS if windows is None else max(1, int(windows.until_ms[period]) - now_ms)
            until_ms = np.where(tokens == 0, NEVER_MS, edge_ms)
            spent_ms = np.where(is_used[:, at], until_ms, 0)
            wait_ms[:, dimension] = np.maximum(wait_ms[:, dimension], spent_ms)
        return wait_ms
