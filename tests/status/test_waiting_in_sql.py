"""The queries that the page on operating shows, over a usage table of some seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_throttle.status.usage_table import usage_rows
from tests.status.test_waiting import batches, policy_of_four

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path("docs/operating.md").read_text(encoding="utf-8")


def test_queries_of_the_page_tell_how_near_a_tenant_is_to_its_quota_and_how_long_it_waits(spark: SparkSession) -> None:
    policy = policy_of_four()
    seconds = batches(policy, 1, 40)
    rows = pa.concat_tables([usage_rows(report, policy, batch) for batch, (report, _) in enumerate(seconds)])
    spark.createDataFrame(rows).createOrReplaceTempView("usage")
    near, waited = (
        spark.sql(query.replace("delta.`/lake/usage/ingest`", "usage")).collect()
        for query in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    )
    waits_ms = sorted(wait for _, gone in seconds for name in ("a/x", "a/y") for wait in gone.get(name, []))

    assert [row["scope"] for row in near] == ["a"]
    assert near[0]["was_held_back"]
    assert near[0]["percent_of_quota"] is None  # its quota is on bytes
    for part, told_ms in zip((0.5, 0.95, 0.99), waited[0]["waited_ms"], strict=True):
        exact_ms = waits_ms[round(part * (len(waits_ms) - 1))]
        assert told_ms == pytest.approx(exact_ms, rel=0.1)
