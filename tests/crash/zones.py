"""Time zones of a run's own, so that an hour and a day of the calendar end while the job is killed.

An hour of a real zone ends at most three times an hour. Of these one ends in every minute, and with it a day in every
second one.
"""

from __future__ import annotations

import os
import struct
import time
import zoneinfo
from pathlib import Path
from typing import Final

from spark_throttle.policy import values

_FOLDER: Final = "zones"
_MINUTES: Final = 240
"""So many have a zone: a run is shorter."""

_SOONEST_SECONDS: Final = 45
"""On a machine that is busy a job comes to its first batch so long after its start."""


def wall_seconds() -> int:
    """Return the time of the wall clock, in seconds since 1970."""
    return int(time.time())  # noqa: TID251 - windows end by it


def make_zones(root: Path) -> None:
    """Write the zones of a run that begins now."""
    (root / _FOLDER / "Crash").mkdir(parents=True)
    for minute in range(wall_seconds() // 60, wall_seconds() // 60 + _MINUTES):
        # At that minute a clock shows midnight there or, in every second zone, one o'clock.
        offset = -60 * (minute % 1_440) + (0 if minute % 2 == 0 else 3_600)
        offset = offset if offset > -43_200 else offset + 86_400
        zone = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbB", offset, 0, 0) + b"LMT\0"
        (root / _FOLDER / name_of(minute)).write_bytes(zone)


def name_of(minute: int) -> str:
    """Return the zone of which an hour ends at a minute, counted since 1970.

    Examples
    --------
    >>> name_of(125)
    'Crash/0205'
    """
    return f"Crash/{minute // 60 % 24:02}{minute % 60:02}"


def ending_soon() -> tuple[str, int]:
    """Return a zone of which an hour ends soon, and when, in seconds since 1970."""
    minute = (wall_seconds() + _SOONEST_SECONDS) // 60 + 1
    return name_of(minute), 60 * minute


def know_zones(root: Path) -> None:
    """Let this process, and those that it starts, know the zones of a run, if it has any."""
    if (root / _FOLDER).exists():
        paths = [str((root / _FOLDER).resolve()), *filter(lambda path: not path.endswith(_FOLDER), zoneinfo.TZPATH)]
        os.environ["PYTHONTZPATH"] = os.pathsep.join(paths)
        zoneinfo.reset_tzpath(paths)
        values._time_zones.cache_clear()
