"""Paying time: the time that earns tokens, as a batch finds it.

Spark's batch time is a wall clock's: it may be set, forth and back. So the control plane keeps a clock of its own,
which goes on by what a steady clock has measured (`control.clock`), and pins its reading in every epoch beside the
wall's.
A batch has only Spark's time to tell how long after that reading it runs::

    paying time = pinned reading + (batch time - the wall clock's reading then)

All of it is pinned, so a batch that is run again finds the same time. While the wall clock is steady that is exact, and
an epoch is made at once when it was not (`control.plane`); so a jump can only come between the plan of a batch and its
timestamp. What that may add to a batch that brings an epoch is bounded by `MOST_LAG_MS`, and is not paid again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LAG_MS: Final = 10_000
"""Spark takes a batch's timestamp so soon after it asked for the epoch."""


@dataclass(frozen=True, slots=True)
class PayingTime:
    """The reading of an epoch."""

    paid_ms: int
    wall_ms: int

    def of_batch(self, batch_ms: int, *, is_new: bool, advanced_to_ms: int) -> int:
        """Return the paying time of a batch.

        Parameters
        ----------
        batch_ms
            Spark's time of it.
        is_new
            Whether the batch brings the epoch.
        advanced_to_ms
            What the shard was advanced to: what is paid once is not paid again.

        Examples
        --------
        A batch 20 ms after its epoch was made, one half a minute later, and one whose clock jumped in between:

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
        is_ahead = advanced_to_ms > now_ms + MOST_LAG_MS  # a jump was paid: waiting for it would stop the shard
        return now_ms if is_ahead else max(now_ms, advanced_to_ms)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clocks of the control plane said when it made an epoch, beside the paying time."""

    wall_ms: int
    latest_wall_ms: int
    """The largest that any epoch so far has seen, gone on by the time that was paid since."""

    steady_ms: int
    boot: str
    """Names what `steady_ms` counts from; readings of two names cannot be compared."""
