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
