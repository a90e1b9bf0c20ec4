"""Budgets of tokens by the window: what was used of them, and by how much the last row exceeded them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from spark_throttle.core.limits.budgets import BudgetClaims, Budgets, CalendarWindows, Spent
from spark_throttle.core.quota import UNBOUNDED
from tests.core.batch.worked_numbers import NS, one_namespace
from tests.oracle.decider import Decider, Engine
from tests.oracle.worlds import Namespace, limit


def test_only_a_budget_that_can_hold_rows_back_is_exceeded() -> None:
    tokens, is_enforcing = np.array([[10], [10], [UNBOUNDED]]), np.array([[True], [False], [True]])
    spent = Spent.nothing(3, 1).charged(np.array([[13, 0, 0, 0]] * 3), Budgets((0,), tokens, is_enforcing))
    assert (spent.used.tolist(), spent.over.tolist()) == ([[13], [13], [0]], [[3], [0], [0]])


@pytest.mark.parametrize("engine", get_args(Engine))
def test_nothing_is_demanded_of_a_budget_that_is_used_up(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_day=2))))
    decider.batch(0, [(NS, 1)] * 5)
    assert decider.plan.usage[NS].demand == (0, 0, 0, 0)


def test_job_waits_for_no_budget_of_which_it_has_something_left_though_all_of_it_is_claimed() -> None:
    """Rows that cost less than they were charged give a job back a part of what it claimed."""
    ten = Budgets((0,), np.array([[10]] * 3), np.array([[True]] * 3))
    claims = BudgetClaims(np.array([[5]] * 3), np.array([[True], [True], [False]]), np.zeros((3, 1), dtype=np.int64))
    windows = CalendarWindows(*np.array([[0] * 3, [0] * 3, [3_600_000] * 3]))
    spent = Spent(np.array([[4], [5], [5]]), np.zeros((3, 1), dtype=np.int64))
    assert spent.wait_ms(ten, windows, 600_000, claims)[:, 0].tolist() == [0, 3_000_000, 0]
