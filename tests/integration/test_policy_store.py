"""A query follows a policy store: what is committed acts in the next batch, and Spark reads the store as a table."""

from __future__ import annotations

import json
import shutil

import pytest

from jobs import throttle_stream
from spark_throttle.errors import ConfigurationError, StoreError
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change
from tests.integration.streams import Lake

ANN = Author("ann", "a test")
OPEN = {"publish": {"messages_per_second": 1_000_000}}
SHUT = {"publish": {"messages_per_second": 0, "on_excess": "reject"}}


def test_committed_change_acts_in_the_next_batch_and_a_lost_store_changes_nothing(lake: Lake) -> None:
    where = lake.path("policy_store")
    service = PolicyService(DeltaStore.create(where), clock_ms=lambda: 0)
    service.put("tenant", "t", OPEN, ANN)
    throttle = lake.throttle(f"delta:{where}")
    query = lake.writer(throttle).trigger(processingTime="0 seconds").foreachBatch(lake.keep).start()
    seen = []

    def offer(number: int) -> None:
        lake.offer([(number, "t/n", 10)])
        query.processAllAvailable()
        status = throttle.status(query)
        seen.append((status.store_revision, status.problem is None))

    offer(0)
    service.put("tenant", "t", SHUT, ANN)
    offer(1)
    service.put("namespace", "t/*", OPEN, ANN)  # the tenant's quota holds it still
    offer(2)
    service.put("exempt", "t/n", {}, ANN)
    offer(3)
    service.store.commit([Change("job", "", '{"newer": 1}')], expected_revision=4, author=ANN, at_ms=0)
    offer(4)
    service.rollback(2, ANN)
    offer(5)
    rows = lake.spark.read.format("delta").load(where).where("form = 'change'").orderBy("revision").collect()
    shutil.rmtree(where)
    offer(6)
    query.stop()
    assert seen == [(1, True), (2, True), (3, True), (4, True), (4, False), (6, True), (6, False)]
    assert lake.admitted_ids == [0, 3, 4]
    assert lake.rejected_ids == [1, 2, 5, 6]
    assert [(row["revision"], row["kind"], row["name"], row["who"]) for row in rows][:4] == [
        (1, "tenant", "t", "ann"),
        (2, "tenant", "t", "ann"),
        (3, "namespace", "t/*", "ann"),
        (4, "exempt", "t/n", "ann"),
    ]


def test_query_does_not_start_on_a_store_that_cannot_be_applied(lake: Lake) -> None:
    """<https://github.com/apache/kafka/pull/21108>: no quota until the configuration comes."""
    where = lake.path("policy_store")
    store = DeltaStore.create(where)
    store.commit([Change("job", "", '{"newer": 1}')], expected_revision=0, author=ANN, at_ms=0)
    lake.offer([(0, "t/n", 10)])
    writer = lake.writer(lake.throttle(f"delta:{where}")).foreachBatch(lake.keep)
    with pytest.raises(Exception, match=r"job\.newer: unknown key"):
        writer.start().processAllAvailable()


def test_policies_that_are_not_there_are_told_before_spark_starts_anything(lake: Lake) -> None:
    lake.offer([(0, "t/n", 10)])
    for missing, kind in ((lake.path("{env}.yaml"), ConfigurationError), (f"delta:{lake.path('no')}", StoreError)):
        writer = lake.writer(lake.throttle(missing)).foreachBatch(lake.keep)
        with pytest.raises(kind, match=r"which does not exist|there is no policy store"):
            writer.start()
    assert not lake.spark.streams.active
    assert not lake.control.exists()


def test_shipped_job_follows_a_store(lake: Lake) -> None:
    where = lake.path("policy_store")
    service = PolicyService(DeltaStore.create(where), clock_ms=lambda: 0)
    service.put("tenant", "t", SHUT, ANN)
    service.put("exempt", "t/open", {}, ANN)
    lake.offer([(0, "t/n", 10), (1, "t/open", 10)])
    schema = lake.events().schema.simpleString().removeprefix("struct<").removesuffix(">").replace(":", " ")
    document = {
        "source": {"format": "parquet", "path": lake.path("events"), "schema": schema},
        "throttle": {"policies": "p.yaml", "namespace": "ns", "size": "size", "order_by": ["id"]},
        "sink": {"format": "parquet", "path": lake.path("admitted")},
        "rejected": {"format": "parquet", "path": lake.path("rejected")},
        "checkpoint": lake.checkpoint,
        "trigger": {"processing_time": None, "available_now": True},
    }
    settings = lake.root / "throttle.yaml"
    settings.write_text(json.dumps(document))

    def ids(table: str) -> list[int]:
        return sorted(row.id for row in lake.spark.read.parquet(lake.path(table)).collect())

    assert throttle_stream.main(["--conf", str(settings), "--set", f"throttle.policies=delta:{where}"]) == 0
    assert (ids("admitted"), ids("rejected")) == ([1], [0])
