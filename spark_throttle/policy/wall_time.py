"""What a clock on the wall shows in a zone (IANA), at a time in ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def zone_named(name: str) -> tzinfo:
    """Return the zone of a name."""
    return UTC if name == "UTC" else ZoneInfo(name)


def local_time(zone: tzinfo, wall_ms: int) -> datetime:
    """Return what a clock of a zone shows at a time.

    Examples
    --------
    >>> local_time(zone_named("Asia/Kathmandu"), 0).isoformat()
    '1970-01-01T05:30:00+05:30'
    """
    return (_BEGIN + wall_ms * _MS).astimezone(zone)


def wall_ms_of(at: datetime) -> int:
    """Return the time of a reading that knows its zone, in whole ms.

    Examples
    --------
    >>> wall_ms_of(local_time(zone_named("Asia/Kathmandu"), 1_500))
    1500
    """
    return (at - _BEGIN) // _MS
