"""Costs that are known late reach the decider by a second stream and by a function, and count once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.control.reports import read_reports
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark import Throttle
from tests.integration.streams import Lake, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_throttle.spark.metering.meter import Meter

POLICIES: dict[str, Any] = {"job": {"unit": "tokens", "publish": {"units_per_second": 100, "burst_seconds": 1000}}}


def cost_of(number: int) -> int:
    """Return what a request really costs; it was estimated at 50."""
    return number * 37 % 101


def tell(folder: str, numbers: list[int], name: str) -> None:
    """Write what requests cost, by their numbers as text."""
    told = pa.table({"request": [str(each) for each in numbers], "tokens": [cost_of(each) for each in numbers]})
    Path(folder).mkdir(exist_ok=True)
    pq.write_table(told, Path(folder) / f"{name}.parquet")


def run(lake: Lake) -> None:
    """Run a query in which a function tells the costs of even requests, and a stream those of odd ones."""
    throttle = Throttle(POLICIES, namespace="ns", size="size", order_by=["id"], units="50", reservation="id")

    def call(rows: DataFrame, batch: int, meter: Meter) -> None:
        lake.keep(rows, batch)
        for number, *_ in lake.kept[batch]:
            if number % 2 == 0:
                meter.settle(number, cost_of(number))

    Path(lake.path("costs")).mkdir(exist_ok=True)
    costs = lake.spark.readStream.schema("request string, tokens long").parquet(lake.path("costs"))
    writer = lake.writer(throttle).settled_by(costs, "request", "tokens").usage(lake.path("usage"))
    finish(writer.foreachBatch(throttle.metered(call)).start())


@pytest.mark.without_delta
def test_costs_are_settled_once_by_a_second_stream_and_by_a_function(lake: Lake) -> None:
    lake.offer([(at, f"acme/{'ab'[at % 2]}", 1) for at in range(20)])
    run(lake)
    tell(lake.path("costs"), [number for number in lake.admitted_ids if number % 2], "odd")
    tell(lake.path("costs"), [1, 2, 999], "again and unknown")
    lake.offer([(100, "acme/a", 1)])
    run(lake)
    lake.crash_in(lake.last_batch())
    run(lake)
    assert lake.admitted_ids == [*range(20), 100]
    job = lake.usage("job")
    charged = sum(row["admitted_units"] + row["overdrawn_units"] - row["given_back_units"] for row in job)
    assert charged == sum(cost_of(number) for number in lake.admitted_ids)
    assert job[-1]["reserved_units"] == 0
    counts = [each.reservations for each in read_reports(Directory(str(lake.control)), after_batch=-1).values()]
    assert sum(each.settled_messages for each in counts if each) == 21
    assert sum(each.unknown_costs for each in counts if each) == 3
    spent = {row["scope"]: row["admitted_units"] for row in lake.usage("namespace") if row["admitted_units"]}
    assert spent.keys() == {"acme/a", "acme/b"}


def test_stream_of_costs_is_refused_where_it_could_not_be_settled_or_not_again(lake: Lake) -> None:
    costs, events = (lake.spark.readStream.format("rate").load() for _ in range(2))
    with pytest.raises(ConfigurationError, match="give the Throttle a reservation"):
        Throttle({}, namespace="'a'").write_stream(events).settled_by(costs, "value", "value")
    with pytest.raises(ConfigurationError, match="without units"):
        Throttle({}, namespace="'a'", reservation="value")
    throttle = Throttle({}, namespace="'a'", units="value", reservation="value")
    settled = throttle.apply(events, control_path=lake.path("apply"), settled_by=(costs, "value", "value"))
    assert settled.isStreaming
    for identity, units, problem in (
        ("timestamp", "value", "by which no row can be found again"),
        ("value", "cast(rand() as bigint)", "settled_by units"),
    ):
        writer = throttle.write_stream(events).settled_by(costs, identity, units)
        with pytest.raises(ConfigurationError, match=problem):
            writer.option("checkpointLocation", lake.checkpoint).start(lake.path("table"), "delta")
