"""`proportional` and `drifted` answer as Pulsar's calculator and its report suppression do, case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_throttle.sharing.pip82 import drifted, proportional

HERE = Path(__file__).parent


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def total(usages: list[int]) -> int:
    """Return the sum as Java's long: it wraps."""
    return (sum(usages) + 2**63) % 2**64 - 2**63


def ask(quota: int, usage: int, everyone: list[int]) -> int:
    one = proportional(np.array([quota]), np.array([usage]), np.array([total(everyone)]))
    return int(one[0])


@pytest.mark.parametrize("case", cases("pulsar.jsonl"), ids=lambda case: case["id"])
def test_proportional_is_pulsars_calculator(case: dict[str, Any]) -> None:
    if "error" in case["expect"]:
        with pytest.raises(ValueError, match="negative"):
            ask(case["conf"], case["my"], case["all"])
    else:
        assert ask(case["conf"], case["my"], case["all"]) == case["expect"]["quota"]


@pytest.mark.parametrize("case", cases("pulsar_group.jsonl"), ids=lambda case: case["id"])
def test_proportional_is_pulsars_calculator_for_each_broker_of_a_group(case: dict[str, Any]) -> None:
    usage = np.array(case["all"], dtype=np.int64)
    got = proportional(np.full_like(usage, case["conf"]), usage, np.full_like(usage, total(case["all"])))
    assert got.tolist() == case["expect"]["quotas"]


def test_reports_are_suppressed_as_pulsars_are() -> None:
    rows = cases("pulsar_report.jsonl")

    def column(*names: str) -> np.ndarray:
        return np.array([[row[name] for name in names] for row in rows], dtype=np.int64)

    got = drifted(
        column("msgs", "bytes"), column("last_msgs", "last_bytes"),
        column("since_ms")[:, 0], column("max_interval_ms")[:, 0],
    )  # fmt: skip
    assert got.tolist() == [row["expect"]["report"] for row in rows]
    assert 0 < got.sum() < len(rows)
