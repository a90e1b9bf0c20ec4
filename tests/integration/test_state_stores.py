"""A job goes on after a crash, with the rows that waited, on each state store of Spark 4.2 that it may run on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.start.state_settings import FORMAT, PROVIDER
from spark_throttle.spark.state_reader import read_queued
from tests.effort import IS_SEARCH, thorough_after
from tests.integration.streams import Lake, policies, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROCKSDB = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
CHANGELOG = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {FORMAT: "2"}
STORES = {
    "RocksDB": ROCKSDB,
    "RocksDB with changelog, format 2": {**ROCKSDB, **CHANGELOG, **FORMAT_2},
    **(
        {"RocksDB with changelog": {**ROCKSDB, **CHANGELOG}, "RocksDB, format 2": {**ROCKSDB, **FORMAT_2}}
        if IS_SEARCH
        else {}
    ),
}
"""All other tests run on Spark's default, the store in files of the checkpoint."""

REFUSED = publish(messages_per_second=0, on_excess="reject")


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


@pytest.mark.parametrize("store", thorough_after(1, STORES))
def test_job_goes_on_after_a_crash_with_the_rows_that_waited(lake: Lake, store: str) -> None:
    numbers = [10 * batch + i for batch in range(2) for i in range(9)]
    of_tenant = {tenant: [n for n in numbers if n % 10 % 3 == i] for i, tenant in enumerate(("good", "slow", "bad"))}
    with settings(lake.spark, STORES[store]):
        for batch in range(2):
            lake.offer(
                (n, f"{tenant}/{n % 2}", 1) for tenant, all_of in of_tenant.items() for n in all_of if n // 10 == batch
            )
            lake.run(policies(tenants={"slow": publish(messages_per_second=0), "bad": REFUSED}))
        assert sorted(row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()) == of_tenant["slow"]
        lake.crash_in(lake.last_batch())
        lake.run(policies(tenants={"bad": REFUSED}))
    assert lake.admitted_ids == sorted(of_tenant["good"] + of_tenant["slow"])
    assert lake.rejected_ids == of_tenant["bad"]
    other = {FORMAT: "1" if FORMAT in STORES[store] else "2"}
    with settings(lake.spark, other), pytest.raises(ConfigurationError, match="which Spark does not convert"):
        lake.run(policies())
