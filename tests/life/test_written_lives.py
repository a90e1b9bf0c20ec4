"""Lives that are written out, each for a way in which one tenant may take what is due to others."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from spark_throttle.testing.simulated_job import SimulatedJob
from spark_throttle.testing.simulated_rows import shard_of

BIG_BYTES, SMALL_BYTES = 60_000, 1_000
GROUP: Final[dict[str, Any]] = {
    "version": 1,
    "resource_groups": {"g": {"publish": {"bytes_per_second": 10_000, "burst_seconds": 2}}},
    "defaults": {"resource_group": "g"},
}


def name_in(shard: int, shards: int, prefix: str) -> str:
    """Return a namespace that lives in a shard."""
    return next(f"{prefix}{k}/x" for k in range(1_000) if shard_of(f"{prefix}{k}/x".encode(), shards) == shard)


def service_apart(
    beside_big: list[str], seconds: int, policy_at: Callable[[int], dict[str, Any]] = lambda _: GROUP
) -> int:
    """Return by how many bytes one of two that are always backlogged, in different shards, is ahead of the other."""
    big, small = name_in(0, 8, "big"), name_in(1, 8, "small")
    job, served = SimulatedJob(GROUP, shards=8), Counter[str]()
    for second in range(seconds):
        waiting = Counter(row.namespace for row in job.waiting)
        job.offer([(small, SMALL_BYTES)] * (100 - waiting[small]) + [(big, BIG_BYTES)] * (5 - waiting[big]))
        job.offer([(name, 10) for name in beside_big])
        job.set_policies(policy_at(second))
        batch = job.trigger(1_000)
        for row in batch.admitted if batch else ():
            served[str(row.namespace)] += row.size_bytes or 0
    return abs(served[big] - served[small])


def test_two_that_are_always_backlogged_stay_within_a_message_of_each() -> None:
    assert service_apart([], 120) <= 2 * (BIG_BYTES + SMALL_BYTES)


def test_l3_a_light_namespace_beside_a_large_one_takes_nothing_from_the_others() -> None:
    assert service_apart([name_in(0, 8, "light")], 120) <= 2 * (BIG_BYTES + SMALL_BYTES)


def test_l3_a_rate_that_changes_often_costs_a_message_and_no_more() -> None:
    def policy_at(second: int) -> dict[str, Any]:
        policy = copy.deepcopy(GROUP)
        policy["resource_groups"]["g"]["publish"]["bytes_per_second"] += second // 3 % 2
        return policy

    assert service_apart([], 120, policy_at) <= 4 * (BIG_BYTES + SMALL_BYTES)


def test_namespaces_of_two_groups_of_one_shard_share_the_jobs_limit() -> None:
    groups = {
        "a": {"publish": {"messages_per_second": 100, "weight": 4}},
        "b": {"publish": {"messages_per_second": 100}},
    }
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 3, "burst_seconds": 1}},
            "resource_groups": groups,
            "tenants": {name: {"resource_group": name} for name in groups},
        },
        shards=1,
    )
    job.offer([("a/x", 1)] * 400 + [("b/x", 1)] * 400)
    for _ in range(60):
        job.trigger(1_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert admitted["b/x"] >= 30


def test_namespace_of_a_large_group_and_one_of_none_share_the_jobs_limit_evenly() -> None:
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 3, "burst_seconds": 1}},
            "resource_groups": {"a": {"publish": {"messages_per_second": 1_000}}},
            "tenants": {"a": {"resource_group": "a"}},
        },
        shards=1,
    )
    job.offer([("a/x", 1)] * 400 + [("b/x", 1)] * 400)
    for _ in range(60):
        job.trigger(1_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert abs(admitted["a/x"] - admitted["b/x"]) <= 2


@pytest.mark.parametrize("shards", [1, 8])
def test_weight_of_a_group_counts_in_the_job_in_one_shard_and_in_many(shards: int) -> None:
    heavy, light = name_in(0, shards, "heavy"), name_in(shards - 1, shards, "light")
    groups = {"a": {"publish": {"messages_per_second": 50, "weight": 4}}, "b": {"publish": {"messages_per_second": 90}}}
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 10, "burst_seconds": 1}},
            "resource_groups": groups,
            "tenants": {heavy.split("/")[0]: {"resource_group": "a"}, light.split("/")[0]: {"resource_group": "b"}},
        },
        shards=shards,
    )
    job.offer([(heavy, 1)] * 700 + [(light, 1)] * 700)
    for _ in range(60):
        job.trigger(1_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert abs(admitted[heavy] - 4 * admitted[light]) <= 5 * shards


def test_tenant_that_fills_the_queue_does_not_take_the_room_of_the_others() -> None:
    policy = {
        **GROUP,
        "tenants": {"evil": {"publish": {"messages_per_second": 0.001, "burst_seconds": 1}}},
        "queue": {"messages": 1_000},
    }
    job = SimulatedJob(policy, shards=1)
    job.offer([("evil/x", 1)] * 2_000)
    job.trigger(1_000)
    for _ in range(20):
        job.offer([("good/x", 15_000)])
        job.trigger(1_000)
    assert not [letter for letter in job.rejected if letter.row.namespace == "good/x"]
