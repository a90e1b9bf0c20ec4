"""`SampledRate` answers as Kafka's `Rate` and its quota do: to the bit in doubles, and exactly but for one rounding."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.sampled_rate import RateReading, SampledRate

VECTORS = Path(__file__).parent / "kafka_rate.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line, parse_float=Decimal) for line in VECTORS.read_text().splitlines()]

TOLERANCE = Fraction(1, 10**15)
"""Of a rate: what doubles lose in a sum of some hundred amounts."""

EXPLAINED_THROTTLES: Final = {
    (
        "kafka_rate-0314",
        9,
    ): "(334.9 - 200) / 200 * 1,000 is 674.5 ms, so 675 when rounded half up; doubles give less",
}
"""Throttle times, by case and event, at which Kafka's doubles round to another millisecond than exact numbers."""


def readings(case: dict[str, Any], number: type[Fraction | float]) -> list[RateReading]:
    rate = SampledRate(number(case["rate"]), case["samples"], case["window_ms"], number)
    return [rate.record(number(event["n"]), event["t_ms"]) for event in case["events"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_rate_in_doubles_is_kafkas_to_the_bit(case: dict[str, Any]) -> None:
    told = [(each["rate"], each["window_ms"], each["throttle_ms"]) for each in case["expect"]]
    got = [(each.per_second, each.divisor_ms, each.throttle_time_ms) for each in readings(case, float)]
    assert got == [(float(rate), divisor_ms, throttle_ms) for rate, divisor_ms, throttle_ms in told]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_exact_rate_differs_from_kafkas_by_rounding_alone(case: dict[str, Any]) -> None:
    for at, (got, told) in enumerate(zip(readings(case, Fraction), case["expect"], strict=True)):
        assert abs(Fraction(got.per_second) - Fraction(told["rate"])) <= TOLERANCE * Fraction(told["rate"])
        assert got.divisor_ms == told["window_ms"]
        if (case["id"], at) in EXPLAINED_THROTTLES:
            assert abs(got.throttle_time_ms - told["throttle_ms"]) == 1
        else:
            assert got.throttle_time_ms == told["throttle_ms"]


def test_kafka_says_600_and_2100_ms_of_its_own_test() -> None:
    """`ClientQuotaManagerTest`: 400 for 10 s, then 2,300 half a second later, of 500."""
    case = {"rate": 500, "samples": 11, "window_ms": 1_000}
    events = [{"t_ms": second * 1_000, "n": 400} for second in range(10)] + [{"t_ms": 10_500, "n": 2_300}]
    assert readings({**case, "events": events}, float)[-1] == RateReading(600.0, 10_500, 2_100)


def test_vectors_are_present_and_unchanged() -> None:
    digest = hashlib.sha256(VECTORS.read_bytes()).hexdigest()
    assert digest in (VECTORS.parent / "PROVENANCE.md").read_text()
    assert len(CASES) == 160
    assert sum(each["throttle_ms"] > 0 for case in CASES for each in case["expect"]) == 1_147


def test_one_difference_is_explained() -> None:
    events = {(case["id"], at) for case in CASES for at in range(len(case["events"]))}
    assert events.issuperset(EXPLAINED_THROTTLES)
    assert len(EXPLAINED_THROTTLES) == 1
