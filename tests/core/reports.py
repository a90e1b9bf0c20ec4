"""A report of two namespaces, one of which the policy does not name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.budgets import CalendarWindows, UsedBudgets
from spark_throttle.core.usage import ReservationCounts, UsageReport
from spark_throttle.core.waiting_times import WaitingTimes


def usage_of_two() -> UsageReport:
    """Return the report of a batch."""
    offered, admitted, rejected, waiting, demand = (
        np.array([[n, 100 * n, 5 * n, 7 * n], [0, 2**40 + n, 2**30 + n, 2**50 + n]]) for n in range(5)
    )
    report = UsageReport(
        9, "0123456789abcdef", 1_760_000_000_003, pa.array(["acme/orders", "zoë/ü/logs"]), np.array([0, -1]),
        np.array([-1, 0]), np.array([1, 1000]), offered, admitted, rejected, waiting, demand, np.array([0, 2]),
        np.array([0, 12_345]), np.array([[-1, 0, 0, 0], [5_000_000, 2**60, 0, -(2**40)]]), 1_760_000_000_500,
        1_760_000_000_400, 1_760_000_000_900, 4, 1_760_000_000_001, (0, 2, 0), np.array([-1, 86_400_000]),
        WaitingTimes.of(np.array([1, 1]), np.array([12_000, 345])), np.array([[-1, -1], [2, 1]]),
        np.array([[-1, -1, -1, -1], [3, 2**40, -1, -1]]), np.array([[7, -1, -1, -1], [-1, 2**41, 5, 9]]),
        np.array([-5, 2**50]),
        np.array([[3, 300, 15], [0, 0, 0]]), 5,
    )  # fmt: skip
    windows = CalendarWindows(*np.array([[7, 1, 0], [5, 6, 2**41], [8, 9, 2**42]]))
    report = replace(
        report,
        budgets=UsedBudgets(windows, np.array([[5], [2**40]]), *np.array([[[1, 2], [3, 2**53]], [[0, 1], [2, 0]]])),
    )
    report = replace(report, reservations=ReservationCounts(*range(1, 7)))
    unset = [each.name for each in fields(UsageReport) if getattr(report, each.name) is None]
    numbers: dict[str, Any] = {name: np.array([at, 2**40]) for at, name in enumerate(unset)}
    return replace(report, **numbers)
