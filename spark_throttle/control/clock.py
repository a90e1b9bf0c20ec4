"""The clocks of a control plane, and the time that pays tokens.

A wall clock may be set; a steady clock is not, but counts from the machine's start. Paying time is what the steady
clock has measured since the last epoch, whatever the wall clock did, and whether this process was there or not: the
reading, and the boot that it counts from, are pinned in the epoch. On another machine, or one that was started anew,
all that can be known of the time between is the wall clock's: what it shows beyond the latest time that was paid. So
time that really passed is paid, and a jump, forth or back, pays nothing and stops nothing. Where the wall clocks of two
machines differ, the difference is paid once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from spark_throttle.core.codec import Epoch
from spark_throttle.core.limits.paying import ClockReading

MOST_DRIFT_MS: Final = 100
"""By how much more the wall clock may differ from the steady one since an epoch before another is due."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, in ms."""

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    """Never set, and goes on while the machine sleeps."""

    boot: str = ""
    """Names what the steady clock counts from."""

    @classmethod
    def of(cls, clock: Clock | Callable[[], int]) -> Clock:
        """Return a clock, or make one of a single function that is a wall clock and never set."""
        return clock if isinstance(clock, Clock) else cls(clock, clock)

    @classmethod
    def system(cls) -> Clock:
        """Return this machine's clocks."""
        return cls(_wall_ms, _steady_ms, _boot())


@dataclass(frozen=True, slots=True)
class Moment:
    """The clocks, and what they say of the time that pays."""

    paid_ms: int
    reading: ClockReading
    is_off: bool
    """Whether the wall clock cannot tell how long it is since the last epoch."""


def moment_after(epoch: Epoch | None, clock: Clock) -> Moment:
    """Return what time it is, after an epoch; paying time begins as the wall clock's."""
    wall_ms, steady_ms = clock.wall_ms(), clock.steady_ms()
    if epoch is None:
        return Moment(wall_ms, ClockReading(wall_ms, wall_ms, steady_ms, clock.boot), is_off=False)
    before, paid_ms = epoch.reading, epoch.buckets.as_of_ms
    latest_ms = paid_ms if before is None else before.latest_wall_ms
    if before is None or before.boot != clock.boot or steady_ms < before.steady_ms:
        reading = ClockReading(wall_ms, max(wall_ms, latest_ms), steady_ms, clock.boot)
        return Moment(paid_ms + max(0, wall_ms - latest_ms), reading, is_off=True)
    passed_ms = steady_ms - before.steady_ms
    # Time that was paid here is paid on every machine: the latest goes on with it, whatever this wall clock shows.
    reading = ClockReading(wall_ms, max(wall_ms, latest_ms + passed_ms), steady_ms, clock.boot)
    drift_ms = wall_ms - before.wall_ms - passed_ms
    return Moment(paid_ms + passed_ms, reading, is_off=abs(drift_ms) > MOST_DRIFT_MS)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - the control plane's clock; what it decides is pinned in epochs


def _steady_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000


@cache
def _boot() -> str:
    """Return the name of this machine's start; where it has none, one of this process."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex
