"""The clocks of a control plane, and paying time, by which tokens are earned.

A wall clock may be set; a steady clock is never set, but counts from the machine's start. Paying time is what the
steady clock has measured since the last epoch, whatever the wall clock did, and whether or not this process was
running: the epoch pins the reading and the boot that it counts from. On another machine, or after a restart of this
one, the wall clock says how much time has passed: as much as it shows beyond the latest time that was paid, and no
less than batches were paid. So time that really passed is paid, and a jump, forward or back, pays nothing and stops
nothing.

Where the wall clocks of two machines differ, the difference would be paid, once. An object store has a clock of its
own, so there no more is paid than passed by that clock. On a disk, nothing else tells what passed while no process ran.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.token_bucket import ClockReading

MOST_DRIFT_MS: Final = 100
"""How far the wall clock may drift from the steady clock after an epoch before another epoch is due."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock and the steady clock of a machine, in ms."""

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    """A clock that is never set, and that goes on while the machine sleeps."""

    boot: str = ""
    """An id of the machine start from which the steady clock counts."""

    @classmethod
    def of(cls, clock: Clock | Callable[[], int]) -> Clock:
        """Return `clock`; a single function serves as both clocks, for a wall clock that is never set."""
        return clock if isinstance(clock, Clock) else cls(clock, clock)

    @classmethod
    def system(cls) -> Clock:
        """Return this machine's clocks."""
        return cls(_wall_ms, _steady_ms, _boot())


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading of the clocks, and the paying time that follows from it."""

    paid_ms: int
    reading: ClockReading
    is_off: bool
    """Whether the wall clock is not a measure of the time since the last epoch."""


class Occasion:
    """An occasion that comes by once per interval of the steady clock, and at once where it was called for.

    Examples
    --------
    >>> now_ms = 0
    >>> occasion = Occasion(lambda: now_ms, 1_000)
    >>> occasion.comes(), occasion.comes()
    (True, False)
    >>> now_ms = 1_000
    >>> occasion.comes()
    True
    >>> occasion.call_for()
    >>> occasion.comes()
    True
    """

    def __init__(self, steady_ms: Callable[[], int], interval_ms: int) -> None:
        self._steady_ms = steady_ms
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def comes(self) -> bool:
        """Return whether the occasion is there; then it is over."""
        now_ms = self._steady_ms()
        if self._last_ms is not None and now_ms - self._last_ms < self._interval_ms:
            return False
        self._last_ms = now_ms
        return True

    def call_for(self) -> None:
        """Have the occasion come at once."""
        self._last_ms = None


def moment_after(
    epoch: Epoch | None, clock: Clock, reached_ms: int = 0, most_ms: Callable[[], int | None] = lambda: None
) -> Moment:
    """Return the time now, after an epoch; before the first one, paying time is the wall clock's time.

    Parameters
    ----------
    reached_ms
        The paying time that the epoch's batches have reached, as far as it is known. On another machine less is known
        to have passed than that: it goes on from there.
    most_ms
        Returns the most time that can have passed, where this machine's steady clock does not know; `None` if nobody
        knows.
    """
    wall_ms, steady_ms = clock.wall_ms(), clock.steady_ms()
    if epoch is None:
        return Moment(wall_ms, ClockReading(wall_ms, wall_ms, steady_ms, clock.boot), is_off=False)
    before = epoch.reading
    if before.boot != clock.boot or steady_ms < before.steady_ms:
        most, passed_ms = most_ms(), wall_ms - before.latest_wall_ms
        passed_ms = max(0, reached_ms - epoch.paid_ms, passed_ms if most is None else min(passed_ms, most))
        is_off = True
    else:
        passed_ms = steady_ms - before.steady_ms
        is_off = abs(wall_ms - before.wall_ms - passed_ms) > MOST_DRIFT_MS
    # Time paid here is paid on every machine: the latest wall time advances with it, whatever this wall clock shows.
    reading = ClockReading(wall_ms, max(wall_ms, before.latest_wall_ms + passed_ms), steady_ms, clock.boot)
    return Moment(epoch.paid_ms + passed_ms, reading, is_off)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - the control plane's clock; what it decides is pinned in epochs


def _steady_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000


@cache
def _boot() -> str:
    """Return an id of this machine's boot, or of this process where the machine has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex
