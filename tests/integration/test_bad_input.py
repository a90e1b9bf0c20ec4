"""Rows that cannot be counted are rejected with their reason; the others are unharmed, and every row is somewhere."""

from __future__ import annotations

import random

from spark_throttle.spark.state_reader import read_queued
from tests.integration.streams import Lake, policies, publish

MANY = 15_000


def test_unusable_row_is_rejected_with_its_reason_and_one_larger_than_the_burst_is_admitted_and_delays_the_next(
    lake: Lake,
) -> None:
    wrong = {
        1: (None, 10, "namespace_missing"),
        2: ("", 10, "namespace_missing"),
        3: ("t/" + "x" * 1023, 10, "namespace_too_long"),
        4: ("t/" + "ä" * 512, 10, "namespace_too_long"),
        5: ("t/n", None, "size_missing"),
        6: ("t/n", -1, "size_negative"),
        7: ("t/n", 2**36 + 1, "size_too_large"),
        8: (None, None, "namespace_missing"),
    }
    right = [(10, "t/" + "x" * 1022, 0), (11, "t/" + "ä" * 511, 2**36), (12, "/", 1), (13, " ", 1), (14, "t/\u0000", 1)]
    large = [(20, "large/n", 40), (21, "large/n", 1)]
    lake.offer([*((row_id, name, size) for row_id, (name, size, _) in wrong.items()), *right, *large])
    slow = publish(bytes_per_second=20, burst_seconds=0.5)
    lake.run(policies(job=publish(messages_per_second=1000), namespaces={"large/n": slow}), has_usage=True)
    assert sorted(lake.admitted) == [*right, *large]
    assert {row["id"]: (row["ns"], row["size"], row["throttle"]["reason"]) for row in lake.rejected} == wrong
    assert {row["throttle"]["verdict"] for row in lake.rejected} == {"REJECT"}
    delayed = [(row["admitted_messages"], row["delayed_ms"]) for row in lake.usage("namespace", "large/n")]
    (first, none), *_, (second, delay_ms) = [row for row in delayed if row[0]]
    assert (first, none, second) == (1, 0, 1)
    assert delay_ms >= 1000 * (40 - 10) // 20


def test_batch_of_many_new_namespaces_passes(lake: Lake) -> None:
    lake.offer((i, f"t{i % 7}/n{i}", i % 100) for i in range(MANY))
    limits = policies(
        tenants={"t1": publish(messages_per_second=0, on_excess="reject"), "t2": publish(messages_per_second=0)},
        defaults=publish(messages_per_second=5),
    )
    lake.run(limits)
    queued = [row["id"] for row in read_queued(lake.spark, lake.checkpoint).select("id").collect()]
    by_tenant = [list(range(tenant, MANY, 7)) for tenant in range(7)]
    assert lake.rejected_ids == by_tenant[1]
    assert sorted(queued) == by_tenant[2]
    assert lake.admitted_ids == sorted(row_id for tenant in (0, 3, 4, 5, 6) for row_id in by_tenant[tenant])


def test_offered_rows_are_admitted_rejected_or_queued(lake: Lake) -> None:
    """L1, over several batches and two runs, with every kind of limit at once."""
    draw = random.Random(20)
    limits = policies(
        resource_groups={"g": publish(messages_per_second=60, burst_seconds=0.2)},
        tenants={
            "a": {"resource_group": "g", **publish(bytes_per_second="2KiB")},
            "b": publish(messages_per_second=30, burst_seconds=0.5, on_excess="reject"),
            "c": publish(messages_per_second=0),
        },
        namespaces={"a/0": {"write_throttling": "2*delay*100,3*reject*10"}},
        queue={"messages": 30},
    )
    names = [None, "", *(f"{tenant}/{n}" for tenant in "abcd" for n in range(4))]
    offered = 0
    for _ in range(2):
        for _ in range(2):
            lake.offer((offered + i, draw.choice(names), draw.choice([None, -1, 1, 10, 100])) for i in range(150))
            offered += 150
        lake.run(limits)
        queued = [row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()]
        assert sorted([*lake.admitted_ids, *lake.rejected_ids, *queued]) == list(range(offered))
        assert len(queued) > 10
    assert lake.reasons == {"namespace_missing", "size_missing", "size_negative", "quota", "throttling", "queue_full"}
