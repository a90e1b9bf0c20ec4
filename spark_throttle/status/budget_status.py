"""Budgets as a job's last batch left them: what is used, what is left, when that ends, and when they begin anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from spark_throttle.core.limits.budgets import Budgets, UsedBudgets
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import BUDGETS, UNBOUNDED, CompiledPolicy, Dimension, Int64s, Limits, Period
from spark_throttle.core.usage import UsageReport

_MEAN_MS: Final = {Period.HOUR: 3_600_000, Period.DAY: 86_400_000, Period.MONTH: 2_629_746_000}


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """One budget of a scope."""

    budget: str
    """Its key, such as `messages_per_day`."""

    tokens: int
    """The messages, bytes or units that it is of."""

    used: int
    """What was used in its window, by all jobs that share it, as far as this one knows; more than it is of, if a
    message was larger than what was left, or it was lowered."""

    left: int
    resets_in_ms: int
    """How long after the batch it begins anew."""

    lasts_ms: int | None
    """How long what is left lasts after the batch, at the mean pace of the window so far; `None` if until its end."""

    @property
    def dimension(self) -> Dimension:
        """What it counts."""
        return next(dimension for key, dimension, _ in BUDGETS if key == self.budget)

    def release_ms(self, waiting: int) -> int | None:
        """Return how long until a backlog may have left, as far as this budget goes; `None` for never."""
        beyond = waiting - self.left
        if beyond <= 0:
            return 0
        if not self.tokens:
            return None
        period = next(period for key, _, period in BUDGETS if key == self.budget)
        return self.resets_in_ms + (-(-beyond // self.tokens) - 1) * _MEAN_MS[period]


BudgetsByScope: TypeAlias = dict[tuple[str, str], tuple[BudgetStatus, ...]]
"""The budgets of scopes, by level and shown name."""


def budgets_by_scope(report: UsageReport, policy: CompiledPolicy) -> BudgetsByScope:
    """Return the budgets of the shared scopes, and of the namespaces of a report of a batch of this policy."""
    used = report.budgets
    if used is None or report.revision != policy.revision:
        return {}
    found: BudgetsByScope = {}
    if used.shared_used is not None:
        names = [
            ("job", "job"), *(("tenant", name) for name in policy.tenant_names.to_pylist()),
            *(("resource_group", name) for name in policy.group_names.to_pylist()),
        ]  # fmt: skip
        of_all = used.shared_used if used.by_others is None else used.shared_used + used.by_others
        found |= zip(names, _of(policy.shared, of_all, used, report.as_of_ms), strict=True)
    if used.own_used is not None:
        limits = policy.namespace_limits.take(match(report.names, policy).rule)
        own = _of(limits, used.own_used, used, report.as_of_ms)
        found |= {("namespace", name): each for name, each in zip(shown(report.names).to_pylist(), own, strict=True)}
    return {scope: each for scope, each in found.items() if each}


def _of(limits: Limits, used: Int64s, of: UsedBudgets, now_ms: int) -> list[tuple[BudgetStatus, ...]]:
    budgets = Budgets.of(limits)
    if budgets is None:
        return [()] * len(limits)
    has = np.flatnonzero(np.logical_or.reduce(budgets.tokens < UNBOUNDED, axis=1))
    found: list[tuple[BudgetStatus, ...]] = [()] * len(limits)
    for at in has.tolist():
        found[at] = tuple(
            _one(column, tokens, taken, of, now_ms)
            for column, tokens, taken in zip(
                budgets.columns, budgets.tokens[at].tolist(), used[at].tolist(), strict=True
            )
            if tokens < UNBOUNDED
        )
    return found


def _one(column: int, tokens: int, used: int, of: UsedBudgets, now_ms: int) -> BudgetStatus:
    key, _, period = BUDGETS[column]
    left, resets_in_ms = max(tokens - used, 0), max(int(of.windows.until_ms[period]) - now_ms, 0)
    lasts_ms = 0 if not left else None
    if left and used:
        lasts_ms = left * max(now_ms - int(of.windows.since_ms[period]), 1) // used
    return BudgetStatus(
        key, tokens, used, left, resets_in_ms, None if lasts_ms is None or lasts_ms >= resets_in_ms else lasts_ms
    )
