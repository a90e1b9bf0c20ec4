"""Hours of the week, as people write them: ``mon-fri 08:00-18:00``, ``sat,sun``, ``22:00-06:00``.

A time is within them by what the clock of a zone shows, to the minute. So where clocks change, an hour that is left out
holds for nobody, and one that comes twice holds twice. Hours that go over midnight belong to the day on which they
begin.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final, TypeAlias

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.errors import PolicyError
from spark_throttle.policy.wall_time import local_time, wall_ms_of, zone_named

Phase: TypeAlias = tuple[int, tuple[bool, ...]]
"""How many of some ends are past, and which of some hours hold."""

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES
_CYCLE_DAYS: Final = 15
LONGEST_CYCLE_MS: Final = _CYCLE_DAYS * 24 * 3_600_000
"""Within it each minute of the week comes, also if clocks leave an hour out."""

_COMMA: Final = re.compile(r"\s*,\s*")
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]|24):([0-5]\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WeeklyHours:
    """Hours of the week.

    Examples
    --------
    >>> night = WeeklyHours.parse("Fri 22:00-06:00")
    >>> [night.holds(datetime(2026, 11, 27 + day, 5, 59)) for day in (0, 1)]  # a Friday, a Saturday
    [False, True]
    """

    days: tuple[int, ...]
    """The days on which they begin, ascending; 0 is Monday."""

    from_minute: int = 0
    """The minute of the day in which they begin."""

    until_minute: int = _DAY_MINUTES
    """The minute of the day, or of the next one, at which they end; after `from_minute`."""

    @classmethod
    def parse(cls, text: object) -> WeeklyHours:
        """Read hours of the week: days, or hours, or both.

        Raises
        ------
        PolicyError
            If `text` is neither, or holds no time.
        """
        words = _COMMA.sub(",", text.lower()).split() if isinstance(text, str) else []
        days, hours = tuple(range(7)), None
        if words and _HOURS.fullmatch(words[-1]):
            hours = words.pop()
        if len(words) == 1:
            days = _days_of(words[0], text)
        elif words or hours is None:
            raise _refused(text)
        if hours is None:
            return cls(days)
        from_minute, until_minute = (60 * int(each[:2]) + int(each[3:]) for each in hours.split("-"))
        if until_minute > _DAY_MINUTES or from_minute == until_minute:
            raise _refused(text)
        if until_minute < from_minute:
            until_minute += _DAY_MINUTES
        return cls(days, from_minute, until_minute)

    def __str__(self) -> str:
        """Return the text of the hours, which is the same for equal hours.

        Examples
        --------
        >>> [str(WeeklyHours.parse(text)) for text in ("Sun, mon-thu 08:00-18:00", "mon-sun 22:00-06:00", "mon-sun")]
        ['mon-thu,sun 08:00-18:00', '22:00-06:00', 'mon-sun']
        """
        hours = f"{_time(self.from_minute)}-{_time(self.until_minute)}"
        if (self.from_minute, self.until_minute) == (0, _DAY_MINUTES):
            return _text_of(self.days)
        return hours if len(self.days) == 7 else f"{_text_of(self.days)} {hours}"

    @property
    def minutes(self) -> int:
        """The minutes of the week that are within them, from Monday's midnight on, a bit each."""
        return _minutes_of(self)

    def holds(self, local: datetime) -> bool:
        """Return whether what a clock shows is within the hours."""
        return bool(self.minutes >> (local.weekday() * _DAY_MINUTES + 60 * local.hour + local.minute) & 1)

    @property
    def edges(self) -> tuple[int, ...]:
        """The minutes of the day at which the hours begin or end on some day."""
        return tuple(sorted({self.from_minute % _DAY_MINUTES, self.until_minute % _DAY_MINUTES}))


@lru_cache(maxsize=4096)
def _minutes_of(hours: WeeklyHours) -> int:
    found, each_day = 0, (1 << (hours.until_minute - hours.from_minute)) - 1
    for day in hours.days:
        found |= each_day << (day * _DAY_MINUTES + hours.from_minute)
    return (found | found >> _WEEK_MINUTES) & ((1 << _WEEK_MINUTES) - 1)


@lru_cache(maxsize=4096)
def hours_of(text: str) -> WeeklyHours:
    """Return the hours that a checked text has."""
    return WeeklyHours.parse(text)


def valid_at(texts: Collection[str], zone: str, wall_ms: int) -> tuple[bool, ...]:
    """Return of each text whether its hours hold at a time, by the clock of a zone."""
    if not texts:
        return ()
    local = local_time(zone_named(zone), wall_ms)
    return tuple(hours_of(text).holds(local) for text in texts)


def phase_at(ends_ms: Sequence[int], texts: Collection[str], zone: str, wall_ms: int) -> Phase:
    """Return how many of some ends, which ascend, are past at a time, and which hours hold."""
    return bisect_right(ends_ms, wall_ms), valid_at(texts, zone, wall_ms)


def next_change_ms(texts: Collection[str], zone: str, wall_ms: int) -> int:
    """Return when the hours of some text begin or end next, in ms since 1970; `NEVER_MS` if they never do.

    Examples
    --------
    The clocks of Berlin left out the hour from 2 to 3 on 29 March 2026:

    >>> midnight_ms = 1_774_738_800_000
    >>> [
    ...     (next_change_ms([text], "Europe/Berlin", midnight_ms) - midnight_ms) / 3_600_000
    ...     for text in ("02:30-04:00", "02:30-02:45")
    ... ]
    [2.0, 25.5]
    """
    return _next_change_ms(tuple(texts), zone, wall_ms) if texts else NEVER_MS


@lru_cache(maxsize=4096)
def _next_change_ms(texts: tuple[str, ...], zone: str, wall_ms: int) -> int:
    now = valid_at(texts, zone, wall_ms)
    for at_ms in _edges_ms(texts, zone, wall_ms):
        if valid_at(texts, zone, at_ms) != now:
            return at_ms
    return NEVER_MS


def moments_ms(ends_ms: Iterable[int], texts: Collection[str], zone: str, from_ms: int) -> Iterator[int]:
    """Yield, from a time on, one moment for each phase that some ends and hours may be in.

    Hours come again each week, so phases do.

    Examples
    --------
    >>> list(moments_ms([10_000], [], "UTC", 0)), len(list(moments_ms([10_000], ["mon-fri", "sat"], "UTC", 0)))
    ([0, 10000], 4)
    """
    ends = sorted(each for each in ends_ms if each > from_ms)
    seen, at_ms, since_ms = set[Phase](), from_ms, from_ms
    while at_ms < NEVER_MS:
        phase = phase_at(ends, texts, zone, at_ms)
        if phase not in seen:
            seen.add(phase)
            yield at_ms
        end_ms = ends[phase[0]] if phase[0] < len(ends) else NEVER_MS
        change_ms = next_change_ms(texts, zone, at_ms)
        at_ms = min(end_ms, change_ms if change_ms <= since_ms + LONGEST_CYCLE_MS else NEVER_MS)
        since_ms = end_ms if at_ms == end_ms else since_ms


def _edges_ms(texts: tuple[str, ...], zone: str, wall_ms: int) -> Iterator[int]:
    """Yield, ascending, the times after one at which hours may begin or end: by their minutes, or as clocks change."""
    first = local_time(zone_named(zone), wall_ms).date() - timedelta(days=1)
    for ahead in range(_CYCLE_DAYS + 2):
        edges_ms = _edges_of_day_ms(texts, zone, first + timedelta(days=ahead))
        yield from edges_ms[bisect_right(edges_ms, wall_ms) :]


@lru_cache(maxsize=64)
def _edges_of_day_ms(texts: tuple[str, ...], zone_name: str, day: date) -> tuple[int, ...]:
    """Return these times of one day, ascending."""
    zone, minutes = zone_named(zone_name), {minute for text in texts for minute in hours_of(text).edges}
    begins, ends = (datetime.combine(day + timedelta(days=each), time.min, zone) for each in (0, 1))
    shown = [
        datetime.combine(day, time(*divmod(minute, 60)), zone).replace(fold=fold)
        for minute in minutes
        for fold in (0, 1)
    ]
    found = {wall_ms_of(each) for each in shown}
    if begins.utcoffset() != ends.utcoffset():
        found.add(_change_ms(zone, wall_ms_of(begins), wall_ms_of(ends)))
    return tuple(sorted(found))


def _change_ms(zone: tzinfo, from_ms: int, to_ms: int) -> int:
    """Return when the clocks of a zone change between two times."""
    offset = local_time(zone, from_ms).utcoffset()
    while to_ms - from_ms > 1:
        middle_ms = (from_ms + to_ms) // 2
        if local_time(zone, middle_ms).utcoffset() == offset:
            from_ms = middle_ms
        else:
            to_ms = middle_ms
    return to_ms


def _days_of(word: str, text: object) -> tuple[int, ...]:
    found: set[int] = set()
    for part in word.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise _refused(text)
        begins = DAYS.index(first)
        count = (DAYS.index(last) - begins) % 7 if dash else 0
        found |= {(begins + each) % 7 for each in range(count + 1)}
    return tuple(sorted(found))


def _text_of(days: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    parts = [[DAYS[each] for each in run] for run in runs]
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(part) for part in parts)


def _time(minute: int) -> str:
    hour, rest = divmod(minute if minute <= _DAY_MINUTES else minute - _DAY_MINUTES, 60)
    return f"{hour:02d}:{rest:02d}"


def _refused(text: object) -> PolicyError:
    return PolicyError("", f"{describe(text)} are no hours of the week; write such as mon-fri 08:00-18:00, or sat,sun")
