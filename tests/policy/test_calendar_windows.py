"""Windows of budgets: edges as a calendar on a wall shows them, and clocks and zones that are set back and forth."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.quota import CompiledPolicy, Period
from spark_throttle.policy.calendar_windows import last_edge, next_edge, windows_at
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def shown(zone: str, at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).astimezone(ZoneInfo(zone))


def edges_seen(zone: str, period: Period, from_ms: int, minutes: int) -> list[int]:
    """Look at a clock on the wall every minute, and note when another hour strikes, or another date is first shown.

    A date that was shown before, because the clock went back over midnight, is no new one.
    """
    latest, found = shown(zone, from_ms), []
    for minute in range(1, minutes + 1):
        at_ms = from_ms + minute * MINUTE_MS
        now = shown(zone, at_ms)
        is_edge = now.minute == 0
        if period != Period.HOUR:
            date, before = now.date(), latest.date()
            is_edge = date > before and (period == Period.DAY or date.month != before.month)
        if is_edge:
            found.append(at_ms)
        latest = max(latest, now, key=lambda each: each.date())
    return found


def ms(text: str, zone: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


DAYS: Final = {
    "23 hours": ("Europe/Berlin", "2026-03-28T12:00", 23),
    "25 hours": ("Europe/Berlin", "2026-10-24T12:00", 25),
    "no midnight": ("America/Sao_Paulo", "2018-11-03T12:00", 23),
    "midnight twice": ("America/Havana", "2026-10-31T12:00", 25),
    "back over midnight": ("America/St_Johns", "2010-11-06T12:00", 25),
    "half an hour": ("Australia/Lord_Howe", "2026-04-04T12:00", 24.5),
    "a leap day": ("Asia/Kolkata", "2028-02-28T12:00", 24),
}  # fmt: skip


@pytest.mark.parametrize("case", DAYS.values(), ids=DAYS)
def test_days_and_hours_begin_when_a_clock_on_the_wall_shows_them(case: tuple[str, str, float]) -> None:
    zone, begins, hours = case
    from_ms = ms(begins, zone)
    for period, minutes in ((Period.DAY, 3 * 24 * 60), (Period.HOUR, 24 * 60)):
        seen = edges_seen(zone, period, from_ms, minutes)
        found, at_ms = [], from_ms
        while (at_ms := next_edge(ZoneInfo(zone), period, at_ms + 1)) <= from_ms + minutes * MINUTE_MS:
            found.append(at_ms)
        assert found == seen
        if period == Period.DAY:
            assert hours * HOUR_MS in [later - edge for edge, later in pairwise(seen)]


def test_hour_that_comes_twice_is_two_hours() -> None:
    begins_ms = ms("2026-10-25T02:00", "Europe/Berlin")
    assert next_edge(ZoneInfo("Europe/Berlin"), Period.HOUR, begins_ms + 1) == begins_ms + HOUR_MS
    assert shown("Europe/Berlin", begins_ms + HOUR_MS).hour == 2


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "Pacific/Apia", "America/St_Johns", "Asia/Kathmandu", "Africa/Casablanca"]
)
def test_edges_lie_side_by_side_over_years(zone: str) -> None:
    rng, where = random.Random(zone), ZoneInfo(zone)
    for period in Period:
        for _ in range(60):
            at_ms = rng.randrange(ms("2005-01-01", "UTC"), ms("2040-01-01", "UTC"))
            last_ms, next_ms = last_edge(where, period, at_ms), next_edge(where, period, at_ms)
            assert last_ms <= at_ms <= next_ms
            assert at_ms in (last_ms, next_ms) or next_edge(where, period, last_ms + 1) == next_ms
            before, at = shown(zone, next_ms - 1_000), shown(zone, next_ms)
            if period == Period.MONTH:
                assert (at.day, before.month != at.month) == (1, True)


def test_month_begins_on_its_first_day_in_leap_years_too() -> None:
    begins = [ms("2028-02-01", "Europe/Berlin")]
    for _ in range(3):
        begins.append(next_edge(ZoneInfo("Europe/Berlin"), Period.MONTH, begins[-1] + 1))
    hours = [(later - edge) // HOUR_MS for edge, later in pairwise(begins)]
    assert hours == [29 * 24, 31 * 24 - 1, 30 * 24]


# ------------------------------------------------------------------------------------------- clocks that are set


@cache
def policy(zone: str) -> CompiledPolicy:
    document = {"job": {"time_zone": zone, "publish": {"messages_per_day": 1}}}
    return compile_policy(parse_document(document), "publish")


class Plane:
    """Epochs of which only the windows count."""

    def __init__(self, zone: str, wall_ms: int) -> None:
        self.zone = zone
        self.paid_ms = self.wall_ms = wall_ms
        self.windows: CalendarWindows | None = None
        self.begun: dict[int, int] = {}
        """The paying time at which each day's window was first in force."""

        self.look()

    def look(self) -> None:
        self.windows = windows_at(self.windows, policy(self.zone), wall_ms=self.wall_ms, paid_ms=self.paid_ms)
        assert self.windows is not None
        self.begun.setdefault(int(self.windows.number[Period.DAY]), self.paid_ms)

    def pass_time(self, by_ms: int) -> None:
        self.paid_ms += by_ms
        self.wall_ms += by_ms
        self.look()


def test_a_steady_clock_begins_each_day_at_midnight() -> None:
    plane = Plane("Europe/Berlin", ms("2026-03-27T23:59", "Europe/Berlin"))
    for _ in range(5 * 24 * 4):
        plane.pass_time(HOUR_MS // 4)
    midnights = [ms(f"2026-03-{day}T00:14", "Europe/Berlin") for day in (28, 29, 30, 31)]
    assert list(plane.begun.values())[1:5] == midnights


def test_days_that_pass_while_nobody_looks_are_counted() -> None:
    plane = Plane("UTC", ms("2026-11-30T16:00", "UTC"))
    plane.pass_time(3 * DAY_MS)
    assert plane.windows is not None
    assert plane.windows.number.tolist() == [72, 3, 1]
    assert plane.windows.until_ms[Period.DAY] == ms("2026-12-04T00:00", "UTC")


def jump_forth_and_back(plane: Plane, rng: random.Random) -> None:
    plane.wall_ms += rng.choice((-400 * DAY_MS, -DAY_MS, -HOUR_MS, HOUR_MS, 5 * HOUR_MS, DAY_MS, 400 * DAY_MS))


def change_zone(plane: Plane, rng: random.Random) -> None:
    plane.zone = rng.choice(("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin"))


@pytest.mark.parametrize("disturb", [jump_forth_and_back, change_zone])
def test_no_window_begins_twice_whatever_clocks_and_zones_are_set_to(
    disturb: Callable[[Plane, random.Random], None],
) -> None:
    """In any time that passed, no more windows begin than half ones fit, and the budget is never spent for two days."""
    rng = random.Random(7)
    plane = Plane("UTC", ms("2026-11-30T16:00", "UTC"))
    for _ in range(400):
        if rng.random() < 0.5:
            disturb(plane, rng)
            plane.look()
        plane.pass_time(rng.choice((1, 1_000, HOUR_MS, 3 * HOUR_MS)))
        assert plane.windows is not None
        assert plane.paid_ms < plane.windows.until_ms[Period.DAY] <= plane.paid_ms + 36 * HOUR_MS
    assert list(plane.begun) == list(range(len(plane.begun)))
    times_ms = list(plane.begun.values())
    spans = [later - earlier for earlier, later in pairwise(times_ms[1:])]
    assert min(spans) >= 12 * HOUR_MS - 3 * HOUR_MS  # it is noticed up to three hours late
    assert max(spans) <= 36 * HOUR_MS + 3 * HOUR_MS


def test_clock_that_jumps_and_returns_changes_no_window() -> None:
    plane = Plane("UTC", ms("2026-11-30T16:00", "UTC"))
    until_ms = ms("2026-12-01", "UTC")
    for by_ms in (400 * DAY_MS, DAY_MS, -DAY_MS, 7 * HOUR_MS):
        plane.wall_ms += by_ms
        plane.look()
        plane.wall_ms -= by_ms
        plane.look()
        assert plane.windows is not None
        assert len(plane.begun) == 1
        assert plane.windows.until_ms[Period.DAY] == until_ms


def test_another_zone_moves_the_end_of_the_window_and_not_its_beginning() -> None:
    plane = Plane("UTC", ms("2026-11-30T16:00", "UTC"))
    plane.zone = "Europe/Berlin"
    plane.look()
    assert plane.windows is not None
    assert plane.windows.number.tolist() == [0, 0, 0]
    assert plane.windows.until_ms[Period.DAY] == ms("2026-12-01", "Europe/Berlin")


@pytest.mark.parametrize(("period", "set_by_ms", "lasts_ms"), [
    (Period.HOUR, 35 * 60_000, 85 * 60_000), (Period.DAY, 13 * HOUR_MS, 35 * HOUR_MS),
    (Period.MONTH, 18 * DAY_MS, 44 * DAY_MS),
])  # fmt: skip
def test_window_lasts_half_as_long_as_it_should_at_least(period: Period, set_by_ms: int, lasts_ms: int) -> None:
    """An edge that the clock is set to just before is too near, and the one behind it ends the window."""
    plane = Plane("UTC", ms("2026-12-01", "UTC"))
    plane.wall_ms += set_by_ms
    plane.look()
    assert plane.windows is not None
    assert plane.windows.until_ms[period] - plane.windows.since_ms[period] == lasts_ms
