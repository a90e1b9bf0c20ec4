"""How long messages waited, as counts in bins that add up: over namespaces, batches, jobs and days.

A bin holds the times between two ends, both included. Times below 32 ms have a bin each; every power of two above is
cut into sixteen bins of one width, as in an HDR histogram. So whatever is told by a bin's upper end is never too
little, and at most a sixteenth too much. Bins are the same everywhere: to add is to add the counts of equal bins.

Only messages that waited are counted. Those that left in the batch in which they came are the rest of the admitted.

Source: G. Tene, HdrHistogram (log-linear buckets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import Int64s

_PARTS: Final = 16
"""The bins of a power of two."""

_MOST_MS: Final = (1 << 50) - 1
"""A longer time counts as this."""

_WIDER_FROM_MS: Final = 2 * _PARTS << np.arange(45)
"""The times from which on bins are twice as wide."""

_BINS: Final = 1 << 10
"""More than there are."""


def bin_of(time_ms: Int64s) -> Int64s:
    """Return the bin of each time; one below 0 counts as 0.

    Examples
    --------
    >>> bin_of(np.array([0, 31, 32, 33, 34, 63, 64])).tolist()
    [0, 31, 32, 32, 33, 47, 48]
    """
    time_ms = np.clip(time_ms, 0, _MOST_MS)
    shift = np.searchsorted(_WIDER_FROM_MS, time_ms, side="right")
    return _PARTS * shift + (time_ms >> shift)


def upper_ms(bins: Int64s) -> Int64s:
    """Return the longest time of each bin.

    Examples
    --------
    >>> upper_ms(bin_of(np.array([0, 31, 32, 1_000, 3_600_000]))).tolist()
    [0, 31, 33, 1023, 3670015]
    """
    shift = np.maximum(bins // _PARTS - 1, 0)
    return ((bins - _PARTS * shift + 1) << shift) - 1


@dataclass(frozen=True, slots=True, eq=False)
class WaitingTimes:
    """The counts of the bins that hold a message; three arrays of one length, ascending by `at` and `bin`."""

    at: Int64s
    """The position of the namespace or scope whose messages they are."""

    bin: Int64s
    messages: Int64s

    @classmethod
    def of(cls, at: Int64s, time_ms: Int64s) -> WaitingTimes:
        """Count messages that waited so long; a time that is not above 0 is left out.

        Examples
        --------
        >>> times = WaitingTimes.of(np.array([1, 0, 1, 1]), np.array([7, 20, 7, 0]))
        >>> times.at.tolist(), times.bin.tolist(), times.messages.tolist()
        ([0, 1], [20, 7], [1, 2])
        """
        waited = time_ms > 0
        key, messages = np.unique(at[waited] * _BINS + bin_of(time_ms[waited]), return_counts=True)
        return cls(key // _BINS, key % _BINS, messages)

    @classmethod
    def none(cls) -> WaitingTimes:
        """Return the counts where no message waited."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.at)

    def among(self, scope: Int64s) -> WaitingTimes:
        """Return the sums over the namespaces of each scope.

        Parameters
        ----------
        scope
            By the position `at`, the position of its scope; -1 for none.
        """
        to = scope[self.at]
        is_in = to >= 0
        key, at = np.unique(to[is_in] * _BINS + self.bin[is_in], return_inverse=True)
        return WaitingTimes(key // _BINS, key % _BINS, sums(at, self.messages[is_in], len(key)))

    def times_ms(self, admitted: Int64s, percent: int) -> Int64s:
        """Return the time within which this part of the admitted messages of each scope had left.

        Parameters
        ----------
        admitted
            By the position `at`, the admitted messages, those that waited and those that did not.
        percent
            From 1 to 100.

        Examples
        --------
        Of four messages two did not wait, one waited for 7 ms, and one for 20:

        >>> times = WaitingTimes.of(np.array([0, 0]), np.array([7, 20]))
        >>> [times.times_ms(np.array([4]), percent).tolist() for percent in (50, 75, 99)]
        [[0], [7], [20]]
        """
        waited = sums(self.at, self.messages, len(admitted))
        rank = -(-admitted * percent // 100) - (admitted - waited)  # among those that waited
        first = np.searchsorted(self.at, np.arange(len(admitted)))
        total = np.cumsum(self.messages)
        before = np.append(0, total)[first]
        found = np.searchsorted(total, before + np.maximum(rank, 1))
        longest = np.append(upper_ms(self.bin), 0)[np.minimum(found, len(self))]
        return np.where(rank > 0, longest, 0)
