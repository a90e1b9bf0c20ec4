"""`AsyncTokenBucket` answers as Pulsar's class of that name does: as shipped in 4.2, and as published in 4.0.

Each case is replayed call by call. Where ours differs, `DIFFERENT` has what ours answers, and why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from spark_throttle.pace import AsyncTokenBucket, Limit
from spark_throttle.pace.token_bucket import Rule

HERE = Path(__file__).parent
RULES: Final[dict[str, Rule]] = {"async": "shipped", "async_pip322": "published"}
PULSARS_RESOLUTION_NS: Final = 16_000_000

_OVERFLOW: Final = "Pulsar's balance overflows a long; a whole number of Python does not"
_ROUNDED_UP: Final = "Pulsar carries a whole nanosecond where a part of one is left over, and so pays it twice"
DIFFERENT: Final[dict[str, tuple[str, dict[int, Any]]]] = {
    "async-corner-zero-rate": ("Pulsar divides by zero; a rate of 0 adds nothing", {0: 0}),
    "async-corner-huge-rate": (_OVERFLOW, {1: False, 2: 10**18}),
    "async-0337": (_ROUNDED_UP, {9: -3_152_753_672 - 5}),
    "async_pip322-corner-huge-rate": (_OVERFLOW, {2: 10**18, 3: 10**18}),
    "async_pip322-corner-idle-overflow": (_OVERFLOW, {1: True, 2: 50_000_000, 3: 60_000_000, 4: 0}),
    "async_pip322-0288": (_ROUNDED_UP, {17: 3_637_817 + 11, 18: 3_637_817 + 11}),
}
"""By case: why ours differs, and what it answers at which places."""


class Replay:
    """One case, on a clock that reads what its events say."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case = case
        self._now_ns: int = case["start_ns"]
        self._resolution_ns: int = case.get("resolution_ns", PULSARS_RESOLUTION_NS)
        rate = case["rate"]
        initial = int(rate * case.get("initial_factor", 1.0)) if "dynamic" in case else case.get("initial", rate)
        self._bucket = AsyncTokenBucket(
            self._limit(rate), initial_tokens=initial, resolution_ns=self._resolution_ns, rule=RULES[case["kind"]],
            clock_ns=lambda: self._now_ns,
        )  # fmt: skip

    def _limit(self, rate: int) -> Limit:
        case, period_ns = self._case, self._case.get("period_ns", 1_000_000_000)
        if "dynamic" in case:  # burst and target follow the rate
            burst = int(rate * case.get("capacity_factor", 1.0))
            target = int(rate * case.get("target_factor", 0.01))
        else:
            burst = case.get("capacity", rate)
            by_rule = {"async": burst // 100, "async_pip322": self._resolution_ns * rate // period_ns}
            target = case.get("target", by_rule[case["kind"]])
        # Pulsar's target may lie above the burst; that of `Limit.of` may not.
        return Limit(rate, period_ns, burst, max(1, target))

    def answers(self) -> list[Any]:
        return [self._answer(**event) for event in self._case["events"]]

    def _answer(self, t_ns: int, op: str, n: int = 0) -> Any:
        self._now_ns = t_ns
        bucket = self._bucket
        asked: dict[str, Callable[[], Any]] = {
            "consume": lambda: bucket.consume(n),
            "consume_check": lambda: bucket.consume_and_check(n),
            "tokens": bucket.balance_tokens,
            "contains": bucket.contains_tokens,
            "contains_force": lambda: bucket.contains_tokens(is_consistent=True),
            "throttle": bucket.throttle_time_ns,
            "throttle_for": lambda: bucket.throttle_time_ns(n),
            "set_rate": lambda: bucket.set_limit(self._limit(n), is_past_paid=False),
        }
        return asked[op]()


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


CASES = [case for name in RULES for case in cases(name)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_bucket_answers_as_pulsars(case: dict[str, Any]) -> None:
    _, changes = DIFFERENT.get(case["id"], ("", {}))
    expected = case["expect"] if isinstance(case["expect"], list) else [None] * len(case["events"])
    assert Replay(case).answers() == [changes.get(at, answer) for at, answer in enumerate(expected)]


def test_vectors_are_kept_as_they_were_written() -> None:
    listed = (HERE / "PROVENANCE.md").read_text()
    for name in RULES:
        assert hashlib.sha256((HERE / f"{name}.jsonl").read_bytes()).hexdigest() in listed


def test_a_difference_is_real_and_rare() -> None:
    by_id = {case["id"]: case for case in CASES}
    assert len(by_id) == 369
    assert all(Replay(by_id[name]).answers() != by_id[name]["expect"] for name in DIFFERENT)
    assert len(DIFFERENT) <= 6
