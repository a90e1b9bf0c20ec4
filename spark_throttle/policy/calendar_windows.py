"""The calendar by which budgets begin anew: an hour at its full hour, a day at midnight, a month on its first day.

Edges are moments of a time zone (IANA). A day begins when its date is first shown, so it may have 23 or 25 hours, and
where the clock goes back over midnight, it begins once. An hour begins whenever the clock shows a full one: one that
comes twice is two.

An epoch pins the paying time (`control.clock`) at which a window began, and that at which it ends: the first edge at
least half a window later, as the wall clock and the policy's zone have it when the epoch is made. Where that edge is
past by then, because the clock or the zone was set, the end stays. So on a wall clock that is right, windows are those
of the calendar. And whatever the clock or the zone is set to, back and forth, a window lasts at least half as long as
it should, and no more than a half longer: none begins twice, and none keeps a budget spent for long. The next window is
right again.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

import numpy as np

from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.quota import CompiledPolicy, Int64s, Period
from spark_throttle.policy.wall_time import local_time, wall_ms_of, zone_named

_HOUR_MS: Final = 3_600_000
_HALF_MS: Final = {Period.HOUR: _HOUR_MS // 2, Period.DAY: 12 * _HOUR_MS, Period.MONTH: 14 * 24 * _HOUR_MS}
_MS: Final = timedelta(milliseconds=1)


def windows_at(
    before: CalendarWindows | None, policy: CompiledPolicy, *, wall_ms: int, paid_ms: int
) -> CalendarWindows | None:
    """Return the windows in force at a moment, after those of the epoch before; `None` if the policy has no budgets.

    Parameters
    ----------
    wall_ms, paid_ms
        The wall clock's time at that moment, and the paying time.
    """
    if not (policy.shared.budgets or policy.namespace_limits.budgets):
        return None
    zone, found = zone_named(policy.time_zone), []
    for period in Period:
        number, since_ms = 0, last_edge(zone, period, wall_ms)
        if before is not None:
            number, since_ms = int(before.number[period]), wall_ms - paid_ms + int(before.since_ms[period])
            ended_ms = wall_ms - paid_ms + int(before.until_ms[period])
            if ended_ms <= wall_ms:
                since_ms = max(ended_ms, last_edge(zone, period, wall_ms))
                number += 1 + _count(zone, period, since_ms) - _count(zone, period, ended_ms)
        until_ms = next_edge(zone, period, since_ms + _HALF_MS[period])
        if until_ms <= wall_ms and before is not None:
            until_ms = wall_ms - paid_ms + int(before.until_ms[period])
        found.append((number, since_ms - wall_ms + paid_ms, until_ms - wall_ms + paid_ms))
    return CalendarWindows(*np.array(found, dtype=np.int64).T.copy())


def has_ended(windows: CalendarWindows | None, policy: CompiledPolicy, now_ms: int) -> bool:
    """Return whether a window has ended for which the policy has a budget."""
    if windows is None:
        return False
    periods = [*policy.shared.periods, *policy.namespace_limits.periods]
    return any(int(windows.until_ms[period]) <= now_ms for period in periods)


def window_keys(windows: CalendarWindows, policy: CompiledPolicy, *, wall_ms: int, paid_ms: int) -> Int64s:
    """Return which window of the calendar each is, the same number in every job whose clock is right.

    Parameters
    ----------
    wall_ms, paid_ms
        The same moment by the wall clock, and as a paying time.
    """
    zone, ahead_ms = zone_named(policy.time_zone), wall_ms - paid_ms
    since_ms = [int(windows.since_ms[period]) + ahead_ms + _HALF_MS[period] for period in Period]
    return np.array([_count(zone, *each) for each in zip(Period, since_ms, strict=True)], dtype=np.int64)


def next_edge(zone: tzinfo, period: Period, wall_ms: int) -> int:
    """Return the first edge at or after a time, in ms since 1970.

    Examples
    --------
    In Berlin, 25 October 2026 has 25 hours:

    >>> berlin = zone_named("Europe/Berlin")
    >>> begins = next_edge(berlin, Period.DAY, 1_792_800_000_000)
    >>> (next_edge(berlin, Period.DAY, begins + 1) - begins) // 3_600_000
    25
    """
    if period == Period.HOUR:
        return _next_hour(zone, wall_ms)
    day = local_time(zone, wall_ms).date()
    if period == Period.MONTH:
        day = day.replace(day=1)
    while (begins_ms := _begin(zone, day)) < wall_ms:
        day = day + timedelta(days=1) if period == Period.DAY else (day + timedelta(days=31)).replace(day=1)
    return begins_ms


def last_edge(zone: tzinfo, period: Period, wall_ms: int) -> int:
    """Return the last edge at or before a time, in ms since 1970."""
    step_ms = 2 * _HALF_MS[period] + _HOUR_MS * (1 if period == Period.HOUR else 96)
    edge_ms = next_edge(zone, period, wall_ms - step_ms)
    while (later_ms := next_edge(zone, period, edge_ms + 1)) <= wall_ms:
        edge_ms = later_ms
    return edge_ms


def _next_hour(zone: tzinfo, wall_ms: int) -> int:
    offsets_ms = {_offset_ms(zone, wall_ms), _offset_ms(zone, wall_ms + _HOUR_MS)}
    edges = [-(-(wall_ms + each) // _HOUR_MS) * _HOUR_MS - each for each in offsets_ms]
    found = [edge for edge in edges if (edge + _offset_ms(zone, edge)) % _HOUR_MS == 0]
    return min(found) if found else _next_hour(zone, wall_ms + _HOUR_MS // 2)


def _begin(zone: tzinfo, day: date) -> int:
    """Return when a date is first shown."""
    midnight = datetime.combine(day, time.min, zone)
    first_ms, second_ms = (wall_ms_of(midnight.replace(fold=fold)) for fold in (0, 1))
    if second_ms >= first_ms:
        return first_ms  # it is there once, or twice
    # The clock jumps over it: the date is first shown right after the jump.
    while first_ms - second_ms > 1:
        middle_ms = (first_ms + second_ms) // 2
        if local_time(zone, middle_ms).date() < day:
            second_ms = middle_ms
        else:
            first_ms = middle_ms
    return first_ms


def _count(zone: tzinfo, period: Period, edge_ms: int) -> int:
    """Return how many windows have begun before one, counted from some first one."""
    at = local_time(zone, edge_ms)
    match period:
        case Period.HOUR:
            return edge_ms // _HOUR_MS
        case Period.DAY:
            return at.toordinal()
        case _:
            return 12 * at.year + at.month


def _offset_ms(zone: tzinfo, wall_ms: int) -> int:
    return (local_time(zone, wall_ms).utcoffset() or timedelta()) // _MS
