"""Metered functions in Spark: what they use reaches the control directory before the batch is committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.pandas import functions

from spark_throttle.control.charges import read_charges
from spark_throttle.files.storage import Directory
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from spark_throttle.core.time_charges import TimeCharges
    from spark_throttle.spark import Throttle
    from spark_throttle.spark.metering.meter import Meter
    from spark_throttle.spark.paced import IdempotencyKey

PANDAS_UDF: Any = functions.pandas_udf
ARROW_UDF: Any = functions.arrow_udf  # their overloads know no wrapper of a function

POLICIES: dict[str, Any] = {"defaults": {"publish": {"messages_per_second": 1000}}}
EVENTS = [(at, f"acme/{'ab'[at % 2]}", 10) for at in range(40)]
DEAR_NS = 2_000_000
FORMS = ["driver", "partition", "pandas", "arrow", "pandas udf", "arrow udf"]


def spend(time_ns: int) -> None:
    """Use CPU time of this thread."""
    until_ns = time.thread_time_ns() + time_ns
    while time.thread_time_ns() < until_ns:
        pass


def in_partition(rows: Iterator[Row]) -> None:
    spend(DEAR_NS * len(list(rows)))


def in_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        spend(DEAR_NS * len(frame))
        yield frame


def in_arrow(batches: Iterator[pa.RecordBatch], meter: Meter) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in batch.column("ns").to_pylist():
            with meter.charging(name):
                spend(DEAR_NS if name == "acme/a" else 0)
        yield batch


def by_pandas(ns: pd.Series, number: pd.Series) -> pd.Series:
    spend(DEAR_NS * len(ns))
    return number * 2


def by_arrow(ns: pa.Array, number: pa.Array) -> pa.Array:
    spend(DEAR_NS * len(ns))
    return number


def work_in_all_forms(throttle: Throttle, doubled: list[int]) -> Any:
    """Return a function for foreachBatch whose batches use each form in turn."""
    pandas_score = PANDAS_UDF(throttle.metered(by_pandas, namespace=0), "long")
    arrow_score = ARROW_UDF(throttle.metered(by_arrow, namespace=0), "long")

    def work(rows: DataFrame, batch: int) -> None:
        form = FORMS[batch] if batch < len(FORMS) else "the last batch, which has no rows"
        if form == "driver":
            spend(DEAR_NS * len(rows.collect()))
        elif form == "partition":
            rows.foreachPartition(throttle.metered(in_partition))
        elif form == "pandas":
            rows.mapInPandas(throttle.metered(in_pandas), rows.schema).collect()
        elif form == "arrow":
            rows.mapInArrow(throttle.metered(in_arrow), rows.schema).collect()
        elif form.endswith("udf"):
            score = pandas_score if form == "pandas udf" else arrow_score
            doubled.extend(row["score"] for row in rows.select(score("ns", "id").alias("score")).collect())

    return work


def charges_of(lake: Lake) -> dict[int, TimeCharges]:
    directory = Directory(str(lake.control))
    return read_charges(directory, after_batch=-1)


def test_every_form_of_function_is_charged_to_the_namespaces_of_its_rows(lake: Lake) -> None:
    for _ in FORMS:
        lake.offer(EVENTS)
    throttle, doubled = lake.throttle(POLICIES), list[int]()
    finish(lake.writer(throttle).foreachBatch(throttle.metered(work_in_all_forms(throttle, doubled))).start())
    found = charges_of(lake)
    assert sorted(found)[: len(FORMS)] == list(range(len(FORMS)))
    assert sorted(doubled) == sorted([2 * at for at in range(40)] + list(range(40)))
    for batch in range(len(FORMS)):
        charges = found[batch]
        used_ns = dict(zip(charges.names.to_pylist(), charges.time_ns.tolist(), strict=True))
        a_ns, b_ns = used_ns["acme/a"], used_ns["acme/b"]
        assert a_ns >= 20 * DEAR_NS, FORMS[batch]
        assert (b_ns < a_ns / 4) == (FORMS[batch] == "arrow"), (FORMS[batch], used_ns)
        if FORMS[batch] != "arrow":
            assert b_ns >= 20 * DEAR_NS, FORMS[batch]


@pytest.mark.thorough
def test_functions_that_a_plain_one_calls_for_its_batch_are_charged_to_the_batchs_rows(lake: Lake) -> None:
    lake.offer(EVENTS)
    throttle = lake.throttle(POLICIES)
    metered = throttle.metered(lambda rows, _: spend(DEAR_NS * rows.count()))

    def work(rows: DataFrame, batch: int) -> None:
        metered(rows, batch)
        metered(rows, batch)

    finish(lake.writer(throttle).foreachBatch(work).start())
    charges = charges_of(lake)[0]
    assert charges.names.to_pylist() == ["acme/a", "acme/b"]
    assert charges.time_ns.sum() >= 2 * 40 * DEAR_NS
    assert charges.unattributed_ns == 0


def test_decided_stream_is_charged_too_and_a_batch_again_replaces_its_charges(lake: Lake) -> None:
    control = str(lake.control)
    started = []

    def query(*, fails: bool) -> None:
        throttle = lake.throttle(POLICIES)
        decided = throttle.apply(lake.events(), control_path=control).where("throttle.verdict = 'ADMIT'")
        worked = decided.drop("throttle").mapInPandas(throttle.metered(in_pandas), decided.drop("throttle").schema)

        def keep(rows: DataFrame, batch: int) -> None:
            lake.keep(rows, batch)
            started.append(batch)
            if fails:
                raise KeyError(batch)

        writer = worked.writeStream.foreachBatch(keep).option("checkpointLocation", lake.checkpoint)
        with pytest.raises(StreamingQueryException, match="KeyError") if fails else nullcontext():
            finish(writer.trigger(availableNow=True).start())

    lake.offer(EVENTS)
    query(fails=True)
    first = read_charges(Directory(control), after_batch=-1)[0]
    query(fails=False)
    again = read_charges(Directory(control), after_batch=-1)[0]
    assert started[:2] == [0, 0]
    assert first.names.to_pylist() == again.names.to_pylist() == ["acme/a", "acme/b"]
    for charges in (first, again):
        assert 40 * DEAR_NS <= charges.time_ns.sum() < 70 * DEAR_NS


def send(rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
    assert rows
    assert key.namespace in {"acme/a", "acme/b"}


@pytest.mark.parametrize("sink", thorough_after(2, ["whole", "paced", "partitioned"]))
def test_sinks_are_charged_where_a_policy_has_a_quota_on_processing_time(lake: Lake, sink: str) -> None:
    lake.offer(EVENTS)
    writer = lake.writer(lake.throttle({"defaults": {"publish": {"request_percentage": 10_000}}}))
    if sink == "paced":
        query = writer.paced(send).start()
    else:
        partition = ("ns",) if sink == "partitioned" else ()
        query = writer.format("delta").partitionBy(*partition).start(lake.path("admitted"))
    finish(query)
    charges = charges_of(lake)[0]
    a_ns, b_ns = charges.time_ns.tolist()
    assert charges.names.to_pylist() == ["acme/a", "acme/b"]
    assert a_ns > 0
    assert abs(a_ns - b_ns) <= 1
