"""A meter takes down times of any kind of number, and refuses what is none."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.metering.meter import Meter
from tests.spark.metering.metered_world import SECOND_NS


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 2.0**31, 10**400, "1", None, pd.NA])
def test_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="seconds cannot be charged: give 0 or more"):
        Meter("cpu").charge("a", seconds)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.float32, Decimal, Fraction])
def test_numbers_of_any_kind_are_charged_as_they_are(kind: Any) -> None:
    meter = Meter("cpu")
    meter.charge("a", kind(3))
    assert meter.charged_ns["a"] == meter.said_ns == 3 * SECOND_NS


def test_namespace_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="None is no namespace"):
        Meter("cpu").charge(None, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is no namespace"):
        Meter("cpu").charge("half a pair: \ud800", 1)


@pytest.mark.parametrize("identity", [None, True, 1.5, "half a pair: \ud800", ["a"]])
def test_identity_by_which_no_row_is_found_is_refused(identity: Any) -> None:
    with pytest.raises(ConfigurationError, match="identifies no row"):
        Meter("cpu").settle(identity, 1)


@pytest.mark.parametrize("units", [None, True, 1.5, -1, 2**36 + 1, "7"])
def test_cost_that_no_row_can_have_is_refused(units: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the cost of a row"):
        Meter("cpu").settle("a", units)


def test_cost_is_not_lost_that_is_told_after_the_call() -> None:
    meter, seven, five = Meter("cpu"), np.int64(7), np.int32(5)
    meter.settle(seven, five)  # type: ignore[arg-type]
    meter.end()
    assert meter.costs is not None
    assert meter.costs.units.tolist() == [5]
    with pytest.raises(ConfigurationError, match="after the metered function's call had ended"):
        meter.settle("a", 1)
