"""The law of budgets speaks where a budget is given twice, or rows wait beside one, and is silent where it is kept."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from spark_throttle.core.limits.budgets import Spent
from tests.life.laws import Violation
from tests.life.laws_of_budgets import Budget
from tests.life.life import Birth, Life

HOUR_MS: Final = 3_600_000
BUDGETS: Final[dict[str, Any]] = {
    "version": 1,
    "tenants": {"acme": {"publish": {"messages_per_hour": 50}}},
    "namespaces": {"acme/b": {"publish": {"bytes_per_day": 700}}},
}


def live() -> Life:
    life = Life(Birth(BUDGETS), laws=["Budget", "L4"])
    for after_ms in (1_000, 1_000, 1_000, HOUR_MS, 1_000, 9 * HOUR_MS, 15 * HOUR_MS):
        life.offer([("acme/a", 10, 30), ("acme/b", 100, 4)])
        life.trigger(after_ms)
        life.trigger(1_000)
    return life


def test_budget_that_is_kept_is_silent() -> None:
    (law,) = (law for law in live()._watching if isinstance(law, Budget))
    assert law.counted > 100


def test_budget_that_forgets_what_was_used_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spent, "charged", lambda self, _taken, _budgets: self)
    with pytest.raises(Violation, match=r"Budget: \('tenant', 'acme'\) admitted"):
        live()


def test_budget_that_holds_rows_for_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = Spent.rooms
    monkeypatch.setattr(Spent, "rooms", lambda self, budgets: np.where(self.used > 20, -1, rooms(self, budgets)))
    with pytest.raises(Violation, match="waits for 2 triggers"):
        live()
