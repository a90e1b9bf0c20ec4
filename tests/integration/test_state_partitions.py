"""Spark gives a query that starts for the first time one state partition, and other shuffles their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spark_throttle.spark.start.state_settings import SHUFFLE_PARTITIONS, STATE_PARTITIONS, partitions_of
from tests.integration.streams import Lake, finish, policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


@pytest.fixture
def session_of_seven(lake: Lake) -> Iterator[Lake]:
    """Yield a lake whose session shuffles to seven partitions."""
    before = str(lake.spark.conf.get(SHUFFLE_PARTITIONS))
    lake.spark.conf.set(SHUFFLE_PARTITIONS, "7")
    yield lake
    lake.spark.conf.set(SHUFFLE_PARTITIONS, before)


def test_query_has_one_state_partition_and_its_function_shuffles_to_those_of_the_session(
    session_of_seven: Lake,
) -> None:
    """So has a stateful operator before the throttle."""
    lake, seen = session_of_seven, []

    def keep(rows: DataFrame, batch: int) -> None:
        seen.append(rows.sparkSession.conf.get(SHUFFLE_PARTITIONS))
        lake.keep(rows, batch)

    def run() -> None:
        events = lake.events().dropDuplicates(["id"])
        writer = lake.throttle(policies()).write_stream(events).option("checkpointLocation", lake.checkpoint)
        finish(writer.trigger(availableNow=True).foreachBatch(keep).start())

    lake.offer([(number, f"t/{number % 5}", 10) for number in range(20)])
    run()
    states = [*(lake.root / "checkpoint" / "state").iterdir()]
    assert len(states) == 2
    for state in states:
        assert sorted(part.name for part in state.iterdir() if part.name.isdigit()) == ["0"]
    assert partitions_of(lake.checkpoint) == 1
    assert set(seen) == {"7"}
    seen.clear()
    assert lake.spark.conf.get(SHUFFLE_PARTITIONS) == "7"
    assert lake.spark.conf.get(STATE_PARTITIONS, None) is None
    lake.spark.conf.set(SHUFFLE_PARTITIONS, "3")
    lake.offer([(number, f"t/{number % 5}", 10) for number in range(20, 30)])
    run()
    assert sorted(row[0] for row in lake.admitted) == list(range(30))
    last = json.loads((lake.root / "checkpoint" / "offsets" / str(lake.last_batch())).read_text().splitlines()[1])
    assert last["conf"][SHUFFLE_PARTITIONS] == "1", "a checkpoint keeps its number"
    assert set(seen) == {"3"}
