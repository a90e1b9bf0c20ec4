"""Metered functions that the driver calls for a batch."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from spark_throttle.core.usage import UsageReport
from spark_throttle.spark.metering import charging
from spark_throttle.spark.metering.charging import running_batch
from spark_throttle.spark.metering.meter import Meter
from tests.spark.metering.metered_world import SECOND_NS, World


def report_of(messages: dict[str, int]) -> UsageReport:
    """Return a report of so many admitted messages of each namespace."""
    names = pa.array(list(messages), pa.string())
    pairs = np.array([[count, 0, 0, 0] for count in messages.values()], dtype=np.int64).reshape(-1, 4)
    none = np.zeros(len(names), dtype=np.int64)
    return UsageReport(
        1,
        "r1",
        0,
        names,
        none - 1,
        none - 1,
        none + 1,
        pairs,
        pairs,
        0 * pairs,
        0 * pairs,
        0 * pairs,
        none,
        none,
        np.zeros((1, 3), np.int64),
        0,
        0,
        0,
    )


def batch_of(world: World, number: int = 3, /, **messages: int) -> contextlib.AbstractContextManager[None]:
    """Return what tells functions how many messages of each namespace the running batch admitted."""
    return running_batch(world.directory, number, report_of(messages))


def frame() -> DataFrame:
    """Return the rows of a batch, which no test looks at."""
    return object.__new__(DataFrame)


def test_function_that_a_plain_function_calls_for_its_batch_is_charged_to_the_batchs_rows(world: World) -> None:
    metered = world.metered(lambda *_: world.spend(400))
    with batch_of(world, a=3, b=1):
        metered(frame(), 3)
    assert world.charged_ns() == {"a": 300, "b": 100}


def test_functions_that_are_called_for_one_batch_add_up(world: World) -> None:
    dear, cheap = world.metered(lambda *_: world.spend(100)), world.metered(lambda *_: world.spend(7))
    with batch_of(world, a=1):
        dear(frame(), 3)
        cheap(frame(), 3)
    assert world.charged_ns() == {"a": 107}
    with batch_of(world, 4, a=1):
        cheap(frame(), 4)
    assert world.charged_ns(3) == {"a": 107}
    assert world.charged_ns(4) == {"a": 7}


def test_function_of_the_driver_that_calls_another_charges_its_own_time_and_keeps_what_that_said(world: World) -> None:
    def inner(_: DataFrame, __: int, meter: Meter) -> None:
        meter.charge("gpu", 1)
        world.spend(2 * SECOND_NS)

    def outer(rows: DataFrame, batch: int, meter: Meter) -> None:
        world.spend(3)
        with meter.charging("model"):
            world.spend(30)
            world.metered(inner)(rows, batch)
        with contextlib.suppress(KeyError):
            world.metered(fails)(rows, batch)
        world.spend(4)

    def fails(_: DataFrame, __: int) -> None:
        world.spend(500)
        raise KeyError(7)

    with batch_of(world, a=1):
        world.metered(outer)(frame(), 3)
    assert world.charged_ns() == {"gpu": SECOND_NS, "a": SECOND_NS + 7, "model": 30}


def test_another_run_of_a_batch_replaces_what_the_driver_was_charged(world: World) -> None:
    for run, spent_ns in ((b"5e5e5e5e5e5e5e5e", 400), (b"c4c4c4c4c4c4c4c4", 10)):
        world.directory.write("run", run)
        with batch_of(world, a=1):
            world.metered(lambda *_, spent_ns=spent_ns: world.spend(spent_ns))(frame(), 3)
    assert world.charged_ns() == {"a": 10}


@pytest.mark.parametrize("has_quota", [True, False])
def test_write_for_which_the_driver_waits_is_charged_by_rows_where_a_policy_limits_time(
    world: World, monkeypatch: pytest.MonkeyPatch, *, has_quota: bool
) -> None:
    monkeypatch.setattr(charging, "is_metered", lambda *_: has_quota)
    monkeypatch.setattr("time.perf_counter_ns", lambda: world.now_ns)
    with charging.metered_write(world.directory, 3, report_of({"a": 3, "b": 1})):
        world.spend(400)
    assert world.charged_ns() == ({"a": 300, "b": 100} if has_quota else {})


def test_write_that_fails_is_not_charged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "is_metered", lambda *_: True)
    with contextlib.suppress(KeyError), charging.metered_write(world.directory, 3, report_of({"a": 3})):
        raise KeyError(7)
    assert world.charged_ns() == {}
