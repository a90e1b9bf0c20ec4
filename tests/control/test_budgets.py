"""Budgets in whole jobs: exact, charged at all levels or at none, over midnight and crashes; no batch for nothing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from spark_throttle.core.usage import unpack_usage
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.disk import CRASH_POINTS, CrashPoint
from tests.effort import first_of

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


def job_of(quota: Mapping[str, Any], zone: str = "UTC", **entries: Any) -> SimulatedJob:
    """Return a job that begins at 10:00 UTC, with a quota of acme."""
    document = {"tenants": {"acme": {"publish": quota}}, "job": {"time_zone": zone}, **entries}
    job = SimulatedJob({"version": 1, **document})
    job.pass_time(-job.wall_ms % DAY_MS + 10 * HOUR_MS)
    return job


def admitted_after(job: SimulatedJob, after_ms: int) -> Counter[str]:
    """Return how many rows of each namespace the next batch admits."""
    before = len(job.admitted)
    job.trigger(after_ms)
    return Counter(str(row.namespace) for row in job.admitted[before:])


def test_a_thousand_a_day_are_a_thousand_in_each_day() -> None:
    job = job_of({"messages_per_day": 1_000})
    job.offer([("acme/a", 10)] * 2_500)
    days = [admitted_after(job, DAY_MS if day else 0)["acme/a"] for day in range(4)]
    assert days == [1_000, 1_000, 500, 0]


def test_bytes_are_exceeded_by_less_than_a_message_which_is_taken_off_the_next_day() -> None:
    job = job_of({"bytes_per_day": 1_000})
    job.offer([("acme/a", 300)] * 20)
    assert [admitted_after(job, DAY_MS if day else 0)["acme/a"] for day in range(4)] == [4, 3, 3, 4]


def test_rate_burst_and_budget_hold_at_once() -> None:
    job = job_of({"messages_per_second": 1, "burst_seconds": 10, "messages_per_hour": 25})
    job.offer([("acme/a", 1)] * 100)
    assert [admitted_after(job, 10_000).total() for _ in range(4)] == [11, 10, 4, 0]


def test_a_row_is_charged_at_all_levels_or_at_none() -> None:
    """The namespace's budget lets none pass that its tenant's holds; what it did not use it has the next day."""
    job = job_of(
        {"messages_per_day": 10},
        namespaces={"acme/a": {"resource_group": "gold", "publish": {"messages_per_month": 15}}},
        resource_groups={"gold": {"publish": {"messages_per_hour": 4}}},
    )
    job.offer([("acme/a", 1)] * 40)
    hours = [admitted_after(job, HOUR_MS).total() for _ in range(26)]
    assert [hours[at] for at in (0, 1, 2, 3)] == [4, 4, 2, 0]
    assert sum(hours) == 15


def test_a_dead_letter_tells_which_budget_and_the_time_to_its_end() -> None:
    job = job_of({"messages_per_day": 2, "on_excess": "reject"}, zone="Europe/Berlin")
    job.offer([("acme/a", 1)] * 3)
    job.trigger(0)
    (letter,) = job.rejected
    assert (letter.reason, letter.level, letter.scope, letter.dimension) == (
        "quota",
        "tenant",
        "acme",
        "messages_per_day",
    )
    midnight = datetime.fromtimestamp((job.wall_ms + (letter.throttle_time_ms or 0)) / 1000, UTC)
    assert midnight.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M:%S.%f") == "00:00:00.000000"


def test_no_batch_runs_until_the_edge_and_a_bounded_run_does_not_wait_for_it() -> None:
    job = job_of({"messages_per_day": 2})
    job.offer([("acme/a", 1)] * 3)
    assert job.trigger(0) is not None
    assert [job.trigger(HOUR_MS - 1) for _ in range(14)] == [None] * 14
    assert job.wait_ms() is None
    assert job.trigger(14) is not None
    assert not job.waiting


def test_an_observing_scope_marks_what_is_beyond_its_budget_and_carries_nothing_over() -> None:
    job = job_of({"bytes_per_day": 1_000, "on_excess": "observe"})
    job.offer([("acme/a", 300)] * 20)
    batch = job.trigger(0)
    assert len(job.admitted) == 20
    assert batch is not None
    assert unpack_usage(batch.usage, "a report").observed_messages.sum() == 16
    job.set_policies({"version": 1, "tenants": {"acme": {"publish": {"bytes_per_day": 1_000}}}})
    job.offer([("acme/a", 300)] * 20)
    assert [admitted_after(job, DAY_MS * day).total() for day in (0, 1)] == [0, 4]


def test_a_changed_budget_counts_what_was_used_and_punishes_no_later_day() -> None:
    job = job_of({"messages_per_day": 10})
    job.offer([("acme/a", 1)] * 100)
    job.trigger(0)

    def under(budget: int, after_ms: int = 1_000) -> int:
        job.set_policies({"version": 1, "tenants": {"acme": {"publish": {"messages_per_day": budget}}}})
        return admitted_after(job, after_ms).total()

    assert [under(3), under(10), under(12), under(3), under(3, DAY_MS)] == [0, 0, 2, 0, 3]


def test_what_exceeded_a_budget_that_was_raised_to_it_is_not_taken_off_the_next_day() -> None:
    job = job_of({"bytes_per_day": 10})
    job.offer([("acme/a", 50), *[("acme/a", 1)] * 100])
    job.trigger(0)
    job.set_policies({"version": 1, "tenants": {"acme": {"publish": {"bytes_per_day": 50}}}})
    assert [admitted_after(job, after_ms).total() for after_ms in (1_000, DAY_MS)] == [0, 50]


def test_a_namespace_with_nothing_left_is_remembered_until_its_window_ends() -> None:
    quota = {"publish": {"messages_per_day": 1}}
    job = job_of({}, defaults=quota)
    for _ in range(5):
        job.offer([("acme/a", 1)])
        job.trigger(HOUR_MS)
    assert len(job.admitted) == 1
    assert job.trigger(DAY_MS) is not None
    assert len(job.admitted) == 2


def test_what_is_left_is_divided_as_tokens_are() -> None:
    """A scope with a budget and no rate: its children get of it by weight, in bytes where it counts bytes."""
    heavy = {"acme/heavy": {"publish": {"weight": 3}}}
    job = job_of({"bytes_per_day": 40_000}, namespaces=heavy)
    job.offer([("acme/light", 100), ("acme/heavy", 1_000)] * 400)
    admitted = admitted_after(job, 0)
    assert admitted["acme/heavy"] * 1_000 == pytest.approx(30_000, abs=2_000)
    assert admitted["acme/light"] * 100 == pytest.approx(10_000, abs=2_000)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_around_midnight_gives_nothing_twice(point: CrashPoint) -> None:
    job = job_of({"messages_per_day": 10})
    job.offer([("acme/a", 1)] * 100)
    job.trigger(0)
    job.crash(point)
    job.trigger(14 * HOUR_MS)
    if job.is_down:
        job.restart(HOUR_MS)
    job.trigger(1_000)
    job.trigger(1_000)
    assert len(job.admitted) == 20
    assert len({row.id for row in job.admitted}) == 20


# ------------------------------------------------------------------------------------- an obvious other counting

WORDS: Final = {"hour": "%Y-%m-%d %H %z", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""What a calendar shows of each time: equal texts are of one window."""


class Book:
    """What was admitted, by the scopes on its way and what the calendar shows."""

    def __init__(self, document: dict[str, Any], zone: str) -> None:
        self.zone = ZoneInfo(zone)
        self.budgets = {
            (where, key): most
            for where, entry in (
                ("job", document["job"]), *document["tenants"].items(), *document["namespaces"].items()
            )
            for key, most in entry.get("publish", {}).items()
        }  # fmt: skip
        self.used: dict[tuple[object, ...], int] = defaultdict(int)
        self.last: dict[tuple[object, ...], int] = {}

    def windows(self, namespace: str, wall_ms: int) -> list[tuple[tuple[object, ...], str, int]]:
        at = datetime.fromtimestamp(wall_ms // 1000, UTC).astimezone(self.zone)
        return [
            ((where, key, at.strftime(WORDS[key.rpartition("_")[2]])), key.partition("_")[0], most)
            for (where, key), most in self.budgets.items()
            if where in ("job", namespace.partition("/")[0], namespace)
        ]

    def admit(self, namespace: str, size_bytes: int, wall_ms: int) -> None:
        for window, what, _ in self.windows(namespace, wall_ms):
            self.last[window] = 1 if what == "messages" else size_bytes
            self.used[window] += self.last[window]

    def is_spent(self, namespace: str, wall_ms: int, spare: int) -> bool:
        """Return whether a budget on the way is used, but for what may have been taken off it."""
        found = self.windows(namespace, wall_ms)
        return any(self.used[window] + (spare if what == "bytes" else 0) >= most for window, what, most in found)


ZONES: Final = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Pacific/Apia")


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(2, range(20)))
def test_what_is_admitted_is_what_another_counting_allows(seed: int) -> None:
    """A row more would exceed a budget, and each budget is exceeded by less than a row."""
    rng = random.Random(seed)
    keys = [f"{what}_per_{period}" for what in ("messages", "bytes") for period in WORDS]

    def quota() -> dict[str, int]:
        return {key: rng.choice((0, 3, 9, 30, 60)) for key in rng.sample(keys, 2)}

    names, zone, largest = ["acme/a", "acme/b", "blue/a", "solo"], rng.choice(ZONES), 7
    document: dict[str, Any] = {
        "job": {"time_zone": zone, "publish": {"messages_per_day": rng.choice((10, 40))}},
        "tenants": {"acme": {"publish": quota()}},
        "namespaces": {name: {"publish": quota()} for name in ("acme/a", "blue/a") if rng.random() < 0.7},
    }
    job, book = SimulatedJob({"version": 1, **document}), Book(document, zone)
    job.pass_time(rng.randrange(400 * DAY_MS))
    for _ in range(80):
        job.offer([(rng.choice(names), rng.randint(1, largest)) for _ in range(rng.choice((0, 0, 3, 12)))])
        before = len(job.admitted)
        batch = job.trigger(rng.choice((1_000, 20 * 60_000, HOUR_MS, 5 * HOUR_MS, 3 * DAY_MS)))
        if rng.random() < 0.1:
            job.restart(rng.choice((0, HOUR_MS, 40 * DAY_MS)))
        for row in job.admitted[before:]:
            assert batch is not None
            book.admit(str(row.namespace), row.size_bytes or 0, batch.now_ms)
        for row in job.waiting if batch is not None else ():
            assert book.is_spent(str(row.namespace), batch.now_ms, spare=largest)  # type: ignore[union-attr]
    for (where, key, _), used in book.used.items():
        most = book.budgets[where, key]
        assert used <= most + (0 if str(key).startswith("messages") else largest - 1), (where, key)
