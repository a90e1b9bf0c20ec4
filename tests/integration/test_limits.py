"""Quotas hold end to end: what is admitted, delayed and rejected, when, and in which order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.spark import pipeline
from spark_throttle.spark.state_reader import read_queued
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHUT = policies(job=publish(messages_per_second=0))


def test_group_is_delayed_to_its_quota_and_drains(lake: Lake) -> None:
    """Both namespaces together pass at the group's rate, and the run ends by itself when all has passed."""
    per_second, burst = 30, 15
    group = publish(messages_per_second=per_second, burst_seconds=0.5)
    lake.offer((i, f"t/n{i % 2}", 10) for i in range(60))
    limits = policies(resource_groups={"g": group}, tenants={"t": {"resource_group": "g"}})
    query = lake.run(limits, has_usage=True)
    assert lake.admitted_ids == list(range(60))
    assert lake.rejected == []
    at = [(row["batch_time"], row["admitted_messages"]) for row in lake.usage("resource_group", "g")]
    assert len(at) > 2
    for start in range(len(at)):
        for end in range(start, len(at)):
            seconds = (at[end][0] - at[start][0]).total_seconds()
            admitted = sum(count for _, count in at[start : end + 1])
            assert admitted <= burst + per_second * seconds + 1
    assert query.recentProgress[-1]["stateOperators"][0]["numRowsTotal"] == 1


def test_namespaces_are_held_to_their_own_limits_and_rules_and_an_observing_quota_admits_all_and_tells(
    lake: Lake,
) -> None:
    """A bucket of 2 admits 3: the last one into debt. What comes then may come again, a message each half second."""
    limits = policies(
        tenants={"w": publish(bytes_per_second=100, burst_seconds=1, on_excess="observe")},
        namespaces={
            "t/n": publish(messages_per_second=2, burst_seconds=1, on_excess="reject"),
            "t/count": {"write_throttling": "3*delay*300,5*reject*50"},
            "t/size": {"write_throttling_by_size": "1K*reject*20"},
        },
    )
    of_count, of_size, of_burst, of_watched = range(8), range(10, 14), range(20, 40), range(40, 45)
    lake.offer(
        [
            *((i, "t/count", 1) for i in of_count),
            *((i, "t/size", 500) for i in of_size),
            *((i, ("t/n", "t/free")[i % 2], 10) for i in of_burst),
            *((i, "w/n", 60) for i in of_watched),
        ]
    )
    lake.run(limits, has_usage=True)
    assert lake.admitted_ids == sorted([0, 1, 2, 3, 4, 10, 11, 20, 22, 24, *range(21, 40, 2), *of_watched])
    told = {row["id"]: tuple(row["throttle"].values()) for row in lake.rejected}
    assert sorted(told) == [5, 6, 7, 12, 13, *range(26, 40, 2)]
    for place, i in enumerate(range(26, 40, 2), start=1):
        assert told[i] == ("REJECT", "quota", "namespace", "messages", "t/n", 500 * place, 0)
    assert told[5] == ("REJECT", "throttling", "namespace", "messages", "t/count", 50, 0)
    assert told[12] == ("REJECT", "throttling", "namespace", "bytes", "t/size", 20, 0)
    assert sum(row["delayed_ms"] for row in lake.usage("namespace", "t/count")) >= 2 * 300
    assert lake.usage("tenant", "w")[0]["observed_messages"] == 3


def test_units_of_an_expression_are_held_to_their_quotas_and_counted(lake: Lake) -> None:
    """Of 300 units a second with a burst of 150 each row of 20 takes 40: what left is recounted from what was kept."""
    group = publish(units_per_second=300, burst_seconds=0.5, max_message_units=100)
    limits = policies(resource_groups={"g": group}, tenants={"t": {"resource_group": "g"}}, job={"unit": "tokens"})
    sizes = dict.fromkeys(range(16), 20) | {20: 60, 21: None, 22: -1}
    lake.offer((i, f"t/n{i % 2}", size) for i, size in sizes.items())
    with pytest.raises(PolicyError, match=r"it counts units \(tokens\), and the job does not say what its rows cost"):
        lake.throttle(limits)
    lake.run(limits, has_usage=True, units="2 * size", size="length(ns)")
    assert lake.admitted_ids == list(range(16))
    assert {row["id"]: row["throttle"]["reason"] for row in lake.rejected} == {
        20: "units_too_large", 21: "units_missing", 22: "units_negative"
    }  # fmt: skip
    (too_large,) = [row["throttle"] for row in lake.rejected if row["id"] == 20]
    assert (too_large["level"], too_large["scope"], too_large["dimension"]) == ("resource_group", "g", "units")
    at = [(row["batch_time"], row["admitted_units"]) for row in lake.usage("resource_group", "g")]
    kept = [sum(2 * size for _, _, size in rows if size) for _, rows in sorted(lake.kept.items()) if rows]
    assert [units for _, units in at if units] == kept
    assert len(kept) > 1
    for start in range(len(at)):
        for end in range(start, len(at)):
            seconds = (at[end][0] - at[start][0]).total_seconds()
            assert sum(units for _, units in at[start : end + 1]) <= 150 + 300 * seconds + 40


def test_decided_rows_leave_in_order_and_those_that_an_observing_quota_would_hold_are_marked(lake: Lake) -> None:
    """Rows of a namespace leave in the order of `order_by`, whatever was delayed."""
    watched = publish(messages_per_second=0, on_excess="observe")
    group = publish(messages_per_second=40, burst_seconds=0.5)
    for part in range(2):
        lake.offer((-i, f"t/n{i % 3}", i % 7) for i in range(part * 40, part * 40 + 40))
    lake.offer((-i, ("w/n", "free/n")[i == 83], 10) for i in range(80, 84))
    columns = ["ns", "id", *(f"throttle.{name}" for name in ("verdict", "reason", "level", "dimension", "scope"))]
    left: list[tuple[Any, ...]] = []

    def keep(rows: DataFrame, _: int) -> None:
        left.extend(map(tuple, rows.select(columns).collect()))

    limits = policies(resource_groups={"g": group}, tenants={"t": {"resource_group": "g"}, "w": watched})
    decided = lake.throttle(limits, order_by=["-id"]).apply(lake.events(), control_path=str(lake.control))
    writer = decided.writeStream.foreachBatch(keep).option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).start())
    for name in ("t/n0", "t/n1", "t/n2"):
        ids = [-row_id for ns, row_id, *_ in left if ns == name]
        assert ids == sorted(ids)
    free, marked = ("ADMIT", None, None, None, None), ("ADMIT", "quota", "tenant", "messages", "w")
    assert [row[2:] for row in left if row[0] == "free/n"] == [free]
    assert [row for row in left if row[0] == "w/n"] == [("w/n", -i, *marked) for i in range(80, 83)]
    assert len(left) == 84


def test_rows_under_a_rate_of_zero_stay_queued_and_lie_in_files_where_they_are_too_large_for_the_state(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "INLINE_BYTES", 100)
    lake.offer((i, f"t/n{i % 3}", 10) for i in range(300))
    lake.run(SHUT)
    assert not lake.admitted
    assert not lake.rejected
    (file,) = Path(lake.checkpoint, "throttle", "queue").rglob("*-*")
    queued = read_queued(lake.spark, lake.checkpoint)
    assert queued.columns == ["id", "ns", "size", "namespace", "arrival_ms", "release_ms"]
    assert sorted(row["id"] for row in queued.collect()) == list(range(300))
    wider = read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema.add("namespace", "string"))
    assert wider.columns == ["id", "ns", "size", "namespace", "throttle_namespace", "arrival_ms", "release_ms"]
    found = wider.select("ns", "namespace", "throttle_namespace").distinct().collect()
    assert sorted(map(tuple, found)) == [(f"t/n{n}", None, f"t/n{n}") for n in range(3)]
    begun = shutil.copytree(lake.checkpoint, lake.path("begun"), ignore=shutil.ignore_patterns("commits"))
    for other in (lake.path("events"), str(begun)):
        with pytest.raises(ConfigurationError, match="not the checkpoint of a throttled query that has committed"):
            read_queued(lake.spark, other)
    aside = file.rename(file.with_name("aside"))
    with pytest.raises(StreamingQueryException, match=f"DamagedError: the file of waiting rows .*{file.name}"):
        lake.run({})
    assert not lake.admitted
    aside.rename(file)
    lake.run({})
    assert lake.admitted_ids == list(range(300))
    assert read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema).count() == 0


@pytest.mark.thorough
def test_waiting_rows_in_files_are_read_wherever_the_control_path_is(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "INLINE_BYTES", 100)
    lake.offer((i, f"t/n{i % 3}", 10) for i in range(300))
    checkpoint, control = f"file:{lake.path('applied')}", f"file://{lake.path('control')}"
    decided = lake.throttle(SHUT).apply(lake.events(), control_path=control)
    writer = decided.writeStream.format("noop").option("checkpointLocation", checkpoint)
    finish(writer.trigger(availableNow=True).start())
    for scheme in ("", "file:", "file://"):
        checkpoint, control = (f"{scheme}{lake.path(name)}" for name in ("applied", "control"))
        queued = read_queued(lake.spark, checkpoint, control_path=control)
        assert sorted(row["id"] for row in queued.collect()) == list(range(300))


@pytest.mark.thorough
def test_queue_rejects_what_has_waited_too_long(lake: Lake) -> None:
    lake.offer((i, "t/n", 10) for i in range(10))
    lake.run({**SHUT, "queue": {"age_seconds": 0.3}})
    assert lake.rejected_ids == list(range(10))
    assert lake.reasons == {"queue_age"}
    assert min(row["throttle"]["delayed_ms"] for row in lake.rejected) > 300
    assert read_queued(lake.spark, lake.checkpoint, schema=lake.events().schema).count() == 0


def test_full_queue_fails_the_query_if_asked_and_loses_nothing(lake: Lake) -> None:
    lake.offer((i, "t/n", 10) for i in range(10))
    lake.offer((i, "t/n", 10) for i in range(10, 14))
    failing = {**SHUT, "queue": {"messages": 12, "on_overflow": "fail"}}
    with pytest.raises(StreamingQueryException, match="QueueOverflowError: the queue would hold 14 delayed messages"):
        lake.run(failing)
    assert not lake.rejected
    # The batch that failed is run again with the policy that it was planned with, and with the room that there is now.
    failing["queue"]["messages"] = 14
    lake.run(failing)
    assert not lake.rejected
    lake.run({})
    assert lake.admitted_ids == list(range(14))
