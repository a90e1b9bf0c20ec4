"""A job obeys a schedule in batches that begin within its hours, and the entry's own quotas in all others."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from spark_throttle.errors import NotPermittedError, PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.values import time_text
from spark_throttle.status.explain import explain_policy
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.exchange import START_MS

ANN, BOB = Author("ann"), Author("bob", tenant="acme")
ZONE = "Asia/Kathmandu"  # where an hour begins a quarter later than elsewhere
QUOTA = {"publish": {"messages_per_second": 2, "burst_seconds": 1}}
EDGE_MS = (START_MS // 60_000 + 1) * 60_000
"""The first full minute after the simulated clock's beginning."""


def minute(after: int) -> str:
    """Return the time of the day that a clock in `ZONE` shows some minutes after `EDGE_MS`."""
    return f"{datetime.fromtimestamp(EDGE_MS / 1000 + 60 * after, UTC).astimezone(ZoneInfo(ZONE)):%H:%M}"


def scheduled(**hours: float) -> dict[str, Any]:
    """Return a document in which acme has other rates in hours, such as ``within_1_3=6``."""
    parts = {}
    for key, rate in hours.items():
        _, begin, end = key.split("_")
        parts[f"{minute(int(begin))}-{minute(int(end))}"] = {"publish": {"messages_per_second": rate}}
    return {"job": {"time_zone": ZONE}, "tenants": {"acme": {**QUOTA, "schedule": parts}}}


def to_edge(job: SimulatedJob, before_ms: int) -> None:
    job.pass_time(EDGE_MS - before_ms - job.wall_ms)


def passed(job: SimulatedJob, seconds: int) -> list[int]:
    """Return how many rows leave in each of some batches, a second apart, with much waiting."""
    found = []
    for _ in range(seconds):
        job.offer([("acme/x", 1)] * 20)
        batch = job.trigger(1_000)
        found.append(0 if batch is None else len(batch.admitted))
    return found


def test_batch_that_begins_at_the_first_minute_has_the_schedule_and_at_the_last_the_quota() -> None:
    job = SimulatedJob(scheduled(within_0_1=6))
    to_edge(job, 3_000)
    assert passed(job, 6) == [3, 2, 2, 6, 6, 6]
    job.pass_time(EDGE_MS + 58_000 - job.wall_ms)
    assert passed(job, 4)[2:] == [2, 2]


def test_hours_come_again_the_next_day() -> None:
    job = SimulatedJob(scheduled(within_0_1=6))
    to_edge(job, 0)
    for _ in range(3):
        assert passed(job, 3)[1:] == [6, 6]
        job.pass_time(80_000_000)
        assert passed(job, 3)[1:] == [2, 2]
        job.pass_time(86_400_000 - 80_000_000 - 6_000)


def test_rows_that_hours_of_0_hold_leave_when_they_end_though_nothing_arrives() -> None:
    job = SimulatedJob(scheduled(within_0_1=0))
    to_edge(job, -1_000)
    job.offer([("acme/x", 1)] * 2)
    waits = [job.trigger(1_000) for _ in range(3)]
    assert job.wait_ms() is None  # a run that ends when all is done waits for no hours
    job.pass_time(EDGE_MS + 60_000 - job.wall_ms)
    assert job.trigger(0) is not None
    job.trigger(1_000)
    assert [each is None for each in waits] == [False, True, True]
    assert not job.waiting


@pytest.mark.parametrize("point", ["after offset", "after table", "after feedback"])
def test_batch_over_an_edge_is_decided_the_same_when_it_runs_again(point: Any) -> None:
    jobs = [SimulatedJob(scheduled(within_0_1=6)) for _ in range(2)]
    for job in jobs:
        to_edge(job, 2_000)
        passed(job, 1)
        job.offer([("acme/x", 1)] * 20)
    jobs[1].crash(at=point)
    first, died = (job.trigger(999) for job in jobs)
    assert died is None
    again = jobs[1].restart(after_ms=60_000)
    assert first is not None
    assert again is not None
    assert (again.revision, again.admitted, again.digest) == (first.revision, first.admitted, first.digest)


def test_exception_comes_before_a_schedule_and_leaves_what_it_does_not_set() -> None:
    document = scheduled(within_0_1=6)
    other = {"until": time_text(EDGE_MS + 2_000), "reason": "a move", "publish": {"messages_per_second": 9}}
    document["tenants"]["acme"]["exception"] = other
    job = SimulatedJob(document)
    to_edge(job, 2_000)
    assert passed(job, 6) == [10, 9, 9, 7, 6, 6]  # at the end the bucket holds as much as the hours let it
    document["tenants"]["acme"]["exception"]["publish"] = {"on_excess": "reject"}
    assert parse_document(document).at(EDGE_MS).tenants["acme"].publish.messages_per_second == 6


def test_day_of_several_hours_admits_what_a_clock_and_a_sum_say() -> None:
    rates = {(0, 1): 6, (1, 3): 0, (4, 5): 3}
    job = SimulatedJob(scheduled(within_0_1=6, within_1_3=0, within_4_5=3))
    to_edge(job, 60_000)
    admitted: Counter[int] = Counter()
    for second in range(-60, 300):
        job.offer([("acme/x", 1)] * max(0, 20 - len(job.waiting)))
        batch = job.trigger(0)
        admitted[second // 60] += 0 if batch is None else len(batch.admitted)
        job.pass_time(1_000)
    for at in range(-1, 5):
        rate = next((rate for (begin, end), rate in rates.items() if begin <= at < end), 2)
        assert abs(admitted[at] - 60 * rate) <= 6 + 1, at  # a burst and a message


@pytest.mark.parametrize(("schedule", "is_allowed"), [
    ({"08:00-18:00": {"publish": {"messages_per_second": 9}}}, False),
    ({"mon-sun": {"publish": {"messages_per_second": 5}}, "04:00-05:00": None}, True),
    ({"08:00-18:00": {"publish": {"messages_per_second": 1}}}, True),
    ({"sun 03:00-03:01": {"publish": {"on_excess": "delay"}}}, False),
])  # fmt: skip
def test_tenant_gains_nothing_by_hours(schedule: dict[str, Any], is_allowed: bool) -> None:
    service = PolicyService(MemoryStore(), clock_ms=lambda: START_MS, pause=lambda _: None)
    service.put("tenant", "acme", {"publish": {"messages_per_second": 5, "on_excess": "reject"}}, ANN)
    values = {
        "publish": {"messages_per_second": 5, "on_excess": "reject"},
        "schedule": {hours: part for hours, part in schedule.items() if part is not None},
    }
    service.put("namespace", "acme/x", {"publish": {"messages_per_second": 5, "on_excess": "reject"}}, ANN)
    if is_allowed:
        service.put("namespace", "acme/x", values, BOB)
        return
    with pytest.raises((NotPermittedError, PolicyError)):
        service.put("namespace", "acme/x", values, BOB)


def test_tenant_is_judged_at_the_hours_in_which_it_was_given_least() -> None:
    service = PolicyService(MemoryStore(), clock_ms=lambda: START_MS, pause=lambda _: None)
    less = {"fri 02:00-02:30": {"publish": {"messages_per_second": 1}}}
    service.put("job", "", {"time_zone": ZONE}, ANN)
    service.put("tenant", "acme", {"publish": {"messages_per_second": 50}}, ANN)
    service.put("namespace", "acme/x", {"publish": {"messages_per_second": 5}, "schedule": less}, ANN)
    with pytest.raises(NotPermittedError):
        service.put("namespace", "acme/x", {"publish": {"messages_per_second": 5}}, BOB)
    service.put("namespace", "acme/x", {"publish": {"messages_per_second": 1}}, BOB)


def test_guarantee_is_kept_at_all_hours_or_refused_with_those_at_which_it_is_not() -> None:
    entry = {"publish": {"messages_per_second": 10, "guaranteed_messages_per_second": 5}}
    job: dict[str, Any] = {"publish": {"messages_per_second": 10}}
    parse_document({"job": job, "tenants": {"acme": entry}})
    job["schedule"] = {"sat 03:00-04:00": {"publish": {"messages_per_second": 4}}}
    with pytest.raises(PolicyError, match="at the hours sat 03:00-04:00: 5 are guaranteed"):
        parse_document({"job": job, "tenants": {"acme": entry}})
    entry["publish"]["guaranteed_messages_per_second"] = 11
    with pytest.raises(PolicyError, match="guaranteed_messages_per_second: 11 is more"):
        parse_document({"job": job, "tenants": {"acme": entry}})


def test_explanation_says_which_hours_hold_and_until_when() -> None:
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: START_MS, pause=lambda _: None)
    service.apply(parse_document(scheduled(within_0_1=6)), ANN)
    notes = [explain_policy(store, "acme/x", "publish", now_ms=EDGE_MS + after).notes for after in (-1, 0)]
    hours = f"{minute(0)}-{minute(1)}"
    day = f"{datetime.fromtimestamp(EDGE_MS / 1000, UTC).astimezone(ZoneInfo(ZONE)):%Y-%m-%d}"
    assert notes == [
        (f"tenants.acme: none of its scheduled hours hold until {day}T{minute(0)}:00+05:45 ({ZONE})",),
        (f"tenants.acme: its hours {hours} hold until {day}T{minute(1)}:00+05:45 ({ZONE})",),
    ]
