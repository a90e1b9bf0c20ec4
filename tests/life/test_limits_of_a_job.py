"""What quotas and the queue's bounds do to a whole job, said without Spark, which the rules do not depend on."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.rows import Row

SHUT: dict[str, Any] = {"version": 1, "job": {"publish": {"messages_per_second": 0}}}


def ids(rows: list[Row]) -> list[int]:
    return sorted(row.id for row in rows)


def test_weights_divide_what_a_group_admits() -> None:
    """Of 41 messages (a full bucket and one into debt), three in four go to the namespace of weight 3."""
    job = SimulatedJob(
        {
            "version": 1,
            "resource_groups": {"g": {"publish": {"messages_per_second": 40, "burst_seconds": 1}}},
            "namespaces": {
                "t/heavy": {"resource_group": "g", "publish": {"weight": 3}},
                "t/light": {"resource_group": "g"},
            },
        },
    )
    job.offer([(("t/heavy", "t/light")[i % 2], 10) for i in range(80)])
    job.trigger()
    heavy = sum(row.namespace == "t/heavy" for row in job.admitted)
    assert len(job.admitted) == 41
    assert 30 <= heavy <= 31
    job.trigger(after_ms=10_000)
    assert ids(job.admitted) == list(range(80))


@pytest.mark.parametrize(("bound", "fits"), [({"messages": 3}, 3), ({"bytes": 25}, 2)])
def test_queue_rejects_what_it_has_no_room_for(bound: dict[str, int], fits: int) -> None:
    job = SimulatedJob({**SHUT, "queue": bound})
    for count in (10, 4):
        job.offer([("t/n", 10)] * count)
        job.trigger()
    assert ids(job.waiting) == list(range(fits))
    assert sorted(each.row.id for each in job.rejected) == list(range(fits, 14))
    assert {each.reason for each in job.rejected} == {"queue_full"}


def test_rows_that_fill_the_queue_make_room_for_those_of_another_namespace() -> None:
    job = SimulatedJob({**SHUT, "queue": {"messages": 4}})
    job.offer([("t/first", 10)] * 10)
    job.trigger()
    assert sorted(each.row.id for each in job.rejected) == list(range(4, 10))
    job.offer([("t/second", 10)] * 2)
    job.trigger()
    assert ids(job.waiting) == [0, 1, 10, 11]
    assert sorted(each.row.id for each in job.rejected) == list(range(2, 10))
    assert {each.reason for each in job.rejected} == {"queue_full"}
    assert not job.admitted
