"""The work of rows: what each counts in the fair order, as one number.

A row's work is the largest, over the resources that its scopes limit, of its part of the resource: a message is one
`MESSAGE`, and bytes count in the proportion of the rates. So work is dominant-share service, charged row by row (the
memoryless form of DRFQ):

- The ideal that follows is progressive filling of work: of two backlogged flows of one weight, neither gets more work.
  No resource is waited for: a scope whose tokens of any kind end is closed, and until then every flow may go on.
- A row costs the same whoever sends it, beside whatever other rows. So nobody gains by dealing rows out over
  namespaces, and the work of a tenant is the sum of its namespaces' work.
- A flow that mixes rows of many kinds is charged at most R times its dominant share, R being the number of resources:
  the sum of the largest parts is at most the sum of all parts, which is at most R times the largest sum.

There is one proportion for the whole tree, that of what the tree may pass of each resource (`row_work`): the rate of
the job, and where the job does not limit a resource, the sum of the rates of those scopes below it that do. A narrower
scope's own proportion would charge its rows at the job for what no sibling contends for. So where a group is short of
bytes and the job of messages, a row counts the same in both contests, and the order keeps to the ideal in that measure.

Work is counted in integers. One row counts at least 1 and at most `MOST_WORK`, less where a batch is so large that its
sum would not fit; what goes beyond is debited from buckets in full, and only its place in the order is too good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import running_total
from spark_throttle.core.quota import Int64s

MESSAGE_BITS: Final = 16
MESSAGE: Final = 1 << MESSAGE_BITS
"""The work of a message where messages are limited."""

BYTE: Final = 1 << 8
"""The work of a byte where bytes alone are limited: more than a heavy flow's level is rounded by."""

MOST_WORK: Final = 1 << 40
"""The most work that one row counts: 2**24 messages."""

_SUM_BITS: Final = 60
"""The bits of the work of a whole batch."""


def row_work(size_bytes: Int64s, messages_rate: int | None, bytes_rate: int | None) -> Int64s | None:
    """Return the work of rows by the rates of the whole tree, in one unit of time; `None` where each counts `MESSAGE`.

    Examples
    --------
    Of 100 messages and 5,000 bytes a second, a row of up to 50 bytes takes a message's part, one of 100 twice that:

    >>> (row_work(np.array([1, 50, 100]), 100, 5000) / MESSAGE).tolist()
    [1.0, 1.0, 2.0]
    >>> (row_work(np.array([1, 50]), None, 5000) / BYTE).tolist()
    [1.0, 50.0]
    """
    if bytes_rate is None:
        return None
    if messages_rate is None:
        return np.clip(size_bytes, 1, MOST_WORK // BYTE) * BYTE
    rates = np.array([messages_rate]), np.array([bytes_rate])
    return np.clip(proportional(size_bytes, *rates, MESSAGE_BITS), MESSAGE, MOST_WORK)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of leaves, laid out leaf by leaf, and their work."""

    start: Int64s
    """The position in the layout at which each leaf's rows begin."""

    work_total: Int64s | None
    """The running total of work over the layout, longer than it by one; `None` where every row counts `MESSAGE`."""

    bytes_total: Int64s
    """The running total of bytes."""

    @classmethod
    def of(cls, start: Int64s, bytes_total: Int64s, work: Int64s | None) -> Rows:
        """Lay out rows with `work` each, in the sequence of the layout; `None` where every row counts `MESSAGE`."""
        if work is None:
            return cls(start, None, bytes_total)
        most = min(MOST_WORK, (1 << _SUM_BITS) // max(len(work), 1))
        is_within = int(work.min(initial=1)) >= 1 and int(work.max(initial=1)) <= most
        return cls(start, running_total(work if is_within else np.clip(work, 1, most)), bytes_total)

    def take(self, at: Int64s) -> Rows:
        """Return the rows of the leaves at `at`."""
        return Rows(self.start[at], self.work_total, self.bytes_total)

    def behind(self, rows: Int64s) -> Rows:
        """Return the rows without the first `rows` of each leaf."""
        return Rows(self.start + rows, self.work_total, self.bytes_total)

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
        return np.stack([until - first, self.bytes(first, until)])

    def within(self, first: Int64s, until: Int64s, budget: Int64s) -> Int64s:
        """Return how many of each leaf's rows from `first` up to `until` have at most the work of its `budget`."""
        if self.work_total is None:
            return np.minimum(budget >> MESSAGE_BITS, until - first)
        begin = self.start + first
        end = self.start + np.maximum(until, first)
        last, at = self.work_total[begin] + budget, begin
        for bit in reversed(range(int((end - begin).max(initial=0)).bit_length())):
            further = at + (1 << bit)
            goes = self.work_total[np.minimum(further, end)] <= last
            goes &= further <= end
            at = np.where(goes, further, at)
        return at - begin
