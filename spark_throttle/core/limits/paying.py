"""Paying time: the time that earns tokens, as a batch computes it.

Spark's batch time comes from a wall clock, which may be set forward or back. So the control plane keeps a clock of its
own, which advances by the time that a steady clock has measured (`control.clock`), and pins its reading in every epoch,
next to the wall clock's. How long after that reading a batch runs is known only from Spark's time::

    paying time = pinned reading + (batch time - the wall clock's reading then)

All of this is pinned, so a batch that runs again computes the same time. The result is exact while the wall clock is
steady, and when it was not, an epoch is made at once (`control.plane`). So a jump can only fall between the plan of a
batch and its timestamp. What such a jump may add to a batch that brings an epoch is bounded by `MOST_LAG_MS`, and is
not paid again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LAG_MS: Final = 10_000
"""The longest time that Spark may take between asking for an epoch and taking the timestamp of its batch."""


@dataclass(frozen=True, slots=True)
class PayingTime:
    """The clock reading that an epoch pins: the paying time, and the wall clock's time at that moment."""

    paid_ms: int
    wall_ms: int

    def of_batch(self, batch_ms: int, *, is_new: bool, advanced_to_ms: int) -> int:
        """Return the paying time of a batch.

        Parameters
        ----------
        batch_ms
            Spark's timestamp of the batch.
        is_new
            Whether the batch brings the epoch.
        advanced_to_ms
            The paying time to which the state was advanced: time that was paid once is not paid again.

        Examples
        --------
        A batch 20 ms after its epoch was made, one half a minute later, and one before which the clock jumped:

        >>> reading = PayingTime(5_000, 1_700_000_000_000)
        >>> reading.of_batch(1_700_000_000_020, is_new=True, advanced_to_ms=0)
        5020
        >>> reading.of_batch(1_700_000_030_000, is_new=False, advanced_to_ms=5_020)
        35000
        >>> reading.of_batch(1_800_000_000_000, is_new=True, advanced_to_ms=0)
        15000
        """
        since_ms = max(0, batch_ms - self.wall_ms)
        now_ms = self.paid_ms + (min(since_ms, MOST_LAG_MS) if is_new else since_ms)
        is_ahead = advanced_to_ms > now_ms + MOST_LAG_MS  # a jump was paid: to wait it out would stop the job
        return now_ms if is_ahead else max(now_ms, advanced_to_ms)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The readings of the control plane's other clocks when it made an epoch, in addition to the paying time."""

    wall_ms: int
    latest_wall_ms: int
    """The latest wall-clock time that any epoch so far has seen, advanced by the time paid since."""

    steady_ms: int
    boot: str
    """The name of the moment from which `steady_ms` counts; readings with different names cannot be compared."""
