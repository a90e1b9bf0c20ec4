"""The decided stream of `apply`, whose rows are staged and read where they leave."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.spark.state_reader import read_queued
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

BAD = publish(messages_per_second=0, on_excess="reject")
SHUT = policies(tenants={"slow": publish(messages_per_second=0), "bad": BAD})
SLOWLY = policies(tenants={"slow": publish(messages_per_second=8, burst_seconds=0.5), "bad": BAD})
NAMES = ("slow/a", "bad/d", "slow/c", *["fast/b"] * 13)
"""So few wait that they get a file of their own."""


def start(lake: Lake, limits: Any, *, then: Any = None) -> StreamingQuery:
    """Start a query into Spark's file sink, with a step before it."""
    decided = lake.throttle(limits).apply(lake.events(), control_path=str(lake.control))
    rows = decided if then is None else decided.mapInArrow(then, decided.schema)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", lake.checkpoint)
    return writer.trigger(availableNow=True).start(lake.path("out"))


def offer(lake: Lake, batches: Iterable[int]) -> None:
    for batch in batches:
        lake.offer((batch * 100 + at, name, 5) for at, name in enumerate(NAMES))


def ids_of(lake: Lake, verdict: str) -> list[int]:
    found: DataFrame = lake.spark.read.parquet(lake.path("out")).where(f"throttle.verdict = '{verdict}'")
    return sorted(row["id"] for row in found.collect())


def is_in_order(lake: Lake) -> bool:
    """Return whether the rows of each namespace are in their order in each file of the sink, which has one a batch."""
    for path in Path(lake.path("out")).glob("*.parquet"):
        rows = pq.read_table(path, columns=["ns", "id"]).to_pylist()
        pairs = sorted(((row["ns"], row["id"]) for row in rows), key=lambda pair: pair[0])
        if pairs != sorted(pairs):
            return False
    return True


class FailingOnce:
    """Passes rows on, and fails behind the first of them if a file is there, which it removes."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if self._mark.exists():
                self._mark.unlink()
                raise OSError("the disk is full")


def test_rows_that_waited_leave_once_and_in_order_whatever_failed_or_was_put_back(lake: Lake) -> None:
    offer(lake, range(3))
    finish(start(lake, SHUT))
    slow, bad, fast = (
        [batch * 100 + at for batch in range(4) for at, name in enumerate(NAMES) if name.startswith(tenant)]
        for tenant in ("slow", "bad", "fast")
    )
    assert ids_of(lake, "ADMIT") == fast[:39]
    assert ids_of(lake, "REJECT") == bad[:3]
    assert any("-rest-" in path.name for path in (lake.control / "staged").iterdir())
    assert read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema).count() == 6
    kept = {name: lake.root / f"kept-{name}" for name in ("checkpoint", "out")}
    for name, copy in kept.items():
        shutil.copytree(lake.root / name, copy)

    offer(lake, [3])
    mark = lake.root / "fail"
    mark.touch()
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        finish(start(lake, SLOWLY, then=FailingOnce(mark)))
    finish(start(lake, SLOWLY, then=FailingOnce(mark)))

    def check() -> None:
        assert ids_of(lake, "ADMIT") == sorted([*fast, *slow])
        assert ids_of(lake, "REJECT") == bad
        assert is_in_order(lake)
        assert read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema).count() == 0

    check()
    for name, copy in kept.items():
        shutil.rmtree(lake.root / name)
        copy.rename(lake.root / name)
    finish(start(lake, SLOWLY))
    check()
