"""The work of rows: what each counts in the fair order, as one number.

A row's work is the largest, over the resources that its scopes limit, of its part of the resource: a message is one
`MESSAGE`, and bytes and time count in the proportion of the rates. So work is dominant-share service, charged row by
row (the memoryless form of DRFQ):

- The ideal that follows is progressive filling of work: of two backlogged flows of one weight, neither gets more work.
  No resource is waited for: a scope whose tokens of any kind end is closed, and until then every flow may go on.
- A row costs the same whoever sends it, beside whatever other rows. So nobody gains by dealing rows out over
  namespaces, and the work of a tenant is the sum of its namespaces' work.
- A flow that mixes rows of many kinds is charged at most R times its dominant share, R being the number of resources:
  the sum of the largest parts is at most the sum of all parts, which is at most R times the largest sum.

Which resources count for a row, and in what proportion, is said by those of its scopes that run short
(`contenders.row_work`): one proportion for all that compete, so that a row costs the same whoever sends it.

Work is counted in integers. One row counts at least 1 and at most `MOST_WORK`, less where a batch is so large that its
sum would not fit; what goes beyond is debited from buckets in full, and only its place in the order is too good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import in_order, ranges, running_total
from spark_throttle.core.quota import MICRO, UNLIMITED, Dimension, Int64s

MESSAGE_BITS: Final = 16
MESSAGE: Final = 1 << MESSAGE_BITS
"""The work of a message where messages are limited."""

BYTE: Final = 1 << 8
"""The work of a byte where bytes alone are limited: more than a heavy flow's level is rounded by."""

MILLISECOND: Final = 1 << 24
"""The work of a millisecond of a core where time alone is limited."""

MOST_WORK: Final = 1 << 40
"""The most work that one row counts: 2**24 messages."""

_SUM_BITS: Final = 60
"""The bits of the work of a whole batch."""

_MANY_ROWS: Final = 16
"""With as many rows for each leaf, to lay them out anew takes longer than to find them where they are."""

BYTE_BITS: Final = 10
"""The binary places of a byte's work."""


def byte_work(rate_micro_per_ms: Int64s) -> Int64s:
    """Return the work of a byte in scopes of these rates, in ``2**-BYTE_BITS``; 0 where bytes are not limited.

    A scope's rates are the same amount of work. A byte counts as much as a message at most.

    Parameters
    ----------
    rate_micro_per_ms
        Shape (scopes, 3), by `Dimension`.

    Examples
    --------
    Scopes of 10 messages and 20,480 bytes a second, of bytes alone, and of messages alone; in bytes a message:

    >>> rates = np.array([[10_000, 20_480_000, -1], [-1, 77, -1], [5, -1, -1]])
    >>> [MESSAGE * 2**BYTE_BITS // work if work else 0 for work in byte_work(rates).tolist()]
    [2048, 256, 0]
    """
    messages, size_bytes = rate_micro_per_ms[:, Dimension.MESSAGES], rate_micro_per_ms[:, Dimension.BYTES]
    most = np.full_like(messages, MESSAGE << BYTE_BITS)
    in_proportion = np.minimum(proportional(most, messages, size_bytes), most)
    has_both = (messages > 0) & (size_bytes > 0)
    work = np.where(has_both, np.maximum(in_proportion, 1), BYTE << BYTE_BITS)
    return np.where(size_bytes == UNLIMITED, 0, work)


def time_work(rate_micro_per_ms: Int64s) -> Int64s:
    """Return the work of a millisecond in scopes of these rates, in ``2**-BYTE_BITS``; 0 where time is not limited.

    Parameters
    ----------
    rate_micro_per_ms
        Shape (scopes, 3), by `Dimension`.

    Examples
    --------
    Scopes of half a core and 250 messages a second, or 1,000 bytes a second; and of time alone:

    >>> rates = np.array([[250_000, -1, 500_000], [-1, 1_000_000, 500_000], [-1, -1, 500_000]])
    >>> (time_work(rates) / 2**BYTE_BITS).tolist() == [MESSAGE / 2, 2 * BYTE, MILLISECOND]
    True
    """
    messages, size_bytes, time = rate_micro_per_ms.T
    most = np.full_like(messages, MILLISECOND << BYTE_BITS)
    by_messages, by_bytes = (
        np.minimum(proportional(np.full_like(rate, work << BYTE_BITS), rate, time), most)
        for rate, work in ((messages, MESSAGE), (size_bytes, BYTE))
    )
    work = np.where(messages > 0, by_messages, np.where(size_bytes > 0, by_bytes, most))
    return np.where(time == UNLIMITED, 0, np.where(time > 0, np.maximum(work, 1), most))


def work_of_time(price_ns: Int64s, of_millisecond: Int64s) -> Int64s:
    """Return the work of messages that take so much time, given that of a millisecond as `time_work` returns it."""
    return proportional(price_ns, of_millisecond, np.full_like(price_ns, MICRO << BYTE_BITS))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of leaves, laid out leaf by leaf, and their work."""

    start: Int64s
    """The position in the layout at which each leaf's rows begin."""

    work_total: Int64s | None
    """The running total of work over the layout, longer than it by one; `None` where every row counts `MESSAGE`."""

    bytes_total: Int64s
    """The running total of bytes."""

    price_ns: Int64s | None = None
    """The time that a row of each leaf takes; `None` if it does not count."""

    @classmethod
    def of(cls, start: Int64s, bytes_total: Int64s, work: Int64s | None, price_ns: Int64s | None = None) -> Rows:
        """Lay out rows with `work` each, in the sequence of the layout; `None` where every row counts `MESSAGE`."""
        if work is None:
            return cls(start, None, bytes_total, price_ns)
        most = min(MOST_WORK, (1 << _SUM_BITS) // max(len(work), 1))
        is_within = int(work.min(initial=1)) >= 1 and int(work.max(initial=1)) <= most
        return cls(start, running_total(work if is_within else np.clip(work, 1, most)), bytes_total, price_ns)

    def take(self, at: Int64s) -> Rows:
        """Return the rows of the leaves at `at`."""
        price_ns = None if self.price_ns is None else self.price_ns[at]
        return Rows(self.start[at], self.work_total, self.bytes_total, price_ns)

    def side_by_side(self, counts: Int64s) -> Rows:
        """Return the rows laid out in the order of the leaves, which have so many rows each; as they are, if many."""
        if int(counts.sum()) >= _MANY_ROWS * len(counts):
            return self
        at, total = ranges(self.start, counts), running_total(counts)
        work = None if self.work_total is None else running_total(np.diff(self.work_total)[at])
        return Rows(total[:-1], work, running_total(np.diff(self.bytes_total)[at]), self.price_ns)

    def behind(self, rows: Int64s) -> Rows:
        """Return the rows without the first `rows` of each leaf."""
        return Rows(self.start + rows, self.work_total, self.bytes_total, self.price_ns)

    def work(self, first: Int64s, until: Int64s) -> Int64s:
        """Return the work of each leaf's rows `first` up to `until`; 0 where that is not more."""
        if self.work_total is None:
            return np.maximum(until - first, 0) << MESSAGE_BITS
        begin = self.start + first
        return self.work_total[np.maximum(self.start + until, begin)] - self.work_total[begin]

    def bytes(self, first: Int64s, until: Int64s) -> Int64s:
        """Return the bytes of each leaf's rows `first` up to `until`."""
        return self.bytes_total[self.start + until] - self.bytes_total[self.start + first]

    def tokens(self, first: Int64s, until: Int64s) -> Int64s:
        """Return the tokens of each leaf's rows `first` up to `until`, shape (resources, leaves)."""
        tokens = [until - first, self.bytes(first, until)]
        return np.stack(tokens if self.price_ns is None else [*tokens, tokens[0] * self.price_ns])

    def within(self, first: Int64s, until: Int64s, budget: Int64s) -> Int64s:
        """Return how many of each leaf's rows from `first` up to `until` have at most the work of its `budget`."""
        if self.work_total is None:
            return np.minimum(budget >> MESSAGE_BITS, until - first)
        begin = self.start + first
        end = self.start + np.maximum(until, first)
        last = self.work_total[begin] + budget
        count = end - begin
        cut = np.flatnonzero(self.work_total[end] > last)
        # The longest first, so that those that need one more step of the search are the first of them.
        cut = cut[in_order(-count[cut])]
        at, end, last, length = begin[cut], end[cut], last[cut], -count[cut]
        for bit in reversed(range(int(-length.min(initial=0)).bit_length())):
            some = slice(int(np.searchsorted(length, -(1 << bit), side="right")))
            further = at[some] + (1 << bit)
            goes = self.work_total[np.minimum(further, end[some])] <= last[some]
            at[some] = np.where(goes, further, at[some])
        count[cut] = at - begin[cut]
        return count
