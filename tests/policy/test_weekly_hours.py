"""Hours of the week hold as a clock on the wall shows them, minute by minute, in any zone."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from spark_throttle.core.quota import NEVER_MS
from spark_throttle.errors import PolicyError
from spark_throttle.policy import weekly_hours
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.weekly_hours import DAYS, WeeklyHours, moments_ms, next_change_ms, valid_at

MINUTE_MS = 60_000
# Winter and summer begin, half an hour is left out, the clock changes at midnight, a day is left out.
WEEKS = [
    ("Europe/Berlin", "2026-03-27"), ("Europe/Berlin", "2026-10-23"), ("Australia/Lord_Howe", "2026-10-02"),
    ("America/Santiago", "2026-09-04"), ("Pacific/Apia", "2011-12-28"), ("Asia/Kathmandu", "2026-01-01"),
]  # fmt: skip


def ms(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def shown(text: str, at: datetime) -> bool:
    """Return whether a text says that its hours hold, by reading it day by day and minute by minute."""
    *days, hours = text.split() if ":" in text else (text, "00:00-24:00")
    named = set(DAYS)
    if days:
        named = set()
        for part in days[0].split(","):
            first, _, last = part.partition("-")
            day = DAYS.index(first)
            named.add(first)
            while last and DAYS[day] != last:
                day = (day + 1) % 7
                named.add(DAYS[day])
    begin, end = hours.split("-")
    now, today = f"{at:%H:%M}", DAYS[at.weekday()]
    if begin < end:
        return today in named and begin <= now < end
    return (today in named and now >= begin) or (DAYS[at.weekday() - 1] in named and now < end)


def drawn(seed: int) -> str:
    draw = random.Random(seed)
    day = [draw.choice(DAYS), f"{draw.choice(DAYS)}-{draw.choice(DAYS)}", f"{draw.choice(DAYS)},{draw.choice(DAYS)}"]
    begin, end = (f"{draw.randrange(24):02d}:{draw.choice([0, 15, 30, 59]):02d}" for _ in range(2))
    hours = f"{begin}-{end}" if begin != end else ""
    return draw.choice([f"{draw.choice(day)} {hours}", draw.choice(day), hours or "mon"]).strip()


@pytest.mark.parametrize(("zone", "begins"), WEEKS)
def test_hours_hold_when_a_clock_on_the_wall_shows_them_and_change_when_that_changes(zone: str, begins: str) -> None:
    first_ms = ms(begins)
    clock = [first_ms + minute * MINUTE_MS for minute in range(5 * 24 * 60)]
    faces = [datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone)) for at_ms in clock]
    for seed in range(12):
        text = drawn(seed)
        holds = [shown(text, at) for at in faces]
        assert [valid_at([text], zone, at_ms)[0] for at_ms in clock[::7]] == holds[::7], text
        changes = [clock[at] for at in range(1, len(clock)) if holds[at] != holds[at - 1]]
        found, at_ms = [], first_ms
        while (at_ms := next_change_ms([text], zone, at_ms)) <= clock[-1]:
            found.append(at_ms)
        assert found == changes, text


def test_text_of_hours_says_the_same_hours() -> None:
    for seed in range(8):
        hours = WeeklyHours.parse(drawn(seed))
        assert WeeklyHours.parse(str(hours)) == hours
        assert WeeklyHours.parse(drawn(seed).replace(",", ", ")) == hours
        minutes = {minute for minute in range(7 * 24 * 60) if hours.minutes >> minute & 1}
        monday = datetime(2026, 11, 30, tzinfo=UTC)
        assert minutes == {at for at in range(7 * 24 * 60) if shown(drawn(seed), monday + timedelta(minutes=at))}


@pytest.mark.parametrize(
    "text", ["", "mon 08:00", "08:00-08:00", "25:00-26:00", "mo-fr", "mon-fri 8:00-9:00", "08:00-24:30", "mon tue", 5]
)
def test_what_is_no_hours_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(PolicyError, match="write such as mon-fri 08:00-18:00"):
        WeeklyHours.parse(text)


@pytest.mark.parametrize("other", ["fri 17:59-19:00", "Mon-Fri 08:00-18:00", "thu 23:00-08:01"])
def test_hours_of_a_schedule_do_not_overlap(other: str) -> None:
    part = {"publish": {"messages_per_second": 1}}
    with pytest.raises(
        PolicyError, match=f"mon-fri 08:00-18:00 and {other} hold at the same time; give hours that do not"
    ):
        parse_document({"tenants": {"acme": {"schedule": {"mon-fri 08:00-18:00": part, other: part}}}})
    parse_document({"tenants": {"acme": {"schedule": {"mon-fri 08:00-18:00": part, "fri 18:00-08:00": part}}}})


def test_each_state_that_ends_and_hours_may_be_in_has_a_moment() -> None:
    ends_ms, texts, from_ms = (
        [ms("2026-12-03T12:00"), ms("2027-03-01")],
        ["mon-fri 08:00-18:00", "sat"],
        ms("2026-12-01"),
    )

    def state(at_ms: int) -> tuple[int, ...]:
        return (sum(end <= at_ms for end in ends_ms), *valid_at(texts, "UTC", at_ms))

    found = [state(at_ms) for at_ms in moments_ms(ends_ms, texts, "UTC", from_ms)]
    assert len(found) == len(set(found))
    assert set(found) == {state(from_ms + hour * 3_600_000) for hour in range(24 * 120)}


def test_edges_of_a_day_are_found_once_however_many_moments_it_has() -> None:
    """Else a change of a store with 300 tenants of different hours took 13 s."""
    texts = [f"{at % 24:02d}:{at % 60:02d}-{(at + 5) % 24:02d}:{at % 60:02d}" for at in range(100)]
    weekly_hours._edges_of_day_ms.cache_clear()
    assert sum(1 for _ in moments_ms([], texts, "Europe/Berlin", 0)) > 100
    assert weekly_hours._edges_of_day_ms.cache_info().misses < 40


def test_hours_that_always_hold_never_change() -> None:
    assert next_change_ms(["mon-sun"], "Europe/Berlin", ms("2026-03-01")) == NEVER_MS
